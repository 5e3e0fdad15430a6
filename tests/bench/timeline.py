"""Where the time of a flow run goes: the tasks of every stage as the scheduler saw them, and what lies around them."""

from __future__ import annotations

import gc
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from distributed import Client


@contextmanager
def recorded(where: dict[str, Any], path: Path | None) -> Iterator[None]:
    """Write what the tasks of a scheduler and the stages of this process' flow did meanwhile to `path`, and print a
    short table of it; nothing where `path` is None.

    `garbage` has the garbage collections of the workers that lasted over a millisecond: no thread works meanwhile.
    """
    if path is None:
        yield
        return
    from flows.run import session
    from flows.run import stages as run_stages

    stages: list[dict[str, Any]] = []
    run_stage = run_stages.run_stage

    def timed(function: Any, *args: Any) -> Any:
        start = time.time()
        result = run_stage(function, *args)
        stages.append({"stage": function.name, "submitted": start, "got": time.time(),
                       **{name: getattr(result, name) for name in ("began", "ended", "seconds")}})  # fmt: skip
        return result

    from infra.clusters.encryption import security_of
    from infra.clusters.model import Cluster

    security = security_of(Cluster(**where))
    with Client(where["address"], security=security, set_as_default=False) as client:
        client.get_task_stream(count=0)  # from here on the scheduler keeps them
        client.run(_watch_garbage)
        start = time.time()
        with mock.patch.object(session, "run_stage", timed):
            yield
        tasks = [_short(task) for task in client.get_task_stream(start=start)]
        garbage = client.run(_garbage_seen)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"start": start, "stop": time.time(), "stages": stages, "tasks": tasks,
                                "garbage": garbage}))  # fmt: skip
    print("\n".join([*lines(stages, tasks, start), *_pauses(garbage, start)]), flush=True)


_collections: list[tuple[int, float, float]] = []  # of a worker: generation, start, stop


def _watch_garbage() -> None:
    """In a worker: note from now on when garbage is collected."""
    gc.callbacks.append(_collected)


def _garbage_seen() -> list[tuple[int, float, float]]:
    """What was noted, which ends with this."""
    gc.callbacks.remove(_collected)
    found = [entry for entry in _collections if entry[2] - entry[1] > 0.001]
    _collections.clear()
    return found


def _collected(phase: str, told: dict[str, int]) -> None:
    if phase == "start":
        _collections.append((told["generation"], time.time(), 0.0))
    elif _collections:
        generation, start, _ = _collections.pop()
        _collections.append((generation, start, time.time()))


def _pauses(garbage: dict[str, list[tuple[int, float, float]]], start: float) -> list[str]:
    """A line for each worker in which garbage collections made threads wait."""
    return [
        f"garbage {worker[-5:]}: " + ", ".join(f"{1e3 * (b - a):.0f} ms at {a - start:.3f} ({generation})"
                                               for generation, a, b in found)
        for worker, found in garbage.items() if found
    ]  # fmt: skip


def _short(task: dict[str, Any]) -> dict[str, Any]:
    steps = [[s["action"], s["start"], s["stop"]] for s in task["startstops"]]
    return {"key": str(task["key"]), "worker": task["worker"], "thread": task["thread"], "nbytes": task["nbytes"],
            "steps": steps}  # fmt: skip


def lines(stages: list[dict[str, Any]], tasks: list[dict[str, Any]], start: float) -> list[str]:
    """A line for each stage, and one for each kind of its tasks on each worker; seconds from the flow's start."""
    found = []
    for stage in stages:
        moments = ", ".join(f"{name} {stage[name] - start:.3f}" for name in ("submitted", "began", "ended", "got"))
        found.append(f"{stage['stage']}: {moments}; work {stage['seconds']:.3f}")
        kinds: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for task in tasks:
            if stage["submitted"] <= task["steps"][0][1] < stage["got"]:
                kinds[task["key"].rpartition("-")[0].partition("-")[0], task["worker"]].append(task)
        found += [
            _line(kind, worker, [step for task in group for step in task["steps"]], len(group), start)
            for (kind, worker), group in sorted(kinds.items(), key=lambda item: item[1][0]["steps"][0][1])
        ]
    return found


def _line(kind: str, worker: str, steps: list[Any], tasks: int, start: float) -> str:
    first, last = min(s[1] for s in steps) - start, max(s[2] for s in steps) - start
    compute = sorted(1e3 * (stop - begin) for action, begin, stop in steps if action == "compute") or [0]
    moved = [stop - begin for action, begin, stop in steps if action == "transfer"]
    return (
        f"  {kind[:24]:24} {worker[-5:]} {tasks:5} tasks {first:7.3f} to {last:7.3f}, each "
        f"{compute[len(compute) // 2]:6.0f} ms, longest {compute[-1]:6.0f}, {len(moved):4} moves {sum(moved):6.3f} s"
    )
