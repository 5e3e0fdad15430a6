"""An argument that many tasks share: sent with each task, unpickled once in the process of a worker."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary


class _Unpickled:
    """An unpickled value, which weak references need an object of its own for."""

    def __init__(self, value: object) -> None:
        self.value = value


_unpickled: WeakValueDictionary[str, _Unpickled] = WeakValueDictionary()  # by token, while a task uses the value
_latest: list[_Unpickled] = []  # the value used last: keeps it alive between two tasks
_unpickling = threading.Lock()


class WithShared:
    """`function` with its first argument `value`, which travels with the task: Dask can run the task again anywhere."""

    def __init__(self, function: Callable[..., Any], value: object) -> None:
        from distributed.protocol import pickle

        self.function = function
        self.__name__ = function.__name__
        self.token = uuid.uuid4().hex
        self.pickled = pickle.dumps(value)

    def __call__(self, *args: Any) -> object:
        unpickled = self._unpickle_once()
        return self.function(unpickled.value, *args)

    def _unpickle_once(self) -> _Unpickled:
        from distributed.protocol import pickle

        with _unpickling:
            unpickled = _unpickled.get(self.token)
            if unpickled is None:
                unpickled = _unpickled[self.token] = _Unpickled(pickle.loads(self.pickled))
            _latest[:] = [unpickled]
            return unpickled
