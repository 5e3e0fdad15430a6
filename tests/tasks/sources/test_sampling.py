"""A few rows of a source or an output, whatever their format; never much of a file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.dataset import Dataset
from tasks.sources import sampling
from tasks.storage.published_copy import PublishedCopy


def test_rows_of_parquet_are_from_several_places(tmp_path: Path) -> None:
    table = pa.table({"x": range(800_000), "s": [str(i % 7) for i in range(800_000)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100_000)
    sample = sampling.of_source(Dataset(str(tmp_path)).plan, rows=40)
    assert sample is not None
    assert sample["x"].to_pylist() == [start + i for start in (0, 200_000, 400_000, 600_000) for i in range(10)]
    assert sample["s"].to_pylist()[:3] == ["0", "1", "2"]


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_the_first_records_of_text(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "TEXT_BYTES", 100)
    if suffix == "jsonl":
        lines = [f'{{"x": {i}, "s": "a b"}}' for i in range(1000)]
    else:
        comma = {"csv": ",", "tsv": "\t"}[suffix]
        lines = [f"x{comma}s", *(f'{i}{comma}"a\nb"' for i in range(1000))]
    (tmp_path / f"a.{suffix}").write_text("\n".join(lines) + "\n")
    sample = sampling.of_source(Dataset(str(tmp_path)).plan)
    assert sample is not None
    assert 3 <= sample.num_rows <= 15
    assert sample["x"].to_pylist() == list(range(sample.num_rows))


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_fields_of_structs_and_elements_of_lists_are_sampled(tmp_path: Path, suffix: str) -> None:
    rows = [{"u": n, "item": {"id": n}, "events": [{"aid": n}, {"aid": 10 * n}]} for n in range(3)]
    if suffix == "jsonl":
        (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=2)
    types = {"item.id": "string", "events.aid": "float64"}
    data = Dataset(str(tmp_path), schema=types, explode="events")
    sample = sampling.of_source(data.plan, rows=5)
    assert sample is not None
    assert sample.select(["u", "item.id", "events.aid"]).to_pydict() == {
        "u": [0, 0, 1, 1, 2], "item.id": ["0", "0", "1", "1", "2"], "events.aid": [0.0, 0.0, 1.0, 10.0, 2.0]
    }  # fmt: skip


def test_compressed_text_is_not_read_for_a_sample(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"x\n1\n2\n"))
    assert sampling.of_source(Dataset(str(tmp_path)).plan) is None


def manifest(parts: dict[str, int], form: str = "parquet", shuffle: str = "full") -> dict[str, Any]:
    return {
        "parts": [{"path": p, "rows": n, "bytes": 1} for p, n in parts.items()],
        "output": {"format": form, "shuffle": shuffle},
    }


def test_the_rows_of_a_full_shuffle_are_those_of_one_file_of_other_modes_those_of_four(tmp_path: Path) -> None:
    names = [f"part-{i}.parquet" for i in range(8)]
    for i, name in enumerate(names):
        pq.write_table(pa.table({"x": [10 * i + j for j in range(10)]}), tmp_path / name)
    parts = dict.fromkeys(names, 10)
    one = sampling.of_output(PublishedCopy(tmp_path), manifest(parts), rows=4)
    four = sampling.of_output(PublishedCopy(tmp_path), manifest(parts, shuffle="none"), rows=4)
    assert one is not None
    assert four is not None
    assert one["x"].to_pylist() == [0, 1, 2, 3]
    assert four["x"].to_pylist() == [0, 20, 40, 60]


def test_an_output_without_rows_has_no_sample(tmp_path: Path) -> None:
    assert sampling.of_output(PublishedCopy(tmp_path), manifest({"a.parquet": 0})) is None


def test_nulls_are_counted_by_the_footers_where_all_have_statistics(tmp_path: Path) -> None:
    table = pa.table({"x": [1, None, 3], "y": pa.array([None, None, None], pa.string())})
    pq.write_table(table, tmp_path / "a.parquet")
    pq.write_table(table, tmp_path / "b.parquet", write_statistics=["y"])
    assert sampling.null_counts(PublishedCopy(tmp_path), manifest({"a.parquet": 3})) == {"x": 1, "y": 3}
    assert sampling.null_counts(PublishedCopy(tmp_path), manifest({"a.parquet": 3, "b.parquet": 3})) == {"y": 6}
