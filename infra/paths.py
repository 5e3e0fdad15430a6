"""Paths as a job or a file of deployments names them."""

from __future__ import annotations

import os


def expand_home(path: str) -> str:
    """The path with a home in the place of `~`; as it is where the home is unknown, of which `Path` makes a raw error.

    >>> expand_home("~nobody-of-this-name/x")
    '~nobody-of-this-name/x'
    """
    return os.path.expanduser(path)  # noqa: PTH111
