"""The story of a nightly job in the manual is true: its commands run as they stand there, and do what it says."""

from __future__ import annotations

import re
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml

from flows.commands.diff import diff
from flows.commands.discard import discard_version
from flows.sample import make_batches
from tasks.dataset import Dataset
from tasks.errors import DataError, GateStoppedError
from tasks.graph.saved_workflow import load_fitted
from tasks.graph.state import load_changes

MANUAL = (Path(__file__).resolve().parents[2] / "flows" / "NIGHTS.md").read_text()
STORY = MANUAL.partition("## A nightly job, from the first day to the thirtieth")[2].partition("\n## ")[0]
COMMANDS = re.findall(r"^    (rowmill .*|for .*)$", STORY, re.MULTILINE)
DAY = re.compile(r"--date (\S+)")


def spoiled(file: Path) -> None:
    """Give the prices of a file in cents."""
    table = pq.read_table(file)
    place = table.schema.get_field_index("price")
    cents = pc.multiply(table["price"], pa.scalar(100, table["price"].type))
    pq.write_table(table.set_column(place, "price", cents), file)


def vocabularies(version: Path) -> dict[str, list[Any]]:
    """The values of each column's ids, in their order."""
    values, found = load_fitted(version).state.values, {}
    for column in ("brand", "product_id", "user_id"):
        (key,) = [key for key in values if key.endswith(f"/Categorify/{column}")]
        found[column] = values[key]["values"]["v0"].to_pylist()
    return found


@pytest.mark.promise('`Dataset("out/nightly", versions="all")` reads all nights')
@pytest.mark.promise(
    "runs this story",
    "flows/NIGHTS.md#a-nightly-job-from-the-first-day-to-the-thirtieth",
)
def test_a_nightly_job_from_the_first_day_to_the_thirtieth(
    tmp_path: Path, run_alone: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (text,) = re.findall(r"```yml\n(.*?)```", STORY, re.DOTALL)
    job = yaml.safe_load(text)
    out = tmp_path / "out" / "nightly"

    def run(day: str) -> Path:
        (folder,) = run_alone({**job, "run": {**job["run"], "date": day}})
        return Path(folder)

    sample, first, second, compared, rest, thirtieth, taken_back, again = COMMANDS
    options = dict(re.findall(r"--(\w+) (\S+)", sample))
    make_batches(
        Path(options["path"]), int(options["nights"]), int(options["rows"]), start=date.fromisoformat(options["start"])
    )

    assert run(DAY.search(first)[1]) == out / "v0001"  # type: ignore[index]
    assert run(DAY.search(second)[1]) == out / "v0002"  # type: ignore[index]
    changes = load_changes(out / "v0002" / "_workflow")
    assert changes["base"] == "v0001"
    diff(*compared.split()[2:])
    assert "ids moved" in capsys.readouterr().out

    with pytest.raises(DataError, match="learned"):
        run(DAY.search(second)[1])  # type: ignore[index]

    low, high = re.search(r"%02g (\d+) (\d+)", rest).groups()  # type: ignore[union-attr]
    for day in range(int(low), int(high) + 1):
        run(f"2026-10-{day:02d}")
    assert (out / "_latest").read_text().strip() == "v0028"

    day = DAY.search(thirtieth)[1]  # type: ignore[index]
    (file,) = (tmp_path / "logs" / "2026-10-29").glob("*.parquet")
    whole = file.read_bytes()
    spoiled(file)
    with pytest.raises(GateStoppedError, match="price"):
        run(day)
    assert (out / "_latest").read_text().strip() == "v0028"
    file.write_bytes(whole)
    assert run(day) == out / "v0029"

    path, why = re.search(r"discard (\S+) --why '(.*)'", taken_back).groups()  # type: ignore[union-attr]
    discard_version(Path(path), why)
    assert (out / "_latest").read_text().strip() == "v0028"
    assert run(DAY.search(again)[1]) == out / "v0030"  # type: ignore[index]
    assert load_changes(out / "v0030" / "_workflow")["base"] == "v0028"

    nights = [vocabularies(out / f"v{number:04d}") for number in (*range(1, 29), 30)]
    for earlier, later in pairwise(nights):
        for column, values in earlier.items():
            assert later[column][: len(values)] == values  # ids of earlier nights are those of later ones
    for column, values in nights[-1].items():
        assert len(values) > 1.5 * len(nights[0][column])

    rows = [pq.read_metadata(part).num_rows for part in out.glob("v00*/part-*.parquet")]
    discarded_rows = sum(pq.read_metadata(part).num_rows for part in out.glob("v0029/part-*.parquet"))
    assert Dataset("out/nightly", versions="all").num_rows == sum(rows) - discarded_rows
