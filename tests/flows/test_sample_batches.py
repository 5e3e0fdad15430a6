"""The nights of the shop: each made by itself, and drifting from one to the next as real days do."""

from __future__ import annotations

import datetime as dt
import itertools
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from flows.public.rowmill.cli import app
from flows.sample import make_batch, make_batch_table, make_batches, sample_table
from tasks.errors import JobError

MEAN = 20_000
NIGHTS = 35


@pytest.fixture(scope="module")
def tables():
    """Five weeks, from a Thursday on."""
    return [make_batch_table(make_batch(number, MEAN)) for number in range(NIGHTS)]


def share(table, column, value):
    return pc.mean(pc.fill_null(pc.equal(table[column], value), False)).as_py()


def news(tables, column):
    """By night, the values of a column that no earlier night has."""
    seen: set[object] = set()
    for table in tables:
        values = set(table[column].to_pylist())
        yield values - seen
        seen |= values


class TestOneNight:
    def test_the_schema_is_that_of_the_shop(self, tables):
        assert tables[0].schema == sample_table("ecommerce", 0, 10, 10).schema

    @pytest.mark.parametrize("mean", [1, 90, 3_000, 300_000])
    def test_block_cuts(self, mean):
        of = make_batch(9, mean, seed=3)
        edges = sorted({0, of.rows, *(edge for edge in (1, 64, 700, 131_072, 200_003) if edge < of.rows)})
        cut = [make_batch_table(of, a, b) for a, b in itertools.pairwise(edges)]
        assert pa.concat_tables(cut).equals(make_batch_table(of))

    @pytest.mark.gpu
    def test_the_device(self):
        cupy = pytest.importorskip("cupy")
        of = make_batch(40, 400_000, seed=7, new_ids=0.5)
        assert make_batch_table(of, 17, 300_017, xp=cupy).equals(make_batch_table(of, 17, 300_017))

    def test_times_are_of_the_day_and_in_order(self, tables):
        for number, table in enumerate(tables):
            time = table["event_time"].to_numpy()
            assert np.all(np.diff(time) >= np.timedelta64(0))
            assert {str(day) for day in (time[0].astype("M8[D]"), time[-1].astype("M8[D]"))} == {
                (dt.date(2026, 10, 1) + dt.timedelta(number)).isoformat()
            }

    def test_seeds_and_nights_differ(self):
        one, other, later = (
            make_batch_table(make_batch(*which, seed=seed))
            for which, seed in (((3, 900), 0), ((3, 900), 1), ((4, 900), 0))
        )
        assert not one.slice(0, 100).equals(other.slice(0, 100))
        assert not set(one["user_session"].to_pylist()) & set(later["user_session"].to_pylist())

    def test_a_session_has_one_user(self, tables):
        pairs = tables[5].group_by(["user_session", "user_id"]).aggregate([])
        assert pairs.num_rows == pc.count_distinct(tables[5]["user_session"]).as_py()

    def test_a_product_has_one_category_and_its_successor_the_same(self, tables):
        pairs = pa.concat_tables(tables).group_by(["product_id", "category_id"]).aggregate([])
        assert pairs.num_rows == pc.count_distinct(pairs["product_id"]).as_py()

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"number": -1}, "night -1 cannot be made"),
            ({"mean": 0}, "a sample of 0 rows"),
            ({"new_ids": 0.001}, r"new_ids is 0.001\n  do: give 0.02 .. 1"),
        ],
    )
    def test_refusals(self, changes, message):
        with pytest.raises(JobError, match=message):
            make_batch(**({"number": 0, "mean": 10} | changes))


