"""What an output folder holds: formats and shuffle modes, Hive folders, footers in one file, and who reads them."""

from __future__ import annotations

import datetime
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tasks import ops
from tasks.core.dtypes import dtype_name
from tasks.core.schema import Column, Schema, Tags
from tasks.core.settings import Output, Run, Source, make_section
from tasks.dataset import Dataset
from tasks.errors import DataError, JobError, RowmillError
from tasks.graph.node import as_node
from tasks.job.output_check import list_damages
from tasks.job.request import make_request
from tasks.manifest import Manifest
from tasks.sources.planning import make_plan
from tasks.storage import hive
from tasks.storage.own_files import own_output
from tasks.workflow import Workflow
from tests.stages import run_stages

ROWS = 60
DAYS = [datetime.date(2024, 1, 2), datetime.date(2024, 2, 29), None]
SHOPS = ["a/b", "ü é=%", "", "x:y 'q'", "..", "plain"]
TABLE = pa.table(
    {
        "number": pa.array(range(ROWS), pa.int64()),
        "word": [["to", "be", "or"][i % 3] for i in range(ROWS)],
        "shop": [SHOPS[i % len(SHOPS)] for i in range(ROWS)],
        "group": pa.array([i % 4 for i in range(ROWS)], pa.int16()),
        "day": pa.array([DAYS[i % 3] for i in range(ROWS)], pa.date32()),
        "label": pa.array([i % 2 for i in range(ROWS)], pa.int8()),
    }
)
MODES = {"none": {}, "partition": {}, "worker": {"shuffle_groups": 2}, "full": {}, "key": {"keys": ["number"]}}
TYPES = pa.schema(
    [("number", pa.int64()), ("word", pa.int32()), ("x", pa.float32()), ("shop", pa.string()), ("label", pa.int8())]
)


def graph(*columns: str) -> Any:
    passed = ["number"] + (["word"] >> ops.Categorify()) + (["number"] >> ops.Normalize() >> ops.Rename(name="x"))
    return passed + list(columns) + (["label"] >> ops.AddTags([Tags.TARGET]))


def written(folder: Path, engine: str, *columns: str, table: pa.Table = TABLE, **output: Any) -> Manifest:
    """The table with these columns too, written with this section `output`."""
    made = Workflow(graph(*columns)).fit_transform(Dataset(table, engine=engine))
    return made.to_parquet(str(folder), **{"files": 3, "seed": 1, **output})


def files_of(manifest: Manifest, form: str = "parquet") -> list[pa.Table]:
    return [ds.dataset(f"{manifest.path}/{part['path']}", format=form).to_table() for part in manifest.parts]


@pytest.mark.promise("parquet, arrow, csv or orc")
@pytest.mark.parametrize("mode", MODES)
def test_every_shuffle_mode_writes_every_format(mode: str, tmp_path: Path, engine: str) -> None:
    found = {}
    for form in ("parquet", "arrow", "csv", "orc"):
        manifest = written(tmp_path / form, engine, "shop", shuffle=mode, format=form, **MODES[mode])
        tables = files_of(manifest, {"arrow": "ipc"}.get(form, form))
        if form != "csv":
            assert all(t.schema.equals(TYPES) for t in tables)
        assert list_damages(tmp_path / form) == []
        assert [part["rows"] for part in manifest.parts] == [t.num_rows for t in tables]
        found[form] = [t.to_pydict() for t in tables]

    rows = pa.concat_tables(pa.table(t, schema=TYPES) for t in found["parquet"]).sort_by("number")
    assert rows["number"].to_pylist() == list(range(ROWS))
    assert rows["shop"].to_pylist() == TABLE["shop"].to_pylist()
    assert rows["word"].to_pylist() == [{"be": 3, "or": 4, "to": 5}[w] for w in TABLE["word"].to_pylist()]
    assert found["arrow"] == found["orc"] == found["parquet"]
    assert [t["number"] for t in found["csv"]] == [t["number"] for t in found["parquet"]]
    assert [t["shop"] for t in found["csv"]] == [t["shop"] for t in found["parquet"]]


