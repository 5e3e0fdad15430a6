"""An engine of the CPU whose arrays do not mix with those of numpy, as CuPy's do not: a stand-in for a GPU's two
memories.

Code that both engines share must take the functions of `engine.xp` for arrays of the engine, and copy arrays between
the memories by name. Here it raises a TypeError where CuPy would.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tasks import engines
from tasks.engines import cpu
from tasks.engines.algorithms import factors as linear
from tasks.engines.algorithms import radix_selection
from tasks.engines.expression import interpreter as evaluation
from tasks.engines.expression import verbs_arrow
from tasks.engines.expression.verbs_numbers import Flat

NAME = "apart"
ARRAYS = (
    "numbers", "run_codes", "sort_within", "hash_columns", "hash_rows", "null_rows", "row_numbers", "list_lengths",
    "extremes_by", "sum_by", "exact_sums_by", "run_sums", "vocabulary_ids",
)  # fmt: skip
TAKEN = ("from_numbers", "take", "make_lists", "cut")  # kernels that take arrays and give none
VERBS = (
    "flat", "from_arrow", "text_compare", "text_in", "length", "list_length", "contains", "startswith", "is_null",
    "hash_column", "to_arrow", "column", "text_where",
)  # fmt: skip


class Device(np.ndarray):
    """An array in the memory of the device."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        _check(ufunc.__name__, (inputs, options.get("out") or ()))
        return device(getattr(ufunc, method)(*host(inputs), **{n: host(v) for n, v in options.items()}))

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        _check(function.__name__, (arguments, list(options.values())))
        return device(function(*host(arguments), **{n: host(v) for n, v in options.items()}))

    def __setitem__(self, place: Any, values: Any) -> None:
        _check("setting", ([self], [values]))
        np.ndarray.__setitem__(self.view(np.ndarray), host(place), host(values))

    def get(self) -> np.ndarray:
        """A copy in the memory of the host."""
        return self.view(np.ndarray).copy()


def _kinds(value: Any) -> set[type]:
    if isinstance(value, (list, tuple)):
        return {kind for one in value for kind in _kinds(one)}
    return {type(value)} if isinstance(value, np.ndarray) and value.ndim else set()


def _check(name: str, values: Any) -> None:
    if {np.ndarray, Device} <= _kinds(values):
        raise TypeError(f"{name} of an array of the host and one of the device")


def host(value: Any) -> Any:
    """The same arrays, looked at as those of the host."""
    if isinstance(value, Flat):
        return dataclasses.replace(value, values=host(value.values), valid=host(value.valid))
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(map(host, value))
    return value.view(np.ndarray) if isinstance(value, Device) else value


def device(value: Any) -> Any:
    """The same arrays, looked at as those of the device; numbers of numpy as arrays without a dimension."""
    if isinstance(value, Flat):
        return dataclasses.replace(value, values=device(value.values), valid=device(value.valid))
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(map(device, value))
    return np.asarray(value).view(Device) if isinstance(value, (np.ndarray, np.generic)) else value


class _Arrays(ModuleType):
    """numpy's functions for arrays of the device; only `asarray` and `array` take those of the host."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(np, name)
        if isinstance(function, type) or not callable(function):
            return function

        @functools.wraps(function)
        def called(*arguments: Any, **options: Any) -> Any:
            if np.ndarray in _kinds((arguments, list(options.values()))) and name not in ("asarray", "array"):
                raise TypeError(f"xp.{name} of an array of the host")
            return device(function(*host(arguments), **{n: host(v) for n, v in options.items()}))

        self.__dict__[name] = called  # one object for a name: callers compare them
        return called


XP = _Arrays("xp")


def _giving(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments, **options: device(function(*host(arguments), **{n: host(v) for n, v in options.items()}))


def _taking(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments, **options: function(*host(arguments), **{n: host(v) for n, v in options.items()})


class _Lookup:
    def __init__(self, keys: Any) -> None:
        self._lookup = cpu.Lookup(keys)
        self.size = self._lookup.size

    def find_places(self, columns: Any) -> Any:
        return device(self._lookup.find_places(columns))


def _group_codes(*arguments: Any) -> Any:
    codes, table = cpu.group_codes(*arguments)
    return device(codes), table


def use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `NAME` be the engine of all columns."""
    kernels = ModuleType(f"{__name__}.kernels")
    kernels.__dict__.update({n: v for n, v in vars(cpu).items() if not n.startswith("__")})
    kernels.__dict__.update({name: _giving(getattr(cpu, name)) for name in ARRAYS})
    kernels.__dict__.update({name: _taking(getattr(cpu, name)) for name in TAKEN})
    kernels.__dict__.update(xp=XP, Lookup=_Lookup, group_codes=_group_codes)
    verbs = ModuleType(f"{__name__}.verbs")
    verbs.__dict__.update({n: v for n, v in vars(verbs_arrow).items() if not n.startswith("__")})
    verbs.__dict__.update({name: _giving(getattr(verbs_arrow, name)) for name in VERBS})
    verbs.__dict__["xp"] = XP
    monkeypatch.setitem(sys.modules, kernels.__name__, kernels)
    monkeypatch.setitem(engines.MODULES, NAME, lambda: kernels)
    of = engines.engine_of
    monkeypatch.setattr(engines, "engine_of", lambda c: kernels if type(c).__name__ == "Series" else of(c))
    monkeypatch.setattr(evaluation, "engine_of", lambda column: verbs)
    for module, name in ((radix_selection, "on_host"), (linear, "on_host")):
        monkeypatch.setattr(module, name, host)  # they know the device by its not being numpy's
