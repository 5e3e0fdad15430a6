"""Values on which the GPU and the CPU once differed: dates in milliseconds and in lists, zones without a name,
decimals, nulls alone, numbers below the normal range, signs of zeros. What stands here holds on either engine."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks import engines, ops
from tasks.dataset import Dataset
from tasks.engines.expression.interpreter import evaluate
from tasks.engines.expression.syntax import parse
from tasks.graph.node import as_node
from tasks.workflow import Workflow
from tests.frames import make_column, to_list
from tests.learning import applied, cut, rows

INDIA = timezone(timedelta(hours=5, minutes=30))
LEAP, OLD = date(2020, 2, 29), date(1969, 12, 31)
TIMES: dict[str, tuple[pa.DataType, Any, Any]] = {
    "date32": (pa.date32(), LEAP, OLD),
    "date64": (pa.date64(), LEAP, OLD),
    "time32[s]": (pa.time32("s"), time(1, 2, 3), time(0)),
    "timestamp[s]": (pa.timestamp("s"), datetime(2020, 2, 29, 1), datetime(1969, 12, 31)),
    "+05:30": (
        pa.timestamp("us", "+05:30"),
        datetime(2020, 2, 29, 1, tzinfo=INDIA),
        datetime(1969, 12, 31, tzinfo=INDIA),
    ),
}


def keyed(kind: str) -> pa.Table:
    """Four rows: a key twice, another one, null."""
    dtype, a, b = TIMES[kind]
    values = [a, a, b, None]
    lists = pa.array([[v] for v in values], pa.list_(dtype))
    return pa.table({"k": pa.array(values, dtype), "l": lists, "y": [1.0, 3.0, 8.0, 4.0]})


# Dates in milliseconds, times of seconds, zones of a fixed offset


@pytest.mark.parametrize("kind", TIMES)
def test_keys_are_known_again_when_a_workflow_is_loaded(kind: str, engine: str, tmp_path: Path) -> None:
    nodes = ["k"] >> ops.JoinGroupby(cont_cols=["y"], stats=["count", "sum"])
    nodes += ["k"] >> ops.TargetEncoding(target="y", kfold=1, p_smooth=0)
    nodes += ["k", "l"] >> ops.Categorify()
    table = keyed(kind)
    workflow = Workflow(nodes).fit(Dataset(table, engine=engine))
    workflow.save(tmp_path / "fitted")
    for known in (workflow, Workflow.load(tmp_path / "fitted")):
        assert known.state is not None
        found = applied(known.final, cut(table, 3), known.state, engine).to_pydict()
        assert found["k_count"] == [2, 2, 1, 1]
        assert found["k_y_sum"] == [4.0, 4.0, 8.0, 4.0]
        assert found["TE_k_y"] == [2.0, 2.0, 8.0, 4.0]
        assert found["k"] == [3, 3, 4, 1]
        assert found["l"] == [[3], [3], [4], [1]]


@pytest.mark.parametrize("kind", [name for name in TIMES if name != "time32[s]"])
def test_parts_of_times_of_every_kind(kind: str, engine: str) -> None:
    found = rows(["k"] >> ops.DateParts(["year", "month", "day", "weekday", "hour"]), keyed(kind), engine)
    hour = {"timestamp[s]": 1, "+05:30": 19}.get(kind, 0)
    leap = [2020, 2, 28, 4, hour] if kind == "+05:30" else [2020, 2, 29, 5, hour]
    old = [1969, 12, 30, 1, 18] if kind == "+05:30" else [1969, 12, 31, 2, 0]
    assert [list(row) for row in zip(*found.values(), strict=True)] == [leap, leap, old, [None] * 5]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "frame"])
def test_zones_of_an_offset_and_dates_in_milliseconds_go_through_a_job(kind: str, engine: str, tmp_path: Path) -> None:
    table = pa.table({"t": keyed("+05:30")["k"], "d": keyed("date64")["k"], "l": keyed("+05:30")["l"]})
    source: Any = table
    if kind == "parquet":
        source = str(tmp_path / "in.parquet")
        pq.write_table(table, source)
    if kind == "arrow":
        source = str(tmp_path / "in.arrow")
        with pa.ipc.new_file(source, table.schema) as file:
            file.write_table(table)
    nodes = as_node(["t", "d", "l"]) + (["t"] >> ops.Lambda(expression="_ >= '2020-02-28T19:30:00'", name="late"))
    nodes += ["t"] >> ops.Lambda(expression="where(_ is None, '2020-01-01', _)", name="some")
    nodes += ["t"] >> ops.FillMissing(datetime(1970, 1, 1, tzinfo=INDIA)) >> ops.Rename(name="full")
    workflow = Workflow(nodes >> ops.Filter("d is not None"))
    workflow.fit_transform(Dataset(source, engine=engine)).to_parquet(str(tmp_path / "out"), files=1, shuffle="none")
    (part,) = (tmp_path / "out").glob("part-*.parquet")
    found = pq.read_table(part)
    assert found.schema.field("t").type == pa.timestamp("us", "+05:30") == workflow.output_schema["t"].dtype
    assert found.schema.field("d").type == pa.date32() == workflow.output_schema["d"].dtype
    for name in ("t", "full", "some"):
        assert found[name].to_pylist() == table["t"].to_pylist()[:3]
    assert found["d"].to_pylist() == [LEAP, LEAP, OLD]
    assert found["l"].to_pylist() == table["l"].to_pylist()[:3]
    assert found["late"].to_pylist() == [True, True, False]


def same(column: Any) -> Any:
    return column


@pytest.mark.parametrize("kind", TIMES)
@pytest.mark.parametrize("name", ["k", "l"])
def test_functions_get_times_of_every_kind(kind: str, name: str, engine: str) -> None:
    found = rows([name] >> ops.Lambda(f"{__name__}:same"), keyed(kind), engine)
    assert found == {name: keyed(kind)[name].to_pylist()}


@pytest.mark.parametrize("text", ["2020-02-29T01:00:00", "2020-02-29 01:00:00"])
def test_casts_to_a_zone_of_an_offset(text: str, engine: str) -> None:
    column = make_column([text, None], "string", engine)
    found = evaluate(parse("cast(x, 'timestamp[us, tz=+05:30]')"), {"x": column})
    kernels = engines.engine(engine)
    assert kernels.host(found).to_pylist() == [datetime(2020, 2, 29, 6, 30, tzinfo=INDIA), None]


# Dates in lists


@pytest.mark.promise("one MurmurHash3 for CPU, GPU and every version; null has a bucket")
def test_dates_in_lists_are_hashed_like_dates(engine: str) -> None:
    """MurmurHash3 of 18321 and -1 as int64; in seconds the ids would be others."""
    table = pa.table(
        {
            "d": pa.array([LEAP, OLD, None], pa.date32()),
            "l": pa.array([[LEAP], [OLD, None], None], pa.list_(pa.date32())),
            "m": pa.array([[LEAP], [OLD, None], None], pa.list_(pa.date64())),
            "n": pa.array([18321, -1, None], pa.int64()),
        }
    )
    found = rows(["d", "l", "m", "n"] >> ops.HashBucket(1000), table, engine)
    lists, values = [[223], [712, 295], None], [223, 712, 295]
    assert found == {"d": values, "l": lists, "m": lists, "n": values}


def test_lists_of_dates_are_the_same_vocabulary_as_dates(engine: str) -> None:
    table = pa.table({"d": pa.array([LEAP, OLD]), "l": pa.array([[OLD, OLD], [LEAP]], pa.list_(pa.date32()))})
    assert rows([["d", "l"]] >> ops.Categorify(), table, engine) == {"d": [4, 3], "l": [[3, 3], [4]]}
    unseen = Workflow(["l"] >> ops.Categorify(num_buckets=50)).fit(Dataset(table.slice(0, 1), engine=engine))
    assert unseen.state is not None
    assert applied(unseen.final, cut(table, 5), unseen.state, engine)["l"].to_pylist() == [[52, 52], [25]]


# Nulls alone


@pytest.mark.parametrize("rest", [[], ["b", None]])
def test_texts_of_which_one_is_null_join_to_null(rest: list[str | None], engine: str) -> None:
    count = 1 + len(rest)
    table = pa.table(
        {"s": pa.array(["a", *rest]), "n": pa.nulls(count, pa.string()), "i": [*range(count)], "z": pa.nulls(count)}
    )
    found = rows([["s", "n"], ["n", "i", "s"], ["n", "n"], ["s", "z"]] >> ops.Cross(), table, engine)
    assert found == {name: [None] * count for name in ("s_n", "n_i_s", "n_n", "s_z")}
    columns = {name: make_column(table[name], None, engine) for name in ("s", "n")}
    for text in ("s + n", "n + s", "n + 'x'", "'x' + n", "s + n + s"):
        assert to_list(evaluate(parse(text), columns)) == [None] * count
    assert to_list(evaluate(parse("s + '-' + s"), columns)) == [t and f"{t}-{t}" for t in ["a", *rest]]


# Decimals


@pytest.mark.parametrize("bits", [32, 64, 128])
def test_decimals_of_any_width(bits: int, engine: str, tmp_path: Path) -> None:
    """Three row groups, of which one is all null, so that partitions of both of the GPU's readers are joined."""
    kind = {32: pa.decimal32, 64: pa.decimal64, 128: pa.decimal128}[bits](5, 2)
    values = [Decimal("1.50"), None, Decimal("-0.05"), Decimal("1.50")]
    column = pa.chunked_array([pa.array(values, kind), pa.nulls(4, kind), pa.array(values[::-1], kind)])
    table = pa.table({"x": column, "n": range(12)})
    nodes = as_node(["x", "n"]) + (["x"] >> ops.Categorify() >> ops.Rename(name="id"))
    nodes += ["x"] >> ops.HashBucket(1000) >> ops.Rename(name="bucket")
    nodes += ["x"] >> ops.JoinGroupby(cont_cols=["n"], stats=["count", "sum"])
    sources: list[Any] = [table]
    if bits == 128:
        pq.write_table(table, tmp_path / "in.parquet", row_group_size=4)
        sources.append(str(tmp_path / "in.parquet"))
    for source in sources:
        made = Workflow(nodes).fit_transform(Dataset(source, engine=engine, partition_size=100))
        made.to_parquet(str(tmp_path / "out"), files=1, shuffle="full", on_existing="replace")
        (part,) = (tmp_path / "out").glob("part-*.parquet")
        found = pq.read_table(part).sort_by("n")
        assert found.schema.field("x").type == pa.decimal128(5, 2)
        assert found["x"].to_pylist() == column.to_pylist()
        assert found["id"].to_pylist() == [3, 1, 4, 3, 1, 1, 1, 1, 3, 4, 1, 3]
        assert found["x_count"].to_pylist() == [4, 6, 2, 4, 6, 6, 6, 6, 4, 2, 6, 4]
        assert found["bucket"].to_pylist() == [547, 295, 66, 547, 295, 295, 295, 295, 547, 66, 295, 547]