@pytest.mark.promise("as JSON under the metadata key `rowmill`")
@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_files_say_what_their_columns_are(form: str, tmp_path: Path, engine: str) -> None:
    manifest = written(tmp_path / "out", engine, format=form)
    path = f"{manifest.path}/{manifest.parts[0]['path']}"
    schema = pq.read_schema(path) if form == "parquet" else pa.ipc.open_file(path).schema
    columns = {c["name"]: c for c in json.loads(schema.metadata[b"rowmill"])["columns"]}

    assert list(columns) == ["number", "word", "x", "label"]
    assert columns["word"]["tags"] == ["categorical"]
    assert columns["word"]["cardinality"] == 6
    assert columns["word"]["embedding"] == {"rows": 6, "dimension": 16}
    assert columns["label"]["tags"] == ["target"]


@pytest.mark.promise("Give one of the three, or none")
@pytest.mark.promise("Rows of a row group of Parquet, or of a record batch of Arrow")
def test_row_groups_and_numbers_of_files(tmp_path: Path, engine: str) -> None:
    whole = written(tmp_path / "one", engine, files=1, row_group_size=25)
    footer = pq.read_metadata(tmp_path / "one" / "part-00000.parquet")
    assert [footer.row_group(i).num_rows for i in range(footer.num_row_groups)] == [25, 25, 10]
    assert [p["rows"] for p in whole.parts] == [60]
    full = written(tmp_path / "full", engine, files=None, rows_per_file=25)
    assert [p["rows"] for p in full.parts] == [25, 25, 10]
    each = written(tmp_path / "each", engine, files=None, files_per_worker=4)
    assert [p["rows"] for p in each.parts] == [15, 15, 15, 15]


@pytest.mark.promise(
    "With a number of files, they differ by at most one row. With `rows_per_file` all files but the last are full"
)
def test_files_by_number_are_equal_and_by_rows_full_but_the_last(tmp_path: Path, engine: str) -> None:
    table = pa.table({"n": range(780)})

    def rows_of(**output: Any) -> list[int]:
        made = Workflow(as_node(["n"])).fit_transform(Dataset(table, engine=engine))
        return [p["rows"] for p in made.to_parquet(str(tmp_path / str(len(output)) / str(output)), **output).parts]

    assert rows_of(rows_per_file=777) == [777, 3]
    assert rows_of(rows_per_file=390) == [390, 390]
    assert sorted(rows_of(files=7)) == [111, 111, 111, 111, 112, 112, 112]
    keys = (Path(__file__).parents[3] / "flows" / "KEYS.md").read_text()
    assert (
        "With a number of files, they differ by at most one row. With `rows_per_file` all files but the last are full"
        in " ".join(keys.split())
    )


# Hive folders


def pyarrow_rows(out: Path, partitioning: Any) -> Any:
    return ds.dataset(out, partitioning="hive").to_table().to_pandas()


def pyarrow_typed_rows(out: Path, partitioning: Any) -> Any:
    return ds.dataset(out, partitioning=partitioning).to_table().to_pandas()


def pandas_rows(out: Path, partitioning: Any) -> Any:
    return pd.read_parquet(out)


def dask_rows(out: Path, partitioning: Any) -> Any:
    import dask.dataframe as dd

    return dd.read_parquet(out).compute(scheduler="sync")


def polars_rows(out: Path, partitioning: Any) -> Any:
    polars = pytest.importorskip("polars")
    found = polars.scan_parquet(out / "**" / "*.parquet", hive_partitioning=True).collect()
    return pd.DataFrame(found.to_dict(as_series=False))


