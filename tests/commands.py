"""The command `rowmill` in this process, for tests: its exit status and what it prints, and nothing stays behind."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask
import distributed  # noqa: F401 - without its defaults, the end of a `set` would remove them
from click.testing import Result
from rowmill.cli import app
from typer.testing import CliRunner

from flows.commands import launch
from infra.workers import forkserver

DASK_LOG = "logging.distributed"  # the setting that a command changes


def rowmill(*words: object, folder: Path | None = None, **variables: str) -> Result:
    """Run the command with these words as people type it, in a folder and with variables of its own.

    A run starts no fork server for its workers: it would have the variables of this command, and all later clusters of
    this process would have to do without one. Where the fixture `cluster` has begun one, the workers are its forks.

    Returns:
        The result with `exit_code`, `stdout`, `stderr`, and `output`, which has both.
    """
    with unchanged(), patch.object(forkserver, "start", lambda modules=(): False):
        os.chdir(folder or Path.cwd())
        os.environ.update({"COLUMNS": "200", **variables})
        return CliRunner().invoke(app, [str(word) for word in words])


@contextmanager
def unchanged() -> Iterator[None]:
    """Undo, when the block ends, what it changes in this process: folder, variables, Prefect's settings, search path,
    modules of that path, and logging."""
    folder, runs = Path.cwd(), len(launch._running)
    with ExitStack() as undone:
        undone.enter_context(same_variables())
        undone.enter_context(same_modules())
        undone.enter_context(same_logging())
        undone.enter_context(dask.config.set({DASK_LOG: dask.config.get(DASK_LOG, None)}))
        try:
            yield
        finally:
            os.chdir(folder)
            del launch._running[runs:]


@contextmanager
def same_variables() -> Iterator[None]:
    before = dict(os.environ)
    try:
        yield
    finally:
        changed = {name for name, _ in set(os.environ.items()) ^ set(before.items())}
        for name in changed:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]
        if any(name.startswith("PREFECT_") for name in changed):
            from prefect.context import refresh_global_settings_context

            refresh_global_settings_context()


@contextmanager
def same_modules() -> Iterator[None]:
    """Forget the folders that the block adds to the search path, and the modules that it finds there."""
    path, modules = [*sys.path], set(sys.modules)
    try:
        yield
    finally:
        added = [Path(one) for one in sys.path if one not in path]
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None)
            if file and any(Path(file).is_relative_to(one) for one in added):
                del sys.modules[name]


@contextmanager
def same_logging() -> Iterator[None]:
    raises = logging.raiseExceptions
    named = logging.root.manager.loggerDict.values()
    loggers = [logging.root, *(one for one in named if isinstance(one, logging.Logger))]
    handlers = {one: [*one.handlers] for one in loggers}
    levels: dict[Any, int] = {one: one.level for one in loggers}
    levels |= {handler: handler.level for of_logger in handlers.values() for handler in of_logger}
    try:
        yield
    finally:
        logging.raiseExceptions = raises
        for logger, its_handlers in handlers.items():
            logger.handlers[:] = its_handlers
        for one, level in levels.items():
            if one.level != level:
                one.setLevel(level)