# Numbers below the normal range, and zeros


TINY = [1.401298464324817e-45, -5.877471754111438e-39, 0.0, None, 1.0]  # 2^-149 and -2^-127, which float32 holds


@pytest.mark.parametrize("dtype", [pa.float32(), pa.float64()], ids=str)
def test_numbers_below_the_normal_range_stay(dtype: pa.DataType, engine: str) -> None:
    table = pa.table({"x": pa.array(TINY, dtype), "y": [1, 2, 3, 4, 5]})
    assert rows(["x"] >> ops.Clip(max_value=0.5), table, engine)["x"] == [*TINY[:4], 0.5]
    assert rows(["x"] >> ops.FillMissing(2.0), table, engine)["x"] == [*TINY[:3], 2.0, 1.0]
    assert rows(["x"] >> ops.Lambda(expression="_ * 2"), table, engine)["x"] == [t and 2 * t for t in TINY]
    assert rows(["x"] >> ops.Lambda(expression="abs(_)"), table, engine)["x"] == [t and abs(t) for t in TINY]
    assert rows(["x"] >> ops.Lambda(expression="cast(_, 'float32')"), table, engine)["x"] == TINY
    truth = [True, True, False, None, True]
    for text in ("_ != 0", "cast(_, 'bool')"):
        assert rows(["x"] >> ops.Lambda(expression=text), table, engine)["x"] == truth
    assert rows(["x"] >> ops.Bucketize([-1e-40, 1e-46, 0.5]), table, engine)["x"] == [2, 0, 1, None, 3]
    assert rows(["x"] >> ops.Categorify(), table, engine)["x"] == [5, 3, 4, 1, 6]
    assert rows(["x"] >> ops.Filter("x > 0 and x < 1e-40"), table, engine)["x"] == TINY[:1]
    assert rows(["x"] >> ops.LogOp(), table, engine)["x"][:3] == TINY[:3]
    sums = rows(["y"] >> ops.JoinGroupby(cont_cols=["x"], stats=["sum", "min"]), table, engine)
    assert sums["y_x_sum"] == [*TINY[:3], sums["y_x_sum"][3], 1.0]
    assert sums["y_x_min"] == TINY
    ids = rows(["x"] >> ops.HashBucket(1000), table, engine)["x"]
    assert ids == [815, 391, 676, 295, 556]