def duckdb_rows(out: Path, partitioning: Any) -> Any:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        found = connection.sql(f"from read_parquet('{out}/**/*.parquet', hive_partitioning = true)").fetchnumpy()
    return pd.DataFrame({name: [None if v is np.ma.masked else v for v in values] for name, values in found.items()})


READERS = [pyarrow_rows, pyarrow_typed_rows, pandas_rows, dask_rows, polars_rows, duckdb_rows]


@pytest.fixture(scope="module")
def by_shop(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Manifest:
    return written(tmp_path_factory.mktemp("hive") / "out", engine, "shop", "group", partition_on=["shop", "group"])


@pytest.mark.promise("columns whose values name folders")
@pytest.mark.promise("percent-encoded, null is `__HIVE_DEFAULT_PARTITION__`")
def test_folders_have_the_names_that_pyarrow_gives(by_shop: Manifest, tmp_path: Path) -> None:
    folders = {part["path"].rpartition("/")[0] for part in by_shop.parts}
    named = ds.partitioning(TABLE.select(["shop", "group"]).schema, flavor="hive")
    ds.write_dataset(TABLE, tmp_path / "theirs", format="parquet", partitioning=named)
    theirs = {str(p.parent.relative_to(tmp_path / "theirs")) for p in (tmp_path / "theirs").rglob("*.parquet")}

    assert folders == theirs
    assert "shop=a%2Fb/group=0" in folders
    assert all(Path(by_shop.path, p["path"]).is_file() for p in by_shop.parts)
    assert pq.read_schema(f"{by_shop.path}/{by_shop.parts[0]['path']}").names == ["number", "word", "x", "label"]


@pytest.mark.promise(
    "open the folder itself with pyarrow, pandas or Dask, and `out/toy/*.parquet` with DuckDB or Polars"
)
@pytest.mark.parametrize("read", READERS)
def test_every_reader_gives_exactly_the_rows(read: Any, by_shop: Manifest) -> None:
    rows = read(Path(by_shop.path), by_shop.partitioning).sort_values("number")

    assert sorted(rows) == ["group", "label", "number", "shop", "word", "x"]
    assert rows["number"].tolist() == list(range(ROWS))
    assert rows["shop"].astype(str).tolist() == TABLE["shop"].to_pylist()
    assert rows["group"].astype(int).tolist() == TABLE["group"].to_pylist()
    assert rows["label"].tolist() == TABLE["label"].to_pylist()


NULLS = TABLE.append_column("code", pa.array([[None, "007", "7"][i % 3] for i in range(ROWS)]))


@pytest.mark.parametrize("read", [pyarrow_typed_rows, polars_rows, duckdb_rows])
def test_dates_nulls_and_texts_like_numbers_keep_their_type(read: Any, tmp_path: Path, engine: str) -> None:
    manifest = written(tmp_path / "out", engine, "day", "code", table=NULLS, partition_on=["day", "code"])
    rows = read(tmp_path / "out", manifest.partitioning).sort_values("number")

    assert [None if pd.isna(d) else pd.Timestamp(d).date() for d in rows["day"]] == TABLE["day"].to_pylist()
    if read is pyarrow_typed_rows:  # who is not told the type reads numbers
        assert [None if pd.isna(c) else c for c in rows["code"]] == NULLS["code"].to_pylist()
    assert {p["path"].rpartition("/")[0] for p in manifest.parts} == {
        "day=2024-01-02/code=__HIVE_DEFAULT_PARTITION__",
        "day=2024-02-29/code=007",
        "day=__HIVE_DEFAULT_PARTITION__/code=7",
    }


@pytest.mark.promise('named = Manifest.load("out/toy").partitioning')
def test_pandas_and_dask_read_nulls_and_types_when_they_are_told(tmp_path: Path, engine: str) -> None:
    import dask.dataframe as dd

    manifest = written(tmp_path / "out", engine, "code", table=NULLS, partition_on=["code"])
    named = {"flavor": "hive", "schema": manifest.partitioning.schema}
    by_dask = dd.read_parquet(tmp_path / "out", dataset={"partitioning": named}).compute(scheduler="sync")
    table = pq.read_table(tmp_path / "out", partitioning=manifest.partitioning)

    for rows in (by_dask, table.to_pandas()):
        found = rows.sort_values("number")["code"]
        assert [None if pd.isna(c) else c for c in found] == NULLS["code"].to_pylist()


@pytest.mark.promise("its rows in their order", "flows/KEYS.md#folders-by-value")
@pytest.mark.parametrize("mode", MODES)
def test_a_folder_has_the_rows_of_its_file_in_their_order(mode: str, tmp_path: Path, engine: str) -> None:
    plain = written(tmp_path / "plain", engine, "group", shuffle=mode, **MODES[mode])
    split = written(tmp_path / "split", engine, "group", shuffle=mode, partition_on=["group"], **MODES[mode])
    found = dict(zip((p["path"] for p in split.parts), files_of(split), strict=True))

    expected = {}
    for part, table in zip(plain.parts, files_of(plain), strict=True):
        for group in sorted(set(table["group"].to_pylist())):
            own = [i for i, g in enumerate(table["group"].to_pylist()) if g == group]
            expected[f"group={group}/{part['path']}"] = table.take(own).drop_columns(["group"])["number"].to_pylist()
    assert {path: table["number"].to_pylist() for path, table in found.items()} == expected
    assert split.data["output"]["files"] == 3
    assert split.rows["out"] == ROWS


@pytest.mark.parametrize("form", ["arrow", "csv", "orc"])
def test_folders_hold_every_format(form: str, tmp_path: Path, engine: str) -> None:
    manifest = written(tmp_path / "out", engine, "group", partition_on=["group"], format=form)
    kind = {"arrow": "ipc"}.get(form, form)
    rows = ds.dataset(tmp_path / "out", format=kind, partitioning=manifest.partitioning).to_table().sort_by("number")

    assert rows["group"].to_pylist() == TABLE["group"].to_pylist()
    assert rows.schema.field("group").type == pa.int16()


@pytest.mark.promise("Columns of all other types (structs, maps, bytes) pass through to outputs of Parquet and Arrow")
@pytest.mark.parametrize(
    ("form", "dtype"),
    [
        ("csv", pa.list_(pa.int64())),
        ("csv", pa.binary()),
        ("csv", pa.binary(2)),
        ("orc", pa.uint64()),
        ("orc", pa.list_(pa.duration("s"))),
    ],
)
def test_what_a_format_cannot_hold_is_refused_before_any_row_is_read(
    form: str, dtype: pa.DataType, tmp_path: Path, engine: str
) -> None:
    table = pa.table({"x": pa.array([None, None], dtype), "n": [1, 2]})
    pq.write_table(table, tmp_path / "in.parquet")
    output = Output(path=str(tmp_path / "out"), format=form)
    request = make_request(Source(path=str(tmp_path / "in.parquet")), as_node(["x", "n"]), output, Run(), engine)
    made = Workflow(as_node(["x", "n"])).fit_transform(Dataset(table, engine=engine))
    for write in (lambda: run_stages(request), lambda: made.to_parquet(str(tmp_path / "out"), format=form)):
        with pytest.raises(JobError, match=f"files of the format {form} cannot hold column 'x'") as error:
            write()
        assert (error.value.where, error.value.why) == ("output.format", f"it is {dtype_name(dtype)}")


def job(
    folder: Path, source: Path, engine: str, partition_size: int = 10**9, exchange: str = "memory", **output: Any
) -> Any:
    """A request whose stages write Hive folders of `group`."""
    section = {"path": str(folder / "out"), "files": 3, "seed": 1, "partition_on": ["group"], "metadata_file": True}
    rows = Source(path=str(source), partition_size=partition_size)
    run = Run(min_partition_size=1, exchange=exchange)
    return make_request(rows, graph("group"), Output(**{**section, **output}), run, engine)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    for i in range(4):
        pq.write_table(TABLE.slice(i * ROWS // 4, ROWS // 4), folder / f"logs-{i}.parquet")
    return folder


def digests_of(out: Path) -> dict[str, str]:
    manifest = Manifest.load(out)
    return {p["path"]: p["xxh3_128"] for p in [*manifest.parts, *manifest.data["footers"]]}


def test_bytes_depend_on_the_rows_alone(tmp_path: Path, source: Path, engine: str, client: Any) -> None:
    found = []
    for name, size, exchange in (("a", 10**9, "memory"), ("b", 700, "memory"), ("c", 700, "disk")):
        (tmp_path / name).mkdir()
        run_stages(job(tmp_path / name, source, engine, size, exchange))
        found.append(digests_of(tmp_path / name / "out"))
    transformed = Workflow(graph("group")).fit_transform(Dataset(str(source), partition_size=700, engine=engine))
    transformed.to_parquet(
        str(tmp_path / "d"), files=3, seed=1, partition_on=["group"], metadata_file=True
    )  # on the cluster
    assert found[0] == found[1] == found[2] == digests_of(tmp_path / "d")
    assert len(found[0]) == 12 + 2


def test_written_folders_are_not_written_again(
    tmp_path: Path, source: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.shuffle import file_writer
    from tasks.shuffle import writing as shuffle_writing

    whole, wrote = file_writer.write_table, []

    def failing(writing: Any, table: Any, name: str, rows: int) -> Any:
        if "part-00002" in name and len(wrote) < 100:
            raise OSError("pulled out")
        wrote.append(name)
        return whole(writing, table, name, rows)

    monkeypatch.setattr(file_writer, "write_table", failing)
    monkeypatch.setattr(shuffle_writing, "write_table", failing)
    with pytest.raises(OSError, match="pulled out"):
        run_stages(job(tmp_path, source, engine), threads=1)
    assert len(wrote) == 8
    wrote.extend([""] * 100)
    done = run_stages(job(tmp_path, source, engine))
    assert {name.rpartition("/")[2] for name in wrote[108:]} == {"part-00002.parquet"}
    assert done[-1].folders == 4
    assert done[-1].folder_files == 12
    assert list_damages(tmp_path / "out") == []
    assert done[-1].stage == "shuffle_write"


def test_an_output_of_folders_is_replaced_or_versioned_but_not_with_foreign_files_in_it(
    tmp_path: Path, source: Path, engine: str
) -> None:
    out = tmp_path / "out"
    run_stages(job(tmp_path, source, engine))
    run_stages(job(tmp_path, source, engine, on_existing="replace", partition_on=["label"]))
    assert sorted(p.name for p in out.glob("*=*")) == ["label=0", "label=1"]
    (out / "label=0" / "mine.txt").write_text("mine")
    assert not own_output(out)
    with pytest.raises(JobError, match="rowmill did not write"):
        run_stages(job(tmp_path, source, engine, on_existing="replace"))
    many = [run_stages(job(tmp_path, source, engine, path=str(tmp_path / "many"), on_existing="version")) for _ in "ab"]
    assert len(many) == 2
    assert own_output(tmp_path / "many")
    assert len(Manifest.load(tmp_path / "many").parts) == 12


def test_verify_and_inspect_know_folders(by_shop: Manifest, tmp_path: Path, source: Path, engine: str) -> None:
    from rich.console import Console

    from flows.commands.inspect import show_folder, verify_output

    run_stages(job(tmp_path, source, engine))
    console = Console(record=True, width=200, file=io.StringIO())
    assert verify_output(tmp_path / "out")[1] == []
    show_folder(tmp_path / "out", console=console)
    shown = console.export_text()
    assert "group=0/part-00000.parquet" in shown
    assert "first rows of out/group=0" in shown
    (tmp_path / "out" / "_metadata").write_bytes(b"PAR1")
    (tmp_path / "out" / "group=3" / "part-00001.parquet").unlink()
    (tmp_path / "out" / "group=2" / "part-00009.parquet").write_bytes(b"")
    damaged = "\n".join(verify_output(tmp_path / "out")[1])
    assert "_metadata has 4 bytes" in damaged
    assert "group=3/part-00001.parquet is missing" in damaged
    assert "group=2/part-00009.parquet is not in the manifest" in damaged


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["grup"], "there is no column 'grup' in the output\n.*\n.*did you mean 'group'"),
        (["day"], "there is no column 'day' in the output"),
        (["x"], "column 'x' cannot name folders\n.*\n.*float32"),
        (["group", "group"], "named twice"),
    ],
)
def test_columns_that_cannot_name_folders_are_refused_before_any_row_is_read(
    names: list[str], message: str, tmp_path: Path, source: Path, engine: str
) -> None:
    request = job(tmp_path, source, engine, partition_on=names)
    with pytest.raises(JobError, match=message):
        run_stages(request)
    assert [p.name for p in tmp_path.iterdir()] == []


def test_a_column_must_be_left_for_the_files_and_names_must_be_seen() -> None:
    schema = Schema.from_arrow(TABLE.select(["shop", "day"]).schema)
    with pytest.raises(JobError, match="no column is left for the files"):
        hive.check_columns(["day", "shop"], schema)
    with pytest.raises(JobError, match="overlook names"):
        hive.check_columns(["_x"], {"_x": schema["day"]})
    with pytest.raises(JobError, match="DateParts makes integers"):
        hive.check_columns(["t"], {"t": Column("t", pa.timestamp("us"))})


@pytest.mark.promise("there are at most 10,000 folders")
def test_far_too_many_folders_are_refused_with_figures(
    tmp_path: Path, source: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hive, "MOST_FOLDERS", 20)
    with pytest.raises(JobError, match=r"60 folders would be made of number\n.*partition 0\n.*at most 20"):
        run_stages(job(tmp_path, source, engine, partition_on=["number"]))
    assert not (tmp_path / "out").exists()


def test_values_that_readers_would_take_for_something_else(tmp_path: Path) -> None:
    with pytest.raises(RowmillError, match="readers take this text for null"):
        hive.folders(pa.table({"k": ["__HIVE_DEFAULT_PARTITION__"]}))
    with pytest.raises(RowmillError, match="at most 255 bytes"):
        hive.folders(pa.table({"k": ["ü" * 50]}))


def test_many_small_parts_are_said() -> None:
    parts = [{"path": f"k={i}/part-0", "rows": 12} for i in range(2000)]
    assert hive.advice(parts, 8).startswith("2,000 parts of 12 rows on average")
    assert hive.advice(parts[:10], 8) == ""


# _metadata


@pytest.mark.promise("`_metadata` and `_common_metadata`, which hold the footers of all Parquet files")
@pytest.mark.parametrize("partition_on", [[], ["group"]])
def test_footers_of_all_parts_in_one_file(partition_on: list[str], tmp_path: Path, engine: str) -> None:
    import dask.dataframe as dd

    manifest = written(
        tmp_path / "out", engine, "group", partition_on=partition_on, metadata_file=True, row_group_size=8
    )
    footer = pq.read_metadata(tmp_path / "out" / "_metadata")
    groups = [
        (footer.row_group(i).column(0).file_path, footer.row_group(i).num_rows) for i in range(footer.num_row_groups)
    ]

    assert list(dict.fromkeys(path for path, _ in groups)) == [p["path"] for p in manifest.parts]
    assert sum(rows for _, rows in groups) == footer.num_rows == ROWS
    assert pq.read_schema(tmp_path / "out" / "_common_metadata").equals(
        pq.read_schema(tmp_path / "out" / manifest.parts[0]["path"])
    )
    by_pyarrow = ds.parquet_dataset(tmp_path / "out" / "_metadata", partitioning=manifest.partitioning).to_table()
    assert by_pyarrow.sort_by("number")["number"].to_pylist() == list(range(ROWS))
    for how in ({}, {"ignore_metadata_file": False, "split_row_groups": True}):
        by_dask = dd.read_parquet(str(tmp_path / "out"), filesystem="fsspec", **how)
        assert sorted(by_dask.compute(scheduler="sync")["number"].tolist()) == list(range(ROWS))
    assert list_damages(tmp_path / "out") == []


def test_footers_belong_to_parquet() -> None:
    with pytest.raises(JobError, match="metadata_file belongs to format: parquet, not to orc"):
        make_section(Output, {"path": "x", "format": "orc", "metadata_file": True}, "output")


# Folders as a source


@pytest.mark.promise("Names of folders such as `country=DE` below it become a column")
@pytest.mark.parametrize("form", ["parquet", "arrow", "csv", "orc"])
def test_folders_are_read_back_as_columns(form: str, tmp_path: Path, engine: str) -> None:
    named = ["shop", "group", "day", "code"]
    graph_of = Workflow([*named, "number"])
    made = graph_of.fit_transform(Dataset(NULLS, engine=engine))
    made.to_parquet(str(tmp_path / "out"), files=2, format=form, partition_on=named)
    source = Dataset(str(tmp_path / "out"), format=form, schema={"code": "string"}, engine=engine)

    types = {name: str(column.dtype) for name, column in source.schema.items()}
    assert types == {"number": "int64", "shop": "string", "group": "int64", "day": "date32[day]", "code": "string"}
    rows = Workflow(["number", *named]).fit_transform(source)
    rows.to_parquet(str(tmp_path / "again"), files=1, shuffle="none")
    again = pq.read_table(tmp_path / "again" / "part-00000.parquet").sort_by("number")
    for name in named:
        assert again[name].to_pylist() == NULLS[name].to_pylist()
    assert source.to_ddf(["code"]).compute(scheduler="sync")["code"].notna().sum() == ROWS * 2 // 3


def test_folders_above_the_source_and_columns_in_the_files_count_as_they_stand(tmp_path: Path) -> None:
    folder = tmp_path / "year=2024" / "kind=a"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"x": [1], "kind": ["of the file"]}), folder / "one.parquet")

    assert list(Dataset(str(tmp_path)).schema) == ["x", "kind", "year"]
    assert Dataset(str(tmp_path), engine="pandas").head()["kind"].tolist() == ["of the file"]
    assert list(Dataset(str(tmp_path / "year=2024")).schema) == ["x", "kind"]
    assert list(Dataset(str(tmp_path / "*" / "kind=a")).schema) == ["x", "kind", "year"]
    with pytest.raises(RowmillError, match="'2024' in a folder's name is not of type date32"):
        Dataset(str(tmp_path), schema={"year": "date32"}).head()


