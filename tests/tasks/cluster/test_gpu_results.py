"""What travels between workers with GPUs: few buffers of the device, and the same tables again."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tasks.cluster.transfer import gpu_setup

pytestmark = pytest.mark.gpu

COLUMNS = pa.table({
    "number": pa.array([1, None, 3, 4], pa.int64()),
    "text": pa.array(["a", None, "", "dé"]),
    "list": pa.array([[1, 2], [], None, [3]], pa.list_(pa.int32())),
    "time": pa.array([0, 1, None, 3], pa.timestamp("us", "Europe/Berlin")),
    "day": pa.array([datetime.date(2020, 1, d) for d in (1, 2, 3, 4)]),
    "price": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("2.25"), decimal.Decimal("0.01")]),
    "real": pa.array([0.5, None, -1.0, 2.0], pa.float32()),
})  # fmt: skip


@pytest.fixture(autouse=True)
def as_in_a_worker() -> None:
    gpu_setup.prepare("cudf")


def sent(value: Any, kind: str) -> tuple[Any, int]:
    """(the value as another worker has it, the number of its frames)."""
    from distributed.protocol import deserialize, serialize

    header, frames = serialize(value, serializers=(kind,), on_error="raise")
    assert header["serializer"] == kind
    return deserialize(header, frames), len(frames)


@pytest.mark.parametrize("kind", ["cuda", "dask"])
@pytest.mark.parametrize("ranges", [(0, 4), (1, 3), (2, 2)])
def test_pieces_are_one_buffer(kind: str, ranges: tuple[int, int]) -> None:
    from tasks import engines
    from tasks.shuffle.pieces import PackedPieces, PartitionPieces

    engine = engines.engine("cudf")
    columns = engine.from_arrow(COLUMNS)
    whole = engine.cut(columns, engine.xp.asarray([6, 1, 3, 2]), np.array([0, 2, 4, 6, 8]))
    assert whole.counts.tolist() == [1, 2, 0, 1]
    wanted = whole.ranges(*ranges)
    (found, frames), (cut, _) = sent(wanted, kind), sent(PartitionPieces([wanted], 4, 4), kind)
    assert frames == 1
    assert (type(cut), cut.rows_in, cut.rows_out) == (PartitionPieces, 4, 4)
    for pieces in (found, cut.pieces[0], wanted.pack_rows()):
        for one, other in zip(engine.pieces_to_host(pieces), engine.pieces_to_host(wanted), strict=True):
            assert one.equals(other) if isinstance(one, pa.Table) else one.tolist() == other.tolist()
    packed = PackedPieces([wanted.pack_rows()])
    packed.first, packed.last = ranges
    again, _ = sent(packed, kind)
    assert (type(again), again.first, again.last) == (PackedPieces, *ranges)


@pytest.mark.parametrize("kind", ["cuda", "dask"])
def test_tables_that_were_learned_are_one_buffer(kind: str) -> None:
    import cudf

    from tasks.learning.large_table_types import Split

    tables = tuple(cudf.DataFrame.from_arrow(COLUMNS.slice(i, 4 - i)) for i in range(4))
    found, frames = sent(Split((*tables, cudf.DataFrame({"x": [1.0]}))), kind)
    assert frames == 1
    assert [len(table) for table in found.tables] == [4, 3, 2, 1, 1]
    found, frames = sent(Split(tables), kind)
    assert frames == 1
    assert all(t.to_arrow().equals(w.to_arrow()) for t, w in zip(found.tables, tables, strict=True))