class TestDrift:
    @pytest.mark.promise("a folder for each day (DIR/2026-10-01 ..), drifting as real days do")
    def test_rows_follow_the_weekday_and_a_trend(self):
        rows = np.array([make_batch(number, 1_000_000).rows for number in range(70)]).reshape(10, 7)
        weeks = rows.mean(axis=1)
        assert weeks[0] == pytest.approx(1_000_000, rel=0.03)
        assert weeks[-1] / weeks[0] == pytest.approx(1 + 0.002 * 63, rel=0.03)
        weekday = (rows / weeks[:, None]).mean(axis=0)  # Thursday first
        assert weekday.argmax() == 2
        assert weekday[2] == pytest.approx(1.12, abs=0.02)
        assert weekday[5] == pytest.approx(0.92, abs=0.02)
        noise = rows / weeks[:, None] / weekday
        assert 0.01 < noise.std() < 0.03

    def test_weekends_differ(self, tables):
        weekend = pa.concat_tables(table for number, table in enumerate(tables) if number % 7 in (2, 3))
        other = pa.concat_tables(table for number, table in enumerate(tables) if number % 7 not in (2, 3))
        assert share(weekend, "event_type", "cart") > 1.04 * share(other, "event_type", "cart")
        nights = [np.mean(pc.hour(table["event_time"]).to_numpy() == 0) for table in (weekend, other)]
        assert nights[0] > 1.1 * nights[1]

    def test_categories_change_by_the_night_and_not_much(self, tables):
        shares = np.array([share(table, "category_code", "electronics.smartphone") for table in tables])
        assert 0.005 < np.abs(np.diff(shares)).mean() < 0.05
        assert shares.min() > 0.5 * shares.max()

    def test_nulls_stay_near_those_of_the_shop(self, tables):
        for column, expected in (("brand", 0.145), ("category_code", 0.33)):
            shares = np.array([table[column].null_count / table.num_rows for table in tables])
            assert shares.mean() == pytest.approx(expected, abs=0.01)
            assert shares.std() < 0.015

    @pytest.mark.promise("a folder for each day (DIR/2026-10-01 ..), drifting as real days do")
    def test_new_users_come_every_night(self, tables):
        new = [len(values) / table.num_rows for values, table in zip(news(tables, "user_id"), tables, strict=True)]
        assert np.mean(new[25:]) == pytest.approx(0.0484, abs=0.005)
        users = [pc.count_distinct(table["user_id"]).as_py() / table.num_rows for table in tables]
        assert np.mean(users[-7:]) == pytest.approx(np.mean(users[:7]), rel=0.1)  # others do not come again

    def test_new_products_come_also_at_the_head_and_others_fade(self, tables):
        first = pa.concat_tables(tables[:7])
        last = pa.concat_tables(tables[-7:])
        sold = [dict(zip(*(column.to_pylist() for column in counted.flatten()), strict=True)) for counted in
                (pc.value_counts(week["product_id"].combine_chunks()) for week in (first, last))]  # fmt: skip
        head = [set(sorted(week, key=week.get)[-300:]) for week in sold]
        assert 10 < len(head[1] - set(sold[0])) < 100
        assert 10 < len(head[0] - set(sold[1])) < 100

    def test_as_many_new_users_as_are_wanted(self):
        nights = [make_batch_table(make_batch(number, 5_000, new_ids=0.7)) for number in range(12)]
        new = [len(values) / table.num_rows for values, table in zip(news(nights, "user_id"), nights, strict=True)]
        assert new[-1] == pytest.approx(0.7, abs=0.02)
        alone = make_batch_table(make_batch(2, 5_000, new_ids=1.0))
        assert pc.count_distinct(alone["user_id"]).as_py() > 0.99 * alone.num_rows


def peak_memory(folder, rows, nights):
    make_batch_table(make_batch(0, 100))  # the tables that every night needs
    tracemalloc.start()
    make_batches(folder / f"{rows}-{nights}", nights, rows, workers=1)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