@pytest.mark.promise("Files that the filter rules out by the names of their folders")
@pytest.mark.parametrize("form", ["parquet", "arrow", "csv", "orc"])
def test_files_that_a_filter_leaves_out_by_their_folders_stay_closed(form: str, tmp_path: Path, engine: str) -> None:
    made = Workflow(["shop", "group", "day", "number"]).fit_transform(Dataset(NULLS, engine=engine))
    made.to_parquet(str(tmp_path / "in"), files=2, format=form, partition_on=["day", "group"])
    rows = [row for row in NULLS.to_pylist() if row["day"] and row["day"].day == 2 and row["group"] in (0, 1)]
    assert rows
    for path in (tmp_path / "in").rglob("*.*"):
        if path.name == "_manifest.json":
            path.unlink()  # files of other sizes are damaged ones of an output
        elif "day=2024-01-02" not in str(path) or not {"group=0", "group=1"} & {*path.parts}:
            path.write_bytes(b"not opened")
    condition = "day == '2024-01-02' and (group <= 1 and number >= 0)"
    source = Source(path=str(tmp_path / "in"), format=form, filter=condition)
    plan = make_plan(source)
    assert (plan.rows, str(plan.schema["day"].dtype)) == (len(rows), "date32[day]")
    assert all("day=2024-01-02" in file.path for file in plan.files)
    assert {"day=2024-02-29" in path or "day=__HIVE" in path or "group=" in path for path in plan.skipped} == {True}

    output = Output(path=str(tmp_path / "out"), files=1, shuffle="none")
    done = run_stages(make_request(source, as_node(["number", "day"]), output, Run(), engine))
    found = pq.read_table(tmp_path / "out" / "part-00000.parquet")
    assert sorted(found["number"].to_pylist()) == sorted(row["number"] for row in rows)
    assert {day.day for day in found["day"].to_pylist()} == {2}
    assert done[0].skipped == len(plan.skipped) > 0


