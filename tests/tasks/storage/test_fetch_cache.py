"""What text readers fetch is kept on this host: each block once, and never anything but the object's bytes."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.core.plan import File
from tasks.errors import DataError
from tasks.storage import fetch_cache
from tasks.storage.fetch_cache import BLOCK, FetchCache
from tasks.storage.local_store import LocalStore
from tasks.storage.own_files import WORK
from tasks.storage.ranges import Range

SIZE = 3 * BLOCK + 1_000


class CountedStore(LocalStore):
    """A local folder whose reads are counted."""

    def __init__(self) -> None:
        self.fetched: list[Range] = []

    def read_ranges(self, file: File, ranges: Sequence[Range]) -> list[memoryview]:
        self.fetched += ranges
        return super().read_ranges(file, ranges)


@pytest.fixture
def content() -> bytes:
    return np.random.default_rng(0).bytes(SIZE)


@pytest.fixture
def file(tmp_path: Path, content: bytes) -> File:
    (tmp_path / "a.csv").write_bytes(content)
    return LocalStore().stat(str(tmp_path / "a.csv"))


@pytest.fixture
def cache(tmp_path: Path) -> FetchCache:
    return FetchCache(tmp_path / "kept")


def test_each_block_is_fetched_once(cache: FetchCache, file: File, content: bytes, tmp_path: Path) -> None:
    store = CountedStore()
    assert cache.read(store, file, 10, 20) == content[10:20]
    assert cache.read(store, file, SIZE - 5, SIZE + 100) == content[-5:]
    assert store.fetched == [(0, BLOCK), (3 * BLOCK, SIZE)]
    assert cache.read(store, file, 0, SIZE) == content
    assert store.fetched[2:] == [(BLOCK, 3 * BLOCK)]
    assert FetchCache(tmp_path / "kept").read(store, file, 5, SIZE - 5) == content[5:-5]  # of another process
    assert len(store.fetched) == 3
    assert cache.read(store, file, SIZE, SIZE + 1) == b""
    names = [f"fetched/{path.name}" for path in (tmp_path / "kept").iterdir()]
    assert all(WORK.fullmatch(name) for name in names)


def test_any_ranges_in_any_order_are_the_bytes_of_the_file(cache: FetchCache, file: File, content: bytes) -> None:
    draws = np.random.default_rng(1)
    for _ in range(30):
        start, stop = sorted(int(i) for i in draws.integers(0, SIZE, 2))
        assert cache.read(CountedStore(), file, start, stop) == content[start:stop]


def test_of_a_file_that_changed_no_byte_is_fetched(cache: FetchCache, file: File, content: bytes) -> None:
    store = CountedStore()
    cache.read(store, file, 0, 10)
    Path(file.path).write_bytes(content[::-1])
    assert cache.read(store, file, 0, BLOCK) == content[:BLOCK]  # all of one version
    with pytest.raises(DataError, match="changed during the run"):
        cache.read(store, file, 0, SIZE)
    now = store.stat(file.path)
    assert cache.read(store, now, 0, SIZE) == content[::-1]


def full_disk(descriptor: int, part: Any, place: int) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def nothing_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_cache, "FREE", 1.1)


def no_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", full_disk)


@pytest.mark.parametrize("limit", [nothing_free, no_space])
def test_what_cannot_be_kept_is_fetched_again(
    cache: FetchCache, file: File, content: bytes, limit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch)
    store = CountedStore()
    for _ in range(2):
        assert cache.read(store, file, 10, SIZE) == content[10:]
    assert store.fetched == [(0, SIZE)] * 2


def test_a_folder_that_cannot_be_made_is_done_without(file: File, content: bytes) -> None:
    assert FetchCache(Path("/proc/none")).read(CountedStore(), file, 10, 20) == content[10:20]
