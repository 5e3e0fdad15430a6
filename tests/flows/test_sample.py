"""Look-alike data sets as files: nothing but (name, rows, seed) decides a value; a folder is whole or refused."""

from __future__ import annotations

import itertools
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from flows.sample import draws, ecommerce, make_sample, sample_table
from tasks.errors import JobError

ALL = ("toy", "criteo", "ecommerce", "wide")


def read_parts(folder):
    """The rows of the Parquet parts, in the order of the names."""
    return pa.concat_tables(pq.read_table(part) for part in sorted(folder.glob("part-*.parquet")))


class TestNothingElseDecides:
    @pytest.mark.parametrize("name", ALL)
    @pytest.mark.parametrize("rows", [1, 777, 300_000])
    def test_block_cuts(self, name, rows):
        whole = sample_table(name, 0, rows, rows, seed=3)
        edges = [0, *(edge for edge in (1, 64, 700, 131_071, 131_072, 200_003) if edge < rows), rows]
        cut = [sample_table(name, a, b, rows, seed=3) for a, b in itertools.pairwise(edges)]
        assert whole.num_rows == rows
        assert pa.concat_tables(cut).equals(whole)

    def test_a_range_far_into_the_full_size(self):
        a = sample_table("ecommerce", 60_000_000, 60_070_000, ecommerce.FULL_ROWS)
        b = sample_table("ecommerce", 60_069_990, 60_070_010, ecommerce.FULL_ROWS)
        assert a.slice(69_990).equals(b.slice(0, 10))

    @pytest.mark.parametrize("name", ALL)
    def test_files_and_workers(self, name, tmp_path):
        one = make_sample(name, tmp_path / "one", 5_000, seed=5, workers=1)
        seven = make_sample(name, tmp_path / "seven", 5_000, seed=5, files=7, workers=3)
        assert (one.files, seven.files) == (1, 7)
        rows = read_parts(tmp_path / "one")
        assert rows.equals(read_parts(tmp_path / "seven"))
        assert rows.equals(sample_table(name, 0, 5_000, 5_000, seed=5))

    @pytest.mark.parametrize("name", ALL)
    def test_the_seed(self, name):
        a, b = (sample_table(name, 0, 2_000, 2_000, seed=seed) for seed in (0, 1))
        same = [column for column in a.column_names if a[column].equals(b[column])]
        assert same == (["timestamp"] if name == "toy" else [])

    @pytest.mark.gpu
    @pytest.mark.parametrize("name", ALL)
    @pytest.mark.parametrize("rows", [20_000, 109_950_743])
    def test_the_device(self, name, rows):
        cupy = pytest.importorskip("cupy")
        stop = min(rows, 300_017)
        assert sample_table(name, 17, stop, rows, seed=7, xp=cupy).equals(sample_table(name, 17, stop, rows, seed=7))

    def test_toy_and_criteo_of_more_rows_begin_with_the_same_rows(self):
        for name in ("toy", "criteo"):
            assert sample_table(name, 0, 100, 100).equals(sample_table(name, 0, 100, 5_000))

    def test_a_wider_sample_begins_with_the_same_columns(self):
        narrow, wide = (sample_table("wide", 0, 500, 500, seed=2, columns=columns) for columns in (5, 9))
        assert narrow.column_names == ["x0000", "x0001", "x0002", "x0003", "x0004", "y"]
        assert wide.select(narrow.column_names).equals(narrow)

    def test_the_number_of_columns_is_part_of_the_sample(self, tmp_path):
        make_sample("wide", tmp_path, 200_000, columns=3)
        assert json.loads((tmp_path / "_sample.json").read_text())["columns"] == 3
        assert [pq.ParquetFile(tmp_path / "part-00000.parquet").metadata.row_group(i).num_rows for i in range(4)] == [
            65_536, 65_536, 65_536, 3_392,
        ]  # fmt: skip
        with pytest.raises(JobError, match=r"it holds name wide, .*columns 3"):
            make_sample("wide", tmp_path, 200_000, columns=4)