def test_folders_leave_out_nothing_that_a_filter_may_keep(tmp_path: Path) -> None:
    for kind in ("1", "2", "x"):
        (tmp_path / f"kind={kind}").mkdir()
        pq.write_table(pa.table({"x": [1, 2]}), tmp_path / f"kind={kind}" / "a.parquet")

    def kinds(condition: str) -> list[str]:
        plan = make_plan(Source(path=str(tmp_path), filter=condition))
        assert str(plan.schema["kind"].dtype) == "string"  # also where the folder x is left out
        return [Path(file.path).parent.name[-1] for file in plan.files]

    assert kinds("kind == '1'") == ["1"]
    assert kinds("kind == '1' or x > 1") == kinds("x > 1") == ["1", "2", "x"]
    assert kinds("x > 1 and kind in ['2', 'x']") == ["2", "x"]
    assert kinds("not (kind == '1')") == ["2", "x"]
    assert kinds("kind == 'none of them'") == ["1"]  # one file tells the types
    with pytest.raises(JobError, match="cannot compare"):
        kinds("kind == 1")
    pq.write_table(pa.table({"x": [3], "kind": ["1"]}), tmp_path / "kind=2" / "a.parquet")
    pq.write_table(pa.table({"x": [3], "kind": ["2"]}), tmp_path / "kind=1" / "a.parquet")
    pq.write_table(pa.table({"x": [3], "kind": ["2"]}), tmp_path / "kind=x" / "a.parquet")
    assert kinds("kind == '1'") == ["1", "2", "x"]  # the files have a column of that name