def test_results_below_the_normal_range_are_not_zero(engine: str) -> None:
    column = make_column([1e-40, -1e-40, 2e-38], "float64", engine)
    narrow = evaluate(parse("cast(x, 'float32')"), {"x": column})
    assert to_list(narrow) == [9.99994610111476e-41, -9.99994610111476e-41, 2.0000000102211272e-38]
    assert to_list(evaluate(parse("x / 4"), {"x": narrow})) == [
        2.49998652527869e-41, -2.49998652527869e-41, 5.000000025552818e-39
    ]  # fmt: skip
    smallest = make_column([5e-324, 1e-310], "float64", engine)
    assert to_list(evaluate(parse("x * 3"), {"x": smallest})) == [1.5e-323, 3e-310]


def test_the_sign_of_a_zero_is_the_divisors(engine: str) -> None:
    columns = {
        "a": make_column([-100.0, 100.0, 0.0, -0.0, -7.0, 7.0], "float64", engine),
        "b": make_column([10.0, -10.0, -3.0, 3.0, 2.0, -2.0], "float64", engine),
    }
    inf = float("inf")
    assert to_list(evaluate(parse("1 / (a % b)"), columns)) == [inf, -inf, -inf, inf, 1.0, -1.0]
    assert to_list(evaluate(parse("1 / ((-100) % b)"), columns))[:2] == [inf, -inf]
    assert [1 / x if x else np.copysign(inf, x) for x in (-100.0 % 10.0, 100.0 % -10.0)] == [inf, -inf]


@pytest.mark.gpu
def test_cupy_has_what_its_flush_to_zero_is_taken_out_of() -> None:
    """`tasks.engines.gpu.kernels.denormals` depends on two names of CuPy that are not public."""
    from cupy.cuda import compiler

    engines.engine("cudf")
    assert compiler._NVRTCProgram.compile.keeps_denormals
    assert compiler._get_cupy_cache_key().endswith(" denormals")
