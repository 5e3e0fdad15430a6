"""From a folder of messy files to a trained model: the drafted job, six edits, no other hand-written line."""

from __future__ import annotations

import runpy
from pathlib import Path
from random import Random

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from flows.job.job import load_job
from tasks.manifest import Manifest
from tests.stages import run_stages

ROWS_OF_DAY, DAYS = 400, 4
EXAMPLE = Path(__file__).resolve().parents[2] / "flows" / "recipes" / "torch_example.py"
EDITS = [
    "source.bad_lines=skip",
    "source.unique={keys: [event_id]}",
    "source.split={by: hash, together: [user_id], valid: 0.2}",
    "output.path={out}",
    "output.files=2",
    "output.row_group_size=500",
]


def make_messy(folder: Path) -> tuple[int, int]:
    """Four days of clicks with every trap of a first pipeline; (events, rows that repeat an event).

    Latin-1 text with semicolons, decimal commas, days first in times, NA between numbers and between texts, a column of
    numbers that grows to fractions on the last day, a column that the files of the last two days alone have, deliveries
    that repeat lines, an event that comes again on another day, a line that was cut off, and an id that is unused.
    """
    folder.mkdir()
    draw, number, repeated, first = Random(1), 0, 0, ""
    for day in range(1, DAYS + 1):
        lines = ["event_id;user_id;item_id;bought_at;price;age;country;clicked" + (";promo" if day > 2 else "")]
        for _ in range(ROWS_OF_DAY):
            number += 1
            item, age = draw.randrange(25), draw.randrange(18, 80)
            row = [
                f"e{number:06d}", f"u{draw.randrange(60)}", f"i{item}",
                f"{day:02d}.11.2026 {draw.randrange(24):02d}:{draw.randrange(60):02d}",
                f"{draw.randrange(1, 400)},{draw.randrange(100):02d}",
                "NA" if draw.random() < 0.1 else f"{age},5" if day == DAYS else str(age),
                draw.choice(["DE", "FR", "Österreich", "NA"]), str(int(item % 3 == 0)),
            ]  # fmt: skip
            lines.append(";".join(row + ([draw.choice(["", "sale", "new"])] if day > 2 else [])))
            if draw.random() < 0.05:
                lines.append(lines[-1])
                repeated += 1
        if day == 2:
            lines.insert(7, "e9;cut off")
            lines.append(first)
            repeated += 1
        first = first or lines[1]
        (folder / f"2026-11-{day:02d}.csv").write_text("\n".join(lines) + "\n", encoding="latin-1")
    return number, repeated


@pytest.mark.promise(
    "Columns that only some files have, and lines that cannot be read, are in the draft with their number"
)
def test_a_draft_and_six_edits_make_a_trained_model(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from rowmill.cli import app

    monkeypatch.chdir(tmp_path)
    events, repeated = make_messy(tmp_path / "data")
    drafted = CliRunner().invoke(app, ["new", "data"])
    assert drafted.exit_code == 0
    draft = yaml.safe_load(drafted.stdout)
    settings = {"null_values": ["", "NA"], "delimiter": ";", "decimal": ",", "encoding": "latin-1"}
    assert draft["source"] == {"path": "data", **settings, "missing": "null"}
    assert draft["label"] == ["clicked"]
    for said in (
        "column 'promo' is missing in", "column 'age' is float64 in", "1 line cannot be read: ",
        "event_id: string, 1,600 value(s)", "bought_at: string, a time as %d.%m.%Y %H:%M",
    ):  # fmt: skip
        assert said in drafted.stdout

    (tmp_path / "job.yaml").write_text(drafted.stdout.replace("columns: [event_id, ", "columns: ["))
    job = load_job(tmp_path / "job.yaml", [edit.replace("{out}", "out") for edit in EDITS])
    ingested, *_ = run_stages(job.request(engine))
    assert (ingested.rows, ingested.bad_lines) == (events + repeated, 1)

    train, valid = (pq.read_table(tmp_path / "out" / split) for split in ("train", "valid"))
    assert len(train) + len(valid) == events
    assert "event_id" not in train.column_names
    assert not set(train["user_id"].to_pylist()) & set(valid["user_id"].to_pylist()) - {1, 2}  # null, out of vocabulary
    assert pc.min_max(train["bought_at_day"]).as_py() == {"min": 1, "max": DAYS}
    assert train["age"].null_count == train["price"].null_count == 0
    manifest = Manifest.load(str(tmp_path / "out" / "train"))
    assert manifest.data["row_rules"]["unique"]["rows"] == repeated
    assert [file["count"] for file in manifest.data["bad_lines"]] == [1]

    losses = runpy.run_path(str(EXAMPLE))["train"](str(tmp_path / "out" / "train"), epochs=6, batch_size=100, workers=0)
    assert losses[-1] < 0.2 < losses[0]