def test_nulls_of_a_csv_file_of_one_column_are_refused(tmp_path: Path, engine: str) -> None:
    def write(values: list[Any]) -> Manifest:
        source = Dataset(pa.table({"x": values}), engine=engine)
        return Workflow(["x"]).fit_transform(source).to_parquet(tmp_path / "out", files=1, format="csv", shuffle="none")

    with pytest.raises(DataError, match=r"1 null\(s\) of the only column 'x' cannot be written as CSV"):
        write(["a", None, ""])
    assert write(["a", ""]).rows["out"] == 2
    assert (tmp_path / "out/part-00000.csv").read_text() == '"x"\n"a"\n""\n'


def test_a_filter_that_leaves_only_files_without_rows_keeps_no_row(tmp_path: Path) -> None:
    for kind, values in (("1", [1, 2]), ("2", [])):
        (tmp_path / f"in/kind={kind}").mkdir(parents=True)
        pq.write_table(pa.table({"x": pa.array(values, pa.int64())}), tmp_path / f"in/kind={kind}" / "a.parquet")
    source = Source(path=str(tmp_path / "in"), filter="kind == 2")
    assert make_plan(source).rows == 2
    request = make_request(source, as_node(["x"]), Output(path=str(tmp_path / "out")), Run(), "pandas")
    with pytest.raises(DataError, match="no row is left"):
        run_stages(request)
