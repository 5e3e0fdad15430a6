"""Profiles of all rows against plain Python, on tables of every type, in any partitions; resume keeps them."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.job.job import make_job
from tasks import engines
from tasks.cluster.local_pool import LocalPool
from tasks.dataset import Dataset
from tasks.engines.algorithms import column_sketch
from tasks.engines.hashing import murmur3
from tasks.errors import DataError
from tasks.gate.locate import find_files
from tasks.graph import row_sample
from tasks.graph.seen import Seen, merge_seen, parse_seen
from tasks.job import profiles
from tasks.job.output_check import list_damages
from tasks.manifest import Manifest
from tasks.profile.column_figures import make_column_profile, make_column_profiles
from tasks.profile.output_profile import ColumnProfile, Profile, StepProfile, bin_edges, bin_of
from tasks.stages import ingest
from tasks.stages import statistics as statistics_stage
from tasks.storage.documents import parse_document
from tasks.storage.own_files import own_output
from tests.stages import run_stages

ROWS = 6_000
BLOCKS = [0, 1_000, 2_500, 2_500, 4_000, ROWS]  # one is empty


def columns() -> dict[str, pa.Array]:
    rng = np.random.default_rng(7)
    hole = rng.random(ROWS) < 0.2
    normal = rng.normal(5, 2, ROWS)
    few = rng.integers(0, 9, ROWS)
    far = np.where(rng.random(ROWS) < 0.01, np.inf, np.where(rng.random(ROWS) < 0.01, -np.inf, normal))
    whole = {f"{kind}{8 * n}": rng.integers(-99 * (kind == "int"), 99, ROWS).astype(f"{kind[0]}{n}")
             for kind in ("int", "uint") for n in (1, 2, 4, 8)}  # fmt: skip
    return {
        **{name: pa.array(values, mask=hole) for name, values in whole.items()},
        "wide int": pa.array(rng.integers(-(2**62), 2**62, ROWS)),
        "wide uint": pa.array(rng.integers(0, 2**63, ROWS).astype("u8") * 2 + 1, mask=hole),
        "int16 of a wide range": pa.array(rng.integers(-32_000, 32_000, ROWS).astype("i2")),
        "int of two ranges": pa.array(np.where(np.arange(ROWS) < 2_500, few, rng.integers(0, 2**40, ROWS)), mask=hole),
        "float64": pa.array(normal, mask=hole),
        "float32": pa.array(normal.astype("f4") * np.float32(1e30)),
        "few floats": pa.array(few / 2.0),
        "zeros": pa.array(np.where(few < 4, -0.0, 0.0)),
        "infinite": pa.array(far),
        "tiny": pa.array(normal * 1e-300),
        "bool": pa.array(few < 3, mask=hole),
        "decimal": pa.array([Decimal(int(n)) / 4 for n in few], pa.decimal128(9, 2)),
        "date": pa.array(few + 19_000, pa.int32()).cast(pa.date32()),
        "time": pa.array(rng.integers(0, 10**15, ROWS), pa.timestamp("us"), mask=hole),
        "seconds": pa.array(rng.integers(0, 10**9, ROWS), pa.timestamp("s")),
        "duration": pa.array(rng.integers(0, 10**9, ROWS), pa.duration("ms")),
        "text": pa.array([f"word {n}" for n in few], mask=hole),
        "texts": pa.array([f"käse {n}" for n in rng.integers(0, 50_000, ROWS)]),
        "null": pa.nulls(ROWS),
        "no value": pa.nulls(ROWS, pa.float64()),
        "no text": pa.nulls(ROWS, pa.string()),
        "list": pa.array([None if h else [float(n)] * (n % 3) for n, h in zip(few, hole, strict=True)]),
    }


COLUMNS = columns()


def profiled(column: pa.Array, kernels: Any, edges: list[int], seed: int = 0) -> ColumnProfile:
    """The profile of a column of partitions of whole blocks, which are merged in a random order, as they travel."""
    parts = []
    for first, last in itertools.pairwise(edges):
        blocks = [b for b in range(len(BLOCKS) - 1) if first <= BLOCKS[b] and BLOCKS[b + 1] <= last and
                  not (BLOCKS[b] == BLOCKS[b + 1] == first and first > 0)]  # fmt: skip
        starts = [BLOCKS[b] - first for b in blocks] + [last - first]
        part = seen_of(column.slice(first, last - first), kernels, starts, blocks, first, len(column))
        parts.append(parse_seen(part.to_text()))
    whole = merge_seen([parts[i] for i in np.random.default_rng(seed).permutation(len(parts))])
    return of_seen(whole, column.type)


def seen_of(
    column: pa.Array, kernels: Any, starts: list[int], blocks: list[int], first: int = 0, of: int = 0
) -> Seen:  # fmt: skip
    values, step = {"x": kernels.column(column)}, row_sample.step_of(of or len(column))
    rows = kernels.row_numbers(first, len(column))
    sketches = {"x": kernels.sketch_leaves(values["x"], starts, blocks)}
    sample = row_sample.draw(values, {}, rows, of or len(column), True, kernels).sample
    return Seen(len(column), sketches, sample=sample, step=step)


def of_seen(seen: Seen, dtype: pa.DataType) -> ColumnProfile:
    return make_column_profiles({"x": dtype}, seen.columns, seen.sample, seen.step)["x"]


def plain(column: pa.Array) -> tuple[int, list[Any]]:
    """(rows, values that are not null) as numbers and texts."""
    dtype = column.type
    if pa.types.is_list(dtype):
        elements = column.flatten().to_pylist()
        return len(elements) + column.null_count, [v for v in elements if v is not None]
    values = column.drop_null()
    if pa.types.is_timestamp(dtype):
        values = values.cast(pa.timestamp("us")).cast(pa.int64())
    elif pa.types.is_duration(dtype):
        values = values.cast(pa.duration("us")).cast(pa.int64())
    elif pa.types.is_date(dtype):
        values = values.cast(pa.int32())
    elif pa.types.is_decimal(dtype):
        values = values.cast(pa.float64())
    elif pa.types.is_boolean(dtype):
        values = values.cast(pa.uint8())
    return len(column), values.to_pylist()


@pytest.mark.parametrize("name", COLUMNS)
def test_a_profile_is_what_plain_python_says(name: str, engine: str) -> None:
    column = COLUMNS[name]
    found = profiled(column, engines.engine(engine), [0, 2_500, ROWS])
    rows, values = plain(column)
    assert (found.rows, found.nulls) == (rows, rows - len(values))
    exact = len(set(values))
    assert found.distinct == exact if found.distinct_error == 0 else abs(found.distinct / exact - 1) < 0.1
    if not values:
        assert (found.minimum, found.maximum, found.mean, found.std) == (None,) * 4
        return
    if isinstance(values[0], str):
        assert (found.minimum, found.maximum, found.bins) == (min(values), max(values), None)
    else:
        finite = [v for v in values if math.isfinite(v)]
        assert found.infinite == len(values) - len(finite)
        mean = math.fsum(finite) / len(finite)
        assert found.mean == pytest.approx(mean, rel=1e-12, abs=1e-12 * max(map(abs, finite)))
        assert found.std == pytest.approx(statistics.stdev([float(v) for v in finite]), rel=1e-9)
        assert dict(found.bins or {}) == dict(Counter(bin_of(float(v)) for v in values))
        if not isinstance(found.minimum, str):
            assert (found.minimum, found.maximum) == (min(finite), max(finite))
    if found.buckets:
        stored = column.drop_null()
        hashes = murmur3.hash_array(stored) & 1023
        assert found.buckets == np.bincount(hashes, minlength=1024).tolist()
    if found.top_exact:
        expected = sorted(Counter(values).items(), key=lambda item: (-item[1], item[0]))[:100]
        assert found.top == expected
    assert parse_document(ColumnProfile, json.loads(json.dumps(found.to_json(), allow_nan=False)), Path()) == found


def test_categories_are_counted_and_others_are_not(engine: str) -> None:
    profiles = {n: profiled(c, engines.engine(engine), [0, ROWS]) for n, c in COLUMNS.items()}
    assert {n for n, p in profiles.items() if p.top_exact and p.top} == {
        *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)), "bool", "text",
    }  # fmt: skip
    assert [len(profiles["texts"].buckets or []), len(profiles["text"].buckets or [])] == [1024, 1024]
    assert profiles["date"].minimum == str(np.datetime64(19_000, "D"))
    seconds = COLUMNS["seconds"].cast(pa.int64()).to_numpy()
    assert profiles["seconds"].minimum == str(np.datetime64(int(seconds.min()) * 10**6, "us"))


def test_bytes_that_are_no_text_are_counted_by_their_hash(engine: str) -> None:
    column = pa.array([None if n % 5 == 0 else bytes([255, n % 7]) for n in range(ROWS)], pa.binary())
    found = profiled(column, engines.engine(engine), [0, 2_500, ROWS])
    assert (found.rows, found.nulls, found.distinct, found.minimum) == (ROWS, ROWS // 5, 7, None)
    hashes = murmur3.hash_array(column.drop_null()) & 1023
    assert found.buckets == np.bincount(hashes, minlength=1024).tolist()


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([[("a", 1)], None, []], pa.map_(pa.string(), pa.int8())),
        ([{"x": 1}, None, {"x": None}], pa.struct([("x", pa.int8())])),
    ],
)
def test_of_maps_and_structs_rows_and_nulls_are_counted(values: list[Any], dtype: pa.DataType, engine: str) -> None:
    kernels = engines.engine(engine)
    found = kernels.sketch_leaves(kernels.column(pa.array(values, dtype)), [0, 3], [0])
    assert (found.kind, found.rows, found.nulls) == ("other", 3, 1)


def test_decimals_of_76_digits_are_profiled_as_floats(engine: str) -> None:
    kernels, values = engines.engine(engine), [Decimal("1.5"), None, Decimal("-2.25")]
    found = kernels.sketch_leaves(kernels.column(pa.array(values, pa.decimal256(60, 2))), [0, 3], [0])
    assert (found.kind, found.rows, found.nulls, found.low, found.high) == ("float", 3, 1, -2.25, 1.5)


@pytest.mark.parametrize("name", [n for n in COLUMNS if n != "list"])
def test_any_partitions_in_any_order_make_the_same_bits(name: str, engine: str) -> None:
    kernels = engines.engine(engine)
    of_one = profiled(COLUMNS[name], kernels, [0, ROWS])
    for seed, edges in enumerate([[0, 2_500, ROWS], [0, 1_000, 4_000, ROWS], [0, 1_000, 2_500, 4_000, ROWS]]):
        assert profiled(COLUMNS[name], kernels, edges, seed) == of_one


# Of many rows


@pytest.mark.parametrize("name", [n for n in COLUMNS if n != "list"])
def test_any_partitions_of_many_rows_make_the_same_bits(
    name: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of so many rows that a sample is drawn of them."""
    monkeypatch.setattr(row_sample, "ROWS", 900)
    kernels, column = engines.engine(engine), COLUMNS[name]
    of_one = profiled(column, kernels, [0, ROWS])
    for seed, edges in enumerate([[0, 2_500, ROWS], [0, 1_000, 4_000, ROWS], [0, 1_000, 2_500, 4_000, ROWS]]):
        assert profiled(column, kernels, edges, seed) == of_one


