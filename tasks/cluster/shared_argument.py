"""What many tasks share, sent with each of them and made once in a worker's process."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary


class _Made:
    """A value that was unpickled."""

    def __init__(self, value: Any) -> None:
        self.value = value


_made: WeakValueDictionary[str, _Made] = WeakValueDictionary()  # while a task works with it
_latest: list[_Made] = []  # and the last one until there is another, for the time between two tasks
_making = threading.Lock()


class Given:
    """`function` with its first argument. A task that is done again, elsewhere too, has it with it."""

    def __init__(self, function: Callable[..., Any], value: Any) -> None:
        from distributed.protocol import pickle

        self.function, self.__name__ = function, function.__name__
        self.token, self.pickled = uuid.uuid4().hex, pickle.dumps(value)

    def __call__(self, *args: Any) -> Any:
        made = self._value()
        return self.function(made.value, *args)

    def _value(self) -> _Made:
        from distributed.protocol import pickle

        with _making:
            made = _made.get(self.token)
            if made is None:
                made = _made[self.token] = _Made(pickle.loads(self.pickled))
            _latest[:] = [made]
            return made
