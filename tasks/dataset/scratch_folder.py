"""A folder of temporary files, which lives as long as the rows that are in it."""

from __future__ import annotations

import shutil
import weakref


class ScratchFolder:
    """A folder of temporary files, removed with the last reference in the process that made it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.remove = weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (self.path,)