def of_many(values: np.ndarray, engine: str, mask: np.ndarray | None = None) -> ColumnProfile:
    column, starts = pa.array(values, mask=mask), [0, 100_000, 100_000, len(values)]
    return of_seen(seen_of(column, engines.engine(engine), starts, [0, 1, 2]), column.type)


@pytest.mark.parametrize("kind", ["f8", "f4", "M8[us]", "i8"])
def test_the_histogram_of_many_rows_is_of_a_sample_of_them(kind: str, engine: str) -> None:
    """Rows, nulls, extremes and moments are of all rows; a share of the histogram is within its standard error."""
    rng = np.random.default_rng(1)
    values = (rng.lognormal(0, 2, 400_000) * 1e9).astype("i8" if kind == "M8[us]" else kind)
    hole = rng.random(400_000) < 0.3
    found = of_many(values.astype(kind), engine, hole)
    there = values[~hole].astype("f8")
    assert (found.rows, found.nulls, found.sampled) == (400_000, int(hole.sum()), 7)
    assert found.mean == pytest.approx(there.mean(), rel=1e-12)
    assert found.std == pytest.approx(there.std(ddof=1), rel=1e-9)
    if kind != "M8[us]":
        assert (found.minimum, found.maximum) == (there.min(), there.max())
    assert found.in_bins == sum((found.bins or {}).values()) == pytest.approx(280_000 / 7, rel=0.03)
    exact = Counter(((there.view("u8") | np.uint64(1 << 63)) >> np.uint64(48)).tolist())
    for place, count in exact.most_common(50):
        share = count / len(there)
        error = math.sqrt(share * (1 - share) / found.in_bins)
        assert (found.bins or {}).get(place, 0) / found.in_bins == pytest.approx(share, abs=5 * error)


