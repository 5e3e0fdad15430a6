"""Places on a GPU: a few that compute, and no more bytes at work than fit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import pytest

from tasks import engines
from tasks.engines.admission import Places


class Crowd:
    """How many works are going on at once, and how many bytes they take: the most that was seen.

    They stay until as many are in as are expected, and a little longer for those that should not come.
    """

    def __init__(self, places: Places, expected: int) -> None:
        self.places, self.expected, self.lock = places, expected, threading.Lock()
        self.now, self.most = [0, 0], [0, 0]
        self.all_in = threading.Event()

    def work(self, nbytes: int, **options: object) -> None:
        with self.places.take_place(nbytes, **options):  # type: ignore[arg-type]
            with self.lock:
                self.now = [self.now[0] + 1, self.now[1] + nbytes]
                self.most = [max(pair) for pair in zip(self.now, self.most, strict=True)]
                if self.now[0] == self.expected:
                    self.all_in.set()
            self.all_in.wait(10)
            time.sleep(0.02)
            with self.lock:
                self.now = [self.now[0] - 1, self.now[1] - nbytes]


@pytest.mark.parametrize(
    ("nbytes", "options", "most"),
    [
        (1, {}, [2, 2]),  # two places compute on a GPU of less than 30 GiB
        (1, {"computing": False}, [12, 12]),
        (3_000_000_000, {"computing": False}, [1, 3_000_000_000]),  # half of 8 GB is for work
        (3_000_000_000, {"computing": False, "share": 1.0}, [2, 6_000_000_000]),
        (9_000_000_000, {}, [1, 9_000_000_000]),  # too large: alone
    ],
)
def test_no_more_at_once_than_places_and_bytes(nbytes: int, options: dict[str, object], most: list[int]) -> None:
    crowd = Crowd(Places(lambda: 8 * 10**9), expected=most[0])
    with ThreadPoolExecutor(12) as threads:
        for future in [threads.submit(crowd.work, nbytes, **options) for _ in range(12)]:
            future.result()
    assert crowd.most == most
    assert crowd.now == [0, 0]


def test_a_failure_gives_the_place_back() -> None:
    places = Places(lambda: 8 * 10**9)
    for _ in range(3):
        with pytest.raises(MemoryError), places.take_place(9_000_000_000):
            raise MemoryError


@pytest.mark.parametrize(
    "place", [lambda: engines.computing("cudf", 1), lambda: engines.writing("cudf", 1, alone=False)]
)
def test_what_fails_waits_for_the_gpu_before_others_get_its_memory(
    place: Callable[[], AbstractContextManager[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[str] = []

    def lost() -> None:
        waited.append("waited")
        raise RuntimeError("the GPU is lost")

    monkeypatch.setattr(engines, "_places", Places(lambda: 8 * 10**9))
    monkeypatch.setattr(engines, "synchronize", lost)
    with pytest.raises(ValueError, match="the operator's"), place():
        raise ValueError("the operator's")
    assert waited == ["waited"]
    with place():
        pass
    assert waited == ["waited"]
