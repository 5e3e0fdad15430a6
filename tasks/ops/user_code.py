"""Functions and classes of users' own modules: which modules may be named, and the import by path."""

from __future__ import annotations

import importlib
import os
import re
from types import ModuleType
from typing import Any

from tasks.errors import HostError, JobError, RowmillError

VARIABLE = "ROWMILL_FUNCTION_MODULES"


def read_allowed_modules() -> tuple[str, ...] | None:
    """The modules that jobs may name, from the host's variable (separated by commas or colons); None: all modules."""
    text = os.environ.get(VARIABLE)
    return None if text is None else tuple(name for name in re.split(r"[,:\s]+", text) if name)


def is_allowed(module: str) -> bool:
    """Whether jobs may name a module: the host's list has it, or a package that contains it."""
    modules = read_allowed_modules()
    return modules is None or any(module == name or module.startswith(f"{name}.") for name in modules)


def check_module(path: str) -> None:
    """Raise a HostError for `module:name` if this host does not allow the module; nothing is imported before."""
    if not is_allowed(path.partition(":")[0]):
        raise _make_refusal(path, "")


def import_path(path: str) -> Any:
    """Import the object `module:name`; a HostError says what is missing or fails, or that the module is not allowed."""
    check_module(path)
    module_name, _, attribute = path.partition(":")
    try:
        named: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            named = getattr(named, part)
            if isinstance(named, ModuleType) and not is_allowed(named.__name__):
                raise _make_refusal(path, f"it is in the module {named.__name__}; ")
    except RowmillError:
        raise
    except Exception as error:  # of a user's module it may be any
        raise HostError(
            f"{path!r} cannot be imported",
            why=f"{type(error).__name__}: {error}",
            do="write module:name of an object that every worker can import",
        ) from None
    home = getattr(named, "__module__", None)
    if isinstance(home, str) and not is_allowed(home):  # an allowed module may import objects of others
        raise _make_refusal(path, f"it comes from the module {home}; ")
    return named


def users_code(op: object) -> str | None:
    """What an operator runs that is not rowmill's: its function, or its class, as an import path; else None."""
    called = getattr(op, "function", None)
    if called is None and not type(op).__module__.startswith("tasks."):
        called = type(op)
    if called is None or isinstance(called, str):
        return called
    return f"{getattr(called, '__module__', '')}:{getattr(called, '__qualname__', type(called).__name__)}"


def refuse_reordered(result: Any, frame: Any) -> None:
    """Raise a JobError for a Series whose index says that its rows are in another order than the frame's.

    Values are taken by position: where a function sorted the rows, each would land on another row.
    """
    if not (hasattr(result, "iloc") and hasattr(frame, "iloc")) or result.index.equals(frame.index):
        return
    if result.index.sort_values().equals(frame.index):
        raise JobError(
            "the function returned its rows in another order",
            why="the Series has the labels of its rows in another order, and values are taken by position",
            do="return result.sort_index()",
        )


def _make_refusal(path: str, where: str) -> HostError:
    modules = read_allowed_modules() or ()
    listed = f"only from {', '.join(modules)}" if modules else "from no module"
    return HostError(
        f"{path!r} may not be used",
        why=f"{where}runs may use own functions and operators {listed} ({VARIABLE} of the host)",
        do="ask whoever runs the host to add the module there, or use an expression or a built-in operator",
    )