class TestDraws:
    def test_vectors_of_splitmix64(self):
        # The generator started from 1234567, as its authors' C code gives it; counter 1 is its first output.
        got = draws.draw(np.uint64(1234567), np.arange(1, 4, dtype=np.uint64))
        assert got.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]

    def test_alias_cells_hold_the_weights_exactly(self):
        weights = np.array([5, 0, 1, 2])
        choice = draws.ChoiceDraw.of(weights)
        (cells,) = choice.cells.arrays
        held = np.zeros(4)
        for cell, packed in enumerate(cells.tolist()):
            held[cell] += packed >> 32
            held[packed & 0xFFFFFFFF] += (1 << 24) - (packed >> 32)
        assert held.tolist() == [5 * 2**23, 0, 2**23, 2**24]

    @pytest.mark.parametrize("bits", [8, 16, 17])
    def test_scramble_is_a_bijection(self, bits):
        got = draws.scramble(np.arange(1 << bits, dtype=np.uint64), bits, draws.stream("test"))
        assert np.array_equal(np.sort(got), np.arange(1 << bits))
        assert not np.array_equal(got, np.arange(1 << bits))

    def test_zipf_head_and_tail(self):
        rank = draws.zipf(10_000_000, 1.1).pick(
            np, draws.draw(draws.stream("zipf"), np.arange(1 << 20, dtype=np.uint64))
        )
        total = sum(k**-1.1 for k in range(1, 5_001)) + (5_000.5**-0.1 - 10_000_000.5**-0.1) / 0.1
        for first, last in ((0, 1), (1, 2), (9, 100), (4_096, 5_000), (1_000_000, 10_000_000)):
            if last <= 5_000:
                expected = sum((k + 1) ** -1.1 for k in range(first, last)) / total
            else:
                expected = ((first + 0.5) ** -0.1 - (last + 0.5) ** -0.1) / 0.1 / total
            assert np.mean((rank >= first) & (rank < last)) == pytest.approx(expected, rel=0.02, abs=3e-4)
        assert rank.min() == 0
        assert 9_900_000 < rank.max() < 10_000_000


