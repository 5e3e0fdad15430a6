"""Between the GPU and host memory, and back, in steps of a small pinned buffer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tasks import engines
from tasks.shuffle.host_pieces import join_on_host, on_device, to_host

pytestmark = pytest.mark.gpu
ROWS = 1000


@pytest.fixture(params=[100, 8 << 20], ids=["small", "large"])
def steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.engines.gpu.kernels import pinned_copies

    monkeypatch.setattr(pinned_copies, "STAGE", request.param)
    monkeypatch.setattr(pinned_copies, "_free", [])


def table(rows: int = ROWS) -> pa.Table:
    rng = np.random.default_rng(3)
    some = rng.random(rows) < 0.2
    times = rng.integers(0, 1 << 40, rows)
    return pa.table({
        "u8": pa.array(rng.integers(0, 255, rows), pa.uint8()),
        "i16": pa.array(rng.integers(-9, 9, rows), pa.int16(), mask=some),
        "i64": rng.integers(-(1 << 60), 1 << 60, rows),
        "f32": pa.array(rng.normal(0, 1, rows), pa.float32()),
        "f64": pa.array(rng.normal(0, 1, rows), mask=some),
        "b": pa.array(rng.random(rows) < 0.5, mask=some),
        "t": pa.array(times, pa.timestamp("us")),
        "tn": pa.array(times, pa.timestamp("ms"), mask=some),
        "d": pa.array(times, pa.duration("ns")),
        "s": pa.array([None if gone else "ü" * (i % 4) for i, gone in enumerate(some)], pa.string()),
        "l": pa.array([None if gone else list(range(i % 3)) for i, gone in enumerate(some)], pa.list_(pa.int64())),
    })  # fmt: skip


def pieces(rows: int = ROWS) -> Any:
    engine, rng = engines.engine("cudf"), np.random.default_rng(4)
    order, edges = engine.xp.asarray(rng.permutation(rows)), np.linspace(0, rows, 6).astype(np.int64)
    return engine.cut(engine.from_arrow(table(rows)), order, edges)


def same(one: Any, other: Any) -> bool:
    engine = engines.engine("cudf")
    found, wanted = (engine.host_table(engine.assemble(list(parts), 0, ROWS)) for parts in (one, other))
    return bool(found.equals(wanted))


@pytest.mark.parametrize("ranges", [(0, 5), (1, 3), (2, 2), (4, 5)])
def test_pieces_come_back_as_they_went(steps: None, ranges: tuple[int, int]) -> None:
    on_gpu = pieces()
    wanted, found = on_gpu.ranges(*ranges), to_host(on_gpu, "cudf").ranges(*ranges)
    assert found.counts.tolist() == wanted.counts.tolist()
    assert same(on_device([found]), [wanted])
    assert same(on_device([to_host(wanted, "cudf")]), [wanted])


def test_several_go_back_as_one(steps: None) -> None:
    parts = [pieces().ranges(i, i + 2) for i in (3, 0, 1)]
    (joined,) = join_on_host([to_host(part, "cudf") for part in parts])
    assert same(on_device([joined]), parts)


def test_threads_have_buffers_of_their_own(steps: None) -> None:
    def around(_: int) -> bool:
        on_gpu = pieces()
        return same(on_device([to_host(on_gpu, "cudf")]), [on_gpu])

    with ThreadPoolExecutor(6) as threads:
        assert all(threads.map(around, range(24)))


def test_pieces_without_rows(steps: None) -> None:
    nothing = engines.engine("cudf").cut(
        engines.engine("cudf").from_arrow(table(0)), engines.engine("cudf").xp.zeros(0, "uint64"), np.array([0, 0])
    )
    assert same(on_device([to_host(nothing, "cudf")]), [nothing])
