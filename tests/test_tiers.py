"""A plain test starts no process and no server."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests import tiers


def bind() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))


STARTS: dict[str, Callable[[], Any]] = {
    "a program": lambda: subprocess.run(["true"]),
    "a fork": os.fork,
    "a spawned process": lambda: multiprocessing.get_context("spawn").Process(target=bind).start(),
    "a server": bind,
}


@pytest.mark.parametrize("start", STARTS)
def test_what_needs_the_mark_is_refused(start: str, engine: str) -> None:
    if engine == "cudf":
        pytest.skip("compilers of GPU code are processes: nothing is refused")
    with pytest.raises(RuntimeError, match="needs the mark `system`"):
        STARTS[start]()
    assert tiers.starts  # the test would fail, had its code caught the error
    tiers.starts.clear()


@pytest.mark.system
def test_with_the_mark_it_is_not() -> None:
    subprocess.run(["true"], check=True)
    bind()