class TestFiles:
    @pytest.mark.parametrize("name", ALL)
    @pytest.mark.parametrize("format", ["csv", "tsv"])
    def test_text_holds_the_same_rows(self, name, format, tmp_path):
        make_sample(name, tmp_path / "s", 3_000, seed=2, files=2, format=format)
        expected = sample_table(name, 0, 3_000, 3_000, seed=2)
        schema = expected.schema
        if name == "ecommerce":
            schema = schema.set(0, pa.field("event_time", pa.string()))
            text = pc.strftime(expected["event_time"].cast(pa.timestamp("s")), "%Y-%m-%d %H:%M:%S UTC")
            expected = expected.set_column(0, "event_time", text)
        read = pyarrow.csv.ReadOptions(column_names=None if format == "csv" else schema.names)
        parse = pyarrow.csv.ParseOptions(delimiter="," if format == "csv" else "\t")
        convert = pyarrow.csv.ConvertOptions(
            column_types=dict(zip(schema.names, schema.types, strict=True)), strings_can_be_null=True, null_values=[""]
        )
        parts = sorted((tmp_path / "s").glob(f"part-*.{format}"))
        got = pa.concat_tables(pyarrow.csv.read_csv(part, read, parse, convert) for part in parts)
        assert [part.name for part in parts] == [f"part-00000.{format}", f"part-00001.{format}"]
        assert got.to_pydict() == expected.to_pydict()

    def test_the_first_line_of_criteo_tsv_as_in_the_original(self, tmp_path):
        make_sample("criteo", tmp_path, 10, format="tsv")
        line = (tmp_path / "part-00000.tsv").read_text().split("\n")[0].split("\t")
        assert line[:8] == ["0", "", "73", "", "2", "3813", "35", "0"]
        assert len(line) == 40

    def test_the_header_and_time_of_the_shop_csv_as_in_the_original(self, tmp_path):
        make_sample("ecommerce", tmp_path, 10, format="csv")
        lines = (tmp_path / "part-00000.csv").read_text().splitlines()
        header = "event_time,event_type,product_id,category_id,category_code,brand,price,user_id,user_session"
        assert lines[0] == header
        assert lines[1].startswith("2019-10-01 00:00:00 UTC,view,")
        assert len(lines) == 11

    def test_row_groups_compression_and_plain_strings(self, tmp_path):
        make_sample("toy", tmp_path, 1_500_000)
        metadata = pq.read_metadata(tmp_path / "part-00000.parquet")
        assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [1_000_000, 500_000]
        columns = [metadata.row_group(0).column(i) for i in range(6)]
        assert {column.compression for column in columns} == {"SNAPPY"}
        encoded = [column.path_in_schema for column in columns if column.has_dictionary_page]
        assert encoded == ["id", "name", "label"]
        assert pq.read_schema(tmp_path / "part-00000.parquet").field("name").type == pa.string()

    def test_summary(self, tmp_path):
        summary = make_sample("toy", tmp_path / "deep" / "er", 10_000, files=3)
        parts = sorted((tmp_path / "deep" / "er").glob("part-*"))
        assert (summary.name, summary.rows, summary.files) == ("toy", 10_000, 3)
        assert summary.bytes == sum(part.stat().st_size for part in parts)
        assert summary.seconds > 0
        assert [pq.read_metadata(part).num_rows for part in parts] == [3_333, 3_333, 3_334]

    def test_nothing_temporary_is_left(self, tmp_path):
        make_sample("toy", tmp_path, 100, files=2)
        assert sorted(file.name for file in tmp_path.iterdir()) == [
            "_sample.json",
            "part-00000.parquet",
            "part-00001.parquet",
        ]
        assert json.loads((tmp_path / "_sample.json").read_text()) == {
            "name": "toy",
            "rows": 100,
            "seed": 0,
            "format": "parquet",
            "drift": False,
            "files": 2,
            "rule": 1,
        }

    def test_the_same_sample_is_kept(self, tmp_path):
        first = make_sample("toy", tmp_path, 100, files=2)
        written = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
        again = make_sample("toy", tmp_path, 100)
        assert (again.files, again.bytes) == (2, first.bytes)
        assert written == {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}

    def test_a_killed_run_goes_on_where_it_was(self, tmp_path):
        make_sample("toy", tmp_path, 100, files=2)
        whole = read_parts(tmp_path)
        (tmp_path / "part-00001.parquet").unlink()
        (tmp_path / "_part-00001.parquet.123.tmp").write_bytes(b"PAR1 half a file")
        kept = (tmp_path / "part-00000.parquet").stat().st_mtime_ns
        make_sample("toy", tmp_path, 100)
        assert read_parts(tmp_path).equals(whole)
        assert (tmp_path / "part-00000.parquet").stat().st_mtime_ns == kept

    def test_two_at_once_write_the_same(self, tmp_path):
        with ThreadPoolExecutor(2) as pool:
            runs = [pool.submit(make_sample, "ecommerce", tmp_path / name, 5_000, files=4) for name in ("s", "s")]
        assert [run.result().files for run in runs] == [4, 4]
        assert read_parts(tmp_path / "s").equals(sample_table("ecommerce", 0, 5_000, 5_000))

    def test_a_failing_write_leaves_no_part(self, tmp_path, monkeypatch):
        monkeypatch.setattr(pq.ParquetWriter, "write_table", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            make_sample("toy", tmp_path, 100)
        assert [file.name for file in tmp_path.iterdir()] == ["_sample.json"]

    def test_a_given_array_module_draws(self, tmp_path):
        make_sample("criteo", tmp_path, 100, engine=np)
        assert read_parts(tmp_path).equals(sample_table("criteo", 0, 100, 100))


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"name": "toi"}, "no sample is called 'toi'\n  do: did you mean 'toy'?"),
            ({"rows": 0}, "a sample of 0 rows\n  do: give 1 or more"),
            ({"format": "orc"}, "no format is called 'orc'\n  do: there are: parquet, csv, tsv"),
            ({"files": 0}, "10 rows cannot make 0 files\n  do: give 1 .. 10 files, or leave files out"),
            ({"files": 11}, "10 rows cannot make 11 files\n  do: give 1 .. 10 files, or leave files out"),
            ({"workers": 0}, "workers is 0\n  do: give 1 or more, or leave it out for one per core"),
            ({"drift": True}, "toy has no drifted month\n  do: leave drift out, or take the sample 'ecommerce'"),
            ({"columns": 9}, "toy has columns of its own\n  do: leave columns out, or take the sample 'wide'"),
            ({"name": "wide", "columns": 0}, "a sample of 0 columns\n  do: give 1 .. 10000"),
            ({"engine": "tpu"}, "no engine is called 'tpu'\n  do: give 'cpu', or an array module such as cupy itself"),
        ],
    )
    def test_bad_parameters_write_nothing(self, changes, message, tmp_path):
        with pytest.raises(JobError) as refused:
            make_sample(**({"name": "toy", "path": tmp_path / "s", "rows": 10} | changes))
        assert str(refused.value) == message
        assert not (tmp_path / "s").exists()

    @pytest.mark.parametrize("change", [{"rows": 11}, {"seed": 1}, {"format": "csv"}, {"name": "criteo"}, {"files": 2}])
    def test_a_folder_of_another_sample(self, change, tmp_path):
        make_sample("toy", tmp_path, 10)
        with pytest.raises(JobError, match="it holds name toy, rows 10, seed 0, format parquet, drift False, files 1"):
            make_sample(**({"name": "toy", "path": tmp_path, "rows": 10} | change))

    def test_a_folder_of_other_files(self, tmp_path):
        (tmp_path / "mine.txt").write_text("keep me")
        with pytest.raises(JobError, match="files that no sample wrote"):
            make_sample("toy", tmp_path, 10)
        assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]

    def test_a_file_in_place_of_the_folder(self, tmp_path):
        (tmp_path / "s").write_text("")
        with pytest.raises(JobError, match="it is a file"):
            make_sample("toy", tmp_path / "s", 10)

    def test_rows_outside_the_sample(self):
        with pytest.raises(JobError, match=r"rows 5 \.\. 11 are not in the sample"):
            sample_table("toy", 5, 11, 10)
