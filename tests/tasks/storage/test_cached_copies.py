"""Copies are written once, stay while they are in use, and go, the oldest first, where room is needed."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tasks.storage.cached_copies import ABANDONED_SECONDS, CachedCopies


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.suffix != ".lock"}


def test_of_many_at_once_one_writes(tmp_path: Path) -> None:
    copies = CachedCopies(tmp_path / "copies", 100)
    written: list[Path] = []

    def write(path: Path) -> None:
        written.append(path)
        time.sleep(0.05)
        path.write_bytes(b"12345")

    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: copies.fetch("a", 5, write), range(8)))
    assert len(written) == 1
    assert {one.path.read_bytes() for one in made} == {b"12345"}


def test_the_oldest_go_but_for_those_in_use(tmp_path: Path) -> None:
    copies = CachedCopies(tmp_path, 10)
    in_use = copies.fetch("a", 5, lambda path: path.write_bytes(b"12345"))
    for name in ("b", "c"):
        copies.fetch(name, 5, lambda path: path.write_bytes(b"12345")).close()
    assert names(tmp_path) == {"a", "c"}
    in_use.close()
    os.utime(tmp_path / "a.lock", (1, 1))
    copies.fetch("d", 5, lambda path: path.write_bytes(b"12345")).close()
    assert names(tmp_path) == {"c", "d"}


def test_what_fails_or_was_killed_leaves_nothing(tmp_path: Path) -> None:
    copies = CachedCopies(tmp_path, 10)

    def fail(path: Path) -> None:
        path.write_bytes(b"12")
        raise ConnectionError

    with pytest.raises(ConnectionError):
        copies.fetch("a", 5, fail)
    assert names(tmp_path) == set()
    (tmp_path / "partial-old").mkdir()
    (tmp_path / "partial-new").mkdir()
    os.utime(tmp_path / "partial-old", (1, time.time() - ABANDONED_SECONDS - 1))
    copies.fetch("b", 5, lambda path: path.write_bytes(b"12345")).close()
    assert names(tmp_path) == {"b", "partial-new"}