class TestFiles:
    @pytest.mark.promise("a folder for each day (DIR/2026-10-01 ..), drifting as real days do")
    def test_a_folder_for_each_day(self, tmp_path):
        summary = make_batches(tmp_path / "shop", 3, 2_000, seed=5)
        folders = sorted((tmp_path / "shop").iterdir())
        assert [folder.name for folder in folders] == ["2026-10-01", "2026-10-02", "2026-10-03"]
        for number, folder in enumerate(folders):
            of = make_batch(number, 2_000, seed=5)
            assert pq.read_table(folder / "part-00000.parquet").equals(make_batch_table(of))
        assert (summary.batches, summary.files) == (3, 3)
        assert summary.rows == sum(make_batch(number, 2_000, seed=5).rows for number in range(3))

    def test_each_night_alone_has_the_same_bytes(self, tmp_path):
        make_batches(tmp_path / "all", 4, 2_000, files=2)
        make_batches(tmp_path / "one", 31, 2_000, files=2, only=[dt.date(2026, 10, 3)])
        assert [folder.name for folder in (tmp_path / "one").iterdir()] == ["2026-10-03"]
        for part in ("part-00000.parquet", "part-00001.parquet"):
            one, other = (tmp_path / where / "2026-10-03" / part for where in ("one", "all"))
            assert one.read_bytes() == other.read_bytes()

    def test_more_nights_are_added_and_what_is_there_stays(self, tmp_path):
        make_batches(tmp_path, 2, 500)
        written = (tmp_path / "2026-10-02" / "part-00000.parquet").stat().st_mtime_ns
        make_batches(tmp_path, 3, 500)
        assert (tmp_path / "2026-10-02" / "part-00000.parquet").stat().st_mtime_ns == written
        assert (tmp_path / "2026-10-03" / "part-00000.parquet").exists()
        with pytest.raises(JobError, match="not this sample of ecommerce"):
            make_batches(tmp_path, 3, 500, new_ids=0.5)

    def test_text(self, tmp_path):
        make_batches(tmp_path, 1, 500, format="csv", files=2)
        lines = (tmp_path / "2026-10-01" / "part-00000.csv").read_text().splitlines()
        assert lines[1].startswith("2026-10-01 00:0")

    def test_a_day_that_is_none(self, tmp_path):
        with pytest.raises(
            JobError, match=r"2026-11-01 is none of the nights\n  why: there are 2026-10-01 .. 2026-10-31"
        ):
            make_batches(tmp_path, 31, 500, only=[dt.date(2026, 11, 1)])
        with pytest.raises(JobError, match="0 nights"):
            make_batches(tmp_path, 0, 500)
        with pytest.raises(JobError, match="the nights go beyond the year 9999"):
            make_batches(tmp_path, 31, 500, start=dt.date(9999, 12, 30))

    @pytest.mark.nightly
    def test_memory_does_not_grow_with_the_rows(self, tmp_path):
        assert peak_memory(tmp_path, 3_000_000, 1) < 1.4 * peak_memory(tmp_path, 1_300_000, 1)  # a row group at a time

    def test_memory_does_not_grow_with_the_nights(self, tmp_path):
        assert peak_memory(tmp_path, 100_000, 8) < 1.4 * peak_memory(tmp_path, 100_000, 2)

    def test_the_command(self, tmp_path):
        more = ["--nights", "2", "--rows", "300", "--start", "2026-11-20", "--new-ids", "0.5"]
        result = CliRunner().invoke(app, ["sample", "ecommerce", *more, "--path", str(tmp_path)])
        assert result.exit_code == 0, result.output
        assert "of 2 night(s) of ecommerce in 2 file(s)" in result.output
        assert sorted(folder.name for folder in tmp_path.iterdir()) == ["2026-11-20", "2026-11-21"]

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            (["toy", "--nights", "2"], "toy has no nights"),
            (["ecommerce", "--nights", "2", "--drift"], "--drift and --columns are not for nights"),
            (["ecommerce", "--start", "2026-11-20"], "--start is for nights"),
            (["ecommerce", "--nights", "2", "--only", "yesterday"], "'yesterday' is not a day"),
        ],
    )
    def test_refused_commands(self, more, message, tmp_path, capsys):
        result = CliRunner().invoke(app, ["sample", *more, "--path", str(tmp_path / "s")])
        assert result.exit_code
        assert message in result.output + capsys.readouterr().err
        assert not (tmp_path / "s").exists()
