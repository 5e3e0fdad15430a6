"""Dataclasses that travel without what they cached, also while another thread caches."""

from __future__ import annotations

import pickle
import sys
import threading
from dataclasses import dataclass

from tasks.core.pickled_fields import PickledFields


@dataclass(frozen=True)
class Pair(PickledFields):
    left: int
    right: str


def test_an_object_is_pickled_while_another_thread_caches() -> None:
    pair, done, before = Pair(1, "a"), threading.Event(), sys.getswitchinterval()

    def cache() -> None:
        while not done.is_set():
            for number in range(50):
                pair.__dict__[f"cached{number}"] = number
            for number in range(50):
                del pair.__dict__[f"cached{number}"]

    thread = threading.Thread(target=cache)
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        assert {pickle.dumps(pair) for _ in range(3000)} == {pickle.dumps(Pair(1, "a"))}
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(before)