def test_lists_without_elements_take_nothing_from_others(engine: str) -> None:
    kernels, rows, lists = engines.engine(engine), 40, pa.list_(pa.float64())
    none, some = pa.nulls(rows, lists), pa.array([[1.0, 2.0]] * rows)
    a, b, c = (seen_of(column, kernels, [0, rows], [0], rows * i) for i, column in enumerate((none, none, some)))
    for merged in (merge_seen([a, b, c]), merge_seen([merge_seen([a, b]), c])):
        found = of_seen(merged, lists)
        assert (found.rows, found.nulls, found.distinct) == (4 * rows, 2 * rows, 2)
        assert found.bins == {bin_of(1.0): rows, bin_of(2.0): rows}


def test_rows_that_repeat_in_a_period_are_sampled_evenly(engine: str) -> None:
    found = of_many(np.arange(1_000_000) % 16 * 1e9, engine)
    assert found.in_bins == 62_500
    assert sorted(found.bins or {}) == [bin_of(n * 1e9) for n in range(16)]
    assert all(3_600 < count < 4_200 for count in (found.bins or {}).values())


def test_distinct_floats_of_many_rows_are_those_of_the_sample(engine: str) -> None:
    """Integers are all looked at; floats and times have at least so many distinct values."""
    many = np.random.default_rng(2).permutation(300_000).astype("f8")
    floats, whole = of_many(many, engine), of_many(many.astype("i8") * 1_000_003, engine)
    assert not floats.is_distinct_known
    assert floats.distinct == 300_000 / 5
    assert whole.is_distinct_known
    assert whole.distinct == pytest.approx(300_000, rel=1.5 * whole.distinct_error)
    few = of_many(many % 7, engine)
    assert few.distinct == 7


