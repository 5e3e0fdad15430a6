"""Outputs that a command works on, by path or URL: of one on an object store, the command works on its mirror."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path


@contextmanager
def open_output(out: str, storage_options: str | None, changes: bool = False) -> Iterator[Path]:
    """The folder of an output or a version of one; errors of the block name the URL.

    `changes`: the block changes notes of an output on an object store. It has the lock of the output, and what was
    changed is carried over at its end.
    """
    from tasks.errors import RowmillError, rewrite_error
    from tasks.storage.allowed_roots import is_local
    from tasks.storage.credentials import COMMAND, storage
    from tasks.storage.output_mirror import find_output, with_urls
    from tasks.storage.staging import Staging

    if is_local(out):
        yield Path(out.removeprefix("file://"))
        return
    root, folder = find_output(out, storage(storage_options, COMMAND))
    try:
        with Staging(root).hold_lock() if changes else nullcontext():
            yield folder
    except RowmillError as error:
        renamed = rewrite_error(error, with_urls)
    else:
        return
    raise renamed  # without the error that names paths of the mirror
