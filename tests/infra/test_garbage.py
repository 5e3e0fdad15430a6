"""What was imported is not looked through again by Python's garbage collection."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.system

PROGRAM = """
import gc
import weakref
from infra.workers.garbage import loading

whole = []
gc.callbacks.append(lambda phase, told: whole.append(told["generation"]) if phase == "start" else None)
try:
    with loading():
        import decimal
        made = [[] for _ in range(100_000)]
        raise ValueError
except ValueError:
    print(whole, gc.isenabled(), gc.get_freeze_count() > 100_000, gc.is_tracked(made))
gc.disable()
with loading():
    pass
print(gc.isenabled())
gc.enable()


class Run:
    pass


for number in range(2):
    run = Run()
    run.itself = run
    gone = weakref.ref(run)
    del run
    with loading():
        pass
    gc.collect()
    print(gone())
"""


def test_what_a_block_imports_is_left_alone_and_all_else_collected_as_before() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[] True True True", "False", "None", "None"]