def test_no_column_has_more_distinct_values_than_values(engine: str) -> None:
    whole = np.arange(270_000) * 1_000_003
    estimates = [of_many(whole + shift, engine).distinct for shift in range(0, 40_000_000, 1_000_000)]
    assert max(estimates) == 270_000 > min(estimates)


def test_times_are_counted_by_hour_of_the_day(engine: str) -> None:
    hours = [0, 0, 5, 23, 23, 23]
    days = np.array([np.datetime64("1969-12-30") + n for n in range(6)], "M8[us]")
    column = pa.array(days + np.array(hours, "m8[h]"), mask=np.array([0, 0, 0, 0, 0, 1], bool))
    expected = [2, 0, 0, 0, 0, 1, *[0] * 17, 2]
    for one in (column, column.cast(pa.timestamp("s")), column.cast(pa.timestamp("ns", "Europe/Rome"))):
        assert of_seen(seen_of(one, engines.engine(engine), [0, 6], [0]), one.type).hours == expected


# The sample and repeated rows


@given(rows=st.integers(1, 5_000), step=st.integers(1, 60), first=st.integers(0, 2**40), seed=st.integers(0, 9))
def test_of_each_stratum_one_row_is_drawn_by_its_number_alone(rows: int, step: int, first: int, seed: int) -> None:
    kernels = engines.engine("pandas")
    numbers = kernels.row_numbers(first, rows)
    drawn = numbers[row_sample.draw_places(numbers, step, True, kernels)]
    strata = Counter((drawn // step).tolist())
    assert all(strata[stratum] == 1 for stratum in range(-(-first // step), (first + rows) // step))
    assert max(strata.values(), default=0) <= 1
    some = np.sort(np.random.default_rng(seed).permutation(numbers)[: rows // 2])  # as a filter leaves them
    expected = np.intersect1d(some, drawn)
    assert some[row_sample.draw_places(some, step, True, kernels)].tolist() == expected.tolist()
    mixed = np.random.default_rng(seed).permutation(some)
    assert np.sort(mixed[row_sample.draw_places(mixed, step, False, kernels)]).tolist() == expected.tolist()


def rows_of(table: pa.Table, engine: str, of: int, parts: int = 3) -> tuple[float | None, int]:
    """(the share of repeated rows, the rows compared) of a table that is read in parts."""
    kernels, size, seen = engines.engine(engine), -(-len(table) // parts), []
    for at in range(0, len(table), size):
        part = table.slice(at, size)
        rows = kernels.row_numbers(at, len(part))
        hashes = row_sample.draw({}, kernels.from_arrow(part), rows, of, True, kernels).hashes
        seen.append(parse_seen(Seen(hashes=hashes).to_text()))
    return row_sample.measure_repeated_share(merge_seen(seen).hashes)


def events(rows: int) -> pa.Table:
    rng = np.random.default_rng(rows)
    return pa.table({
        "user": pa.array([f"user {n}" for n in rng.integers(0, rows // 10, rows)]).dictionary_encode(),
        "at": pa.array(rng.integers(0, 86_400, rows), pa.timestamp("s"), mask=rng.random(rows) < 0.1),
        "price": pa.array(rng.integers(0, 100_000, rows) / 100, mask=rng.random(rows) < 0.1),
        "words": [["a"]] * rows,
    })  # fmt: skip


def test_the_share_of_repeated_rows_of_few_rows_is_exact(engine: str) -> None:
    table = events(3_000)
    for again in (table, pa.concat_tables([table, table.slice(100, 300)]).unify_dictionaries()):
        distinct = len(set(zip(*again.drop("words").to_pydict().values(), strict=True)))
        assert rows_of(again, engine, len(again)) == (pytest.approx(1 - distinct / len(again), rel=1e-9), len(again))


def test_of_many_rows_those_that_are_equal_are_compared_together(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_sample, "COMPARED", 4_000)
    table = events(40_000)
    share, compared = rows_of(table, engine, 40_000)
    assert share == pytest.approx(0, abs=0.005)
    assert compared == pytest.approx(4_000, rel=0.2)
    again = pa.concat_tables([table, table.slice(0, 4_000)]).unify_dictionaries()
    share, compared = rows_of(again, engine, 44_000)
    assert share == pytest.approx(4_000 / 44_000, abs=0.005 + 4 * math.sqrt(0.09 * 0.91 / compared))
    assert rows_of(again, engine, 44_000, parts=7) == (share, compared)


def test_values_that_do_not_tell_rows_apart_choose_none(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_sample, "COMPARED", 10)
    hashes = column_sketch.hash_bits(np.arange(40_000.0).view("u8"), np)
    value = float(np.argmin(hashes))  # rows with it are chosen
    assert rows_of(pa.table({"x": np.full(40_000, value)}), engine, 40_000) == (None, 0)
    assert rows_of(pa.table({"x": np.full(40_000, value + 1)}), engine, 40_000) == (None, 0)
    assert rows_of(pa.table({"words": [["a"]] * 9}), engine, 9) == (None, 0)


@pytest.mark.parametrize("span", [10**6, 2**46, 2**47 - 1, 2**47, 2**61])
def test_mean_and_deviation_of_many_times_are_those_of_plain_integers(span: int, engine: str) -> None:
    rows = 200_000
    counts = np.where(np.arange(rows) % 2, -span // 2, span // 2) + np.arange(rows) % 1_000
    profile = of_many(counts.astype("M8[us]"), engine)
    whole = [int(count) for count in counts]
    total, squares = sum(whole), sum(count * count for count in whole)
    assert profile.mean == pytest.approx(total / rows, rel=1e-12, abs=span * 1e-12)
    assert profile.std == pytest.approx(math.sqrt((rows * squares - total**2) / (rows * (rows - 1))), rel=1e-12)


@pytest.mark.parametrize("kind", ["distinct", "few", "skewed", "no small one"])
def test_the_least_hashes_are_the_least_of_all(kind: str) -> None:
    rng = np.random.default_rng(1)
    hashes = rng.integers(0, 2**64, 100_000, dtype=np.uint64, endpoint=False)
    if kind == "few":
        hashes %= np.uint64(1_000)
    elif kind == "skewed":
        hashes >>= np.uint64(40)
    elif kind == "no small one":
        hashes |= np.uint64(2**63)
    assert column_sketch.least(hashes).tolist() == np.unique(hashes)[: column_sketch.LEAST].tolist()


def test_one_other_value_in_many_rows_is_seen(engine: str) -> None:
    same = np.full(300_000, 2.5)
    assert of_many(same, engine).is_constant
    same[7] = 3.0
    found = of_many(same, engine)
    assert (round(found.distinct), found.maximum, found.is_constant) == (1, 3.0, False)


@pytest.mark.parametrize("values", [
    np.tile(np.array([0, 1], "u1"), 9), np.arange(-128, 128).astype("i1").repeat(3)[:-1], np.array([5, 5, 7], "i4"),
    np.array([2**64 - 1, 2**64 - 3], "u8"), np.array([-(2**63), -(2**63) + 70_000]), np.full(40_001, 200, "u1"),
])  # fmt: skip
def test_integers_of_a_small_range_are_counted_each(values: np.ndarray, engine: str) -> None:
    kernels = engines.engine(engine)
    found = kernels.sketch_column(kernels.column(pa.array(values)), [0, len(values)], [0])
    assert dict(zip(found.table[0], found.table[1].tolist(), strict=True)) == Counter(values.tolist())


@pytest.mark.parametrize("count", [1, 1_500, 30_000, 130_000])
def test_the_error_of_distinct_values_is_what_it_says(count: int, engine: str) -> None:
    values = np.tile(np.arange(count) * 1_000_003, 2)
    kernels = engines.engine(engine)
    found = kernels.sketch_column(kernels.column(pa.array(values)), [0, len(values)], [0])
    distinct, error = column_sketch.estimate(found.least) if count > 1 else (1, 0)
    assert abs(distinct - count) <= 1.5 * error * count
    assert (error == 0) == (count < column_sketch.LEAST)


def test_counts_are_the_distribution_itself(engine: str) -> None:
    """The sketch of a table of distinct values is exact in all that the sketch of the rows is exact in."""
    kernels = engines.engine(engine)
    for name in ("int32", "text", "bool", "float64", "infinite", "time", "texts"):
        column = COLUMNS[name]
        counts = kernels.count_values([kernels.column(column)], ["v0"])
        of_counts = make_column_profile("x", column.type, kernels.sketch_counts(counts, whole=True))
        of_rows = profiled(column, kernels, [0, ROWS])
        for figure in ("rows", "nulls", "minimum", "maximum", "infinite", "bins"):
            assert getattr(of_counts, figure) == getattr(of_rows, figure), (name, figure)
        assert of_counts.distinct == len(set(column.drop_null().to_pylist()))
        assert (of_counts.mean, of_counts.std) == pytest.approx((of_rows.mean, of_rows.std), rel=1e-12)
        assert of_rows.buckets is None or of_counts.buckets == of_rows.buckets


def test_quantiles_lie_within_a_sixteenth() -> None:
    values = np.random.default_rng(3).lognormal(0, 3, 20_001)
    kernels = engines.engine("pandas")
    found = of_seen(seen_of(pa.array(values), kernels, [0, 20_001], [0]), pa.float64())
    for q in (0.0, 0.01, 0.5, 0.9, 1.0):
        assert found.quantile(q) == pytest.approx(np.quantile(values, q), rel=1 / 16)
    assert bin_edges(bin_of(1.0)) == (1.0, math.nextafter(1.0625, 0))
    assert math.isnan(ColumnProfile("x", "string", 0, 0).quantile(0.5))


# In a run


def job(folder: Path, **run: Any) -> dict[str, Any]:
    source = folder / "in"
    if not source.exists():
        source.mkdir()
        rows = np.arange(3_000)
        for part in range(3):
            here = rows[part * 1_000 : (part + 1) * 1_000]
            table = pa.table({
                "shop": pa.array([f"shop {n % 40}" for n in here]), "price": pa.array(here / 7.0),
                "day": pa.array(here * 86_400_000_000, pa.timestamp("us")),
                "n": pa.array(np.where(here < 2_000, here % 5, 77), mask=here % 10 == 3), "unread": pa.array(here),
                "words": pa.array([[f"w{n % 3}"] * int(n % 4) for n in here]), "keep": pa.array(here % 2 == 0),
            })  # fmt: skip
            pq.write_table(table, source / f"{part}.parquet", row_group_size=400)
    return {
        "source": {"path": str(source), "partition_size": 30_000, "filter": "keep"},
        "features": [
            {"columns": ["shop"], "ops": [{"op": "Categorify", "max_size": 10}]},
            {"columns": ["price"], "ops": [{"op": "Normalize"}]},
            {"columns": ["day", "n", "words"]},
            {"columns": ["n"], "ops": [{"op": "Filter", "expression": "n < 50"}, {"op": "Rename", "postfix": "_kept"}]},
        ],
        "output": {"path": str(folder / "out"), "files": 2},
        "run": {"profile": True, "report": False, **run},
    }


def profile_of(out: Path) -> Profile:
    return Profile.from_json(json.loads((out / "_profile.json").read_bytes()))


@pytest.mark.parametrize("exchange", ["memory", "disk"])
def test_a_run_profiles_each_column_that_it_reads_once_over_all_rows(
    exchange: str, tmp_path: Path, engine: str
) -> None:
    """After `source.filter` and before filters of the graph; the output knows the file."""
    done = run_stages(make_job(job(tmp_path, exchange=exchange)).request(engine))
    found = profile_of(tmp_path / "out")
    assert done[1].profile == "profile-statistics.json"
    assert done[2].profile == "profile.json"
    assert sorted(found.columns) == ["day", "keep", "n", "price", "shop", "words"]
    assert found.rows == 1_500
    assert {c.rows for n, c in found.columns.items() if n != "words"} == {1_500}
    assert (found.columns["shop"].distinct, found.columns["shop"].top[0]) == (20, ("shop 0", 75))
    assert found.columns["price"].mean == pytest.approx(np.mean(np.arange(0, 3_000, 2) / 7.0), rel=1e-12)
    assert found.columns["keep"].top == [(1, 1_500)]
    assert found.columns["words"].rows == sum(n % 4 for n in range(0, 3_000, 2))
    (step,) = found.steps.values()
    assert (step.op, step.columns, step.rows) == ("Categorify", ("shop",), 1_000)
    assert step.out_of_vocabulary == 1_000 * 13 // 20
    assert list_damages(tmp_path / "out") == []
    assert own_output(tmp_path / "out")
    (tmp_path / "out" / "_profile.json").write_text("{}")
    assert list_damages(tmp_path / "out")
    assert not own_output(tmp_path / "out")


def test_partitions_and_workers_do_not_change_a_profile(tmp_path: Path, engine: str) -> None:
    profiles = []
    for number, (size, threads) in enumerate([(30_000, 1), (30_000, 4), (2**30, 1)]):
        data = job(tmp_path)
        data["source"]["partition_size"] = size
        data["output"]["path"] = str(tmp_path / f"out{number}")
        run_stages(make_job(data).request(engine), threads)
        profiles.append({**profile_of(tmp_path / f"out{number}").to_json(), "seconds": 0})
    assert profiles[0] == profiles[1] == profiles[2]


def test_a_start_that_uses_what_is_there_has_the_profile_too(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = make_job(job(tmp_path, exchange="disk")).request(engine)
    with monkeypatch.context() as patch:
        patch.setattr("tasks.stages.commit.commit", lambda *args, **more: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run_stages(request)
    before = json.loads((request.staging.folder / "profile.json").read_bytes())
    done = run_stages(make_job(job(tmp_path, exchange="disk")).request(engine))
    assert [result.reused for result in done[1:3]] == [True, True]
    assert profile_of(tmp_path / "out") == Profile.from_json(before)


def test_a_damaged_profile_in_the_staging_folder_is_made_again(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = make_job(job(tmp_path)).request(engine)
    with monkeypatch.context() as patch:
        patch.setattr("tasks.stages.commit.commit", lambda *args, **more: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run_stages(request)
    (request.staging.folder / "profile-statistics.json").write_text('{"format": 1')
    done = run_stages(make_job(job(tmp_path)).request(engine))
    assert not done[1].reused
    assert len(profile_of(tmp_path / "out").columns) == 6


def test_a_job_can_do_without(tmp_path: Path, engine: str) -> None:
    done = run_stages(make_job(job(tmp_path, profile=False)).request(engine))
    assert done[1].profile == done[2].profile == ""
    assert not (tmp_path / "out" / "_profile.json").exists()
    assert Manifest.load(tmp_path / "out").rows["out"] == 1_000


def test_statistics_that_read_no_row_have_no_profile(tmp_path: Path, engine: str) -> None:
    """The gate would take it for a night without rows."""
    pq.write_table(pa.table({"x": [1.0, None, 3.0]}), tmp_path / "data.parquet")
    job = make_job({
        "source": {"path": str(tmp_path / "data.parquet")}, "output": {"path": str(tmp_path / "out"), "files": 1},
        "features": [{"columns": ["x"], "ops": [{"op": "FillMissing"}]}], "run": {"profile": True},
    })  # fmt: skip
    request, pool = job.request(engine), LocalPool(2)
    stale = request.staging.folder / profiles.STATISTICS
    with request.staging.hold_lock():
        ingest.ingest(request, pool)
        stale.write_text(json.dumps({**Profile(9).to_json(), "fingerprint": "of other work"}))
        assert not statistics_stage.statistics(request, pool).reused
        assert not stale.exists()
        assert statistics_stage.statistics(request, pool).reused
    run_stages(request)
    assert json.loads((tmp_path / "out" / "_profile.json").read_text())["rows"] == 3


def test_statistics_of_a_start_without_a_profile_are_made_again_for_one(tmp_path: Path, engine: str) -> None:
    table = pa.table({"x": [1.0, 2.0, 3.0], "group": ["a", "b", "a"]})
    pq.write_table(table, tmp_path / "data.parquet")
    data = {
        "source": {"path": str(tmp_path / "data.parquet")}, "output": {"path": str(tmp_path / "out"), "files": 1},
        "features": [{"columns": ["group"], "ops": [{"op": "JoinGroupby", "cont_cols": ["x"], "stats": ["mean"]}]}],
    }  # fmt: skip
    pool = LocalPool(2)
    for profile in (False, True):
        request = make_job(data | {"run": {"profile": profile}}).request(engine)
        with request.staging.hold_lock():
            ingest.ingest(request, pool)
            assert not statistics_stage.statistics(request, pool).reused
            assert statistics_stage.statistics(request, pool).reused
    seen = profiles.load_profile(request, profiles.STATISTICS)
    assert seen is not None
    assert {"x", "group"} <= {*seen.columns}


def test_the_files_in_which_a_figure_is_wrong(tmp_path: Path) -> None:
    job(tmp_path)
    plan = Dataset(str(tmp_path / "in")).plan
    folder = tmp_path / "in"

    def null(column: ColumnProfile) -> bool:
        return column.nulls > 0

    found = find_files(plan, "n", {0: lambda c: c.top[0][0] == 77, 1: null})
    assert found.paths[0] == [str(folder / "2.parquet")]
    assert found.searched == found.files
    assert find_files(plan, "n", {0: null}, "keep").paths == {0: []}
    assert len(find_files(plan, "n", {0: null}, most=2).paths[0]) == 2
    assert find_files(plan, "nothing", {0: lambda c: True}) == ({0: []}, 0, 0)


@pytest.mark.parametrize("damage", [
    {"rows": -1}, {"rows": "7"}, {"columns": {}}, {"columns": [{"name": "x"}]}, {"format": None},
    {"columns": [{"name": "x", "type": "no type", "rows": 1, "nulls": 0}]},
    {"columns": [{"name": "x", "type": "int8", "rows": 1, "nulls": 0, "bins": [[1]]}]},
    {"columns": [{"name": "x", "type": "int8", "rows": 1, "nulls": 0, "bins": 5}]},
    {"columns": [{"name": "x", "type": "int8", "rows": 1, "nulls": 0, "bins": [[[], 1]]}]},
])  # fmt: skip
def test_a_damaged_file_is_refused(damage: dict[str, Any]) -> None:
    good = {"format": 1, "rows": 3, "columns": [], "steps": [], "seconds": 0.1}
    assert Profile.from_json(good).rows == 3
    with pytest.raises(DataError, match="is damaged"):
        Profile.from_json({**good, **damage}, Path("out/_profile.json"))


def test_steps_of_a_job_that_has_changed_are_the_same_steps() -> None:
    """A node more moves the number in the key of a step; the checks compare it with its nights before."""

    def profile(met: int, *keys: str) -> Profile:
        return Profile(9, steps={key: StepProfile(key, "Categorify", (key[-1],), 9, met) for key in keys})

    before, now = profile(3, "1/Categorify/a", "2/Categorify/b"), profile(4, "1/Categorify/c", "3/Categorify/a")
    renamed = before.with_keys_of(now).steps
    assert {key: (step.key, step.out_of_vocabulary) for key, step in renamed.items()} == {
        "3/Categorify/a": ("3/Categorify/a", 3), "2/Categorify/b": ("2/Categorify/b", 3),
    }  # fmt: skip
