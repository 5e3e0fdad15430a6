"""A job that changes between nights: what goes on, what begins, what is refused, and how versions are read together."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from flows.job.job import make_application, make_job
from flows.preview.job_preview import preview
from tasks.dataset import Dataset
from tasks.errors import DataError, JobError
from tasks.graph.state import load_changes
from tasks.job.base_version import find_newest_good
from tasks.loading import loader
from tasks.workflow import Workflow
from tests.flows.runs import rows_of
from tests.flows.test_fit_apply import written
from tests.stages import run_stages

CODES = {"columns": ["k"], "ops": [{"op": "Categorify"}]}
SCALED = {"columns": ["x"], "ops": [{"op": "Normalize", "dtype": "float64"}]}


def columns_of(night: int, rows: int = 300) -> dict[str, Any]:
    """Rows of a night: each has values of `k`, `c` and `u` that no earlier night had."""
    random = np.random.default_rng(night)
    return {
        "k": [f"k{n}" for n in random.zipf(1.6, rows) % (20 + 10 * night)],
        "c": (random.zipf(1.8, rows) % (15 + 5 * night)).tolist(),
        "u": [[f"u{n}" for n in random.integers(0, 5 + night, 3)] for _ in range(rows)],
        "x": random.normal(night, 1 + night, rows).tolist(),
        "y": random.integers(0, 2, rows).tolist(),
        "z": random.integers(0, 2, rows).tolist(),
    }


def night(folder: Path, number: int, features: list[dict[str, Any]], engine: str = "pandas", **more: Any) -> Path:
    """A night on top of the newest good version, with its own features; the folder of its version."""
    columns = more.pop("rows", None) or columns_of(number)
    written(pa.table(columns), folder / f"{number}.parquet")
    data = {
        "base": str(folder / "out"), "source": {"path": str(folder / f"{number}.parquet")}, "features": features,
        "output": {"path": str(folder / "out"), "on_existing": "version", "files": 1, "shuffle": "none"},
        "run": {"report": False}, **more,
    }  # fmt: skip
    made = make_job(data)
    run_stages(made.request(engine, find_newest_good(folder / "out").version))
    return max((folder / "out").glob("v*"))


class Ids:
    """What Categorify has to do, written down independently: ids by first night, then count, then value.

    `forget` of a night: counts of values without an id that were not seen for so many days begin anew."""

    def __init__(self, threshold: int = 1, max_size: int = 0) -> None:
        self.threshold, self.max_size, self.ids, self.counts = threshold, max_size, dict[Any, int](), Counter[Any]()
        self.seen = dict[Any, int]()

    def night(self, values: list[Any], day: int = 0, forget: int | None = None) -> list[int]:
        late = [v for v in self.counts if v not in self.ids and forget is not None and day - self.seen[v] >= forget]
        for value in late:
            del self.counts[value]
        self.counts.update(values)
        self.seen |= {value: max(day, self.seen.get(value, day)) for value in values}
        waiting = [v for v in self.counts if v not in self.ids and self.counts[v] >= self.threshold]
        room = self.max_size - 3 - len(self.ids) if self.max_size else len(waiting)
        for value in sorted(waiting, key=lambda v: (-self.counts[v], v))[: max(room, 0)]:
            self.ids[value] = 3 + len(self.ids)
        return [self.ids.get(value, 2) for value in values]


@pytest.mark.promise("A step goes on with what the base has learned if three things are the same in the base")
def test_nights_with_changes_between_them(tmp_path: Path, engine: str) -> None:
    k, c, x, codes = Ids(2, 40), Ids(), list[float](), list[pd.DataFrame]()
    thresholds = [(2, 40), (2, 40), (3, 60), (1, 60), (1, 0), (1, 0)]
    for number, (threshold, max_size) in enumerate(thresholds):
        of = columns_of(number)
        k.threshold, k.max_size = threshold, max_size
        code = {"columns": ["k"], "ops": [{"op": "Categorify", "freq_threshold": threshold, "max_size": max_size}]}
        target = "y" if number < 4 else "z"
        encoded = {"columns": ["k"], "ops": [{"op": "TargetEncoding", "target": target, "kfold": 1, "p_smooth": 0,
                                              "dtype": "float64"}]}  # fmt: skip
        features = [code, SCALED, encoded]
        if number >= 1:  # a column more, before all others
            features = [{"columns": ["c"], "ops": [{"op": "Categorify"}]}, *features]
        if number >= 3:  # a column less
            features.remove(SCALED)
        version = night(tmp_path, number, features, engine, label=[target])
        rows = rows_of(version)

        assert rows["k"].to_pylist() == k.night(of["k"]), number
        x += of["x"]
        codes.append(pd.DataFrame({"k": rows["k"].to_pylist(), "y": of["y"], "z": of["z"]}))
        if number < 3:
            mean, deviation = np.mean(x), np.std(x, ddof=1)
            np.testing.assert_allclose(rows["x"], (np.array(of["x"]) - mean) / deviation, rtol=1e-12)
        else:
            assert "x" not in rows.column_names
        if number:
            assert rows["c"].to_pylist() == c.night(of["c"])
        seen = pd.concat(codes if number < 4 else codes[4:])  # the other label is learned from its first night on
        means = seen.groupby("k")[target].mean()
        np.testing.assert_allclose(rows[f"TE_k_{target}"], means[rows["k"].to_pylist()], rtol=1e-12)
        assert rows[target].to_pylist() == of[target]

    steps = load_changes(tmp_path / "out/v0005/_workflow")["steps"]
    assert {(one["op"], *one["columns"]): one["mode"] for one in steps.values()} == {
        ("Categorify", "c"): "appended", ("Categorify", "k"): "appended", ("TargetEncoding", "k"): "new",
    }  # fmt: skip
    first = Workflow.load(tmp_path / "out/v0001").transform(pa.table(columns_of(0)))
    stored = rows_of(tmp_path / "out/v0001")
    assert first.column_names == stored.column_names
    assert first["k"].to_pylist() == stored["k"].to_pylist()


HASHED = {"columns": ["c"], "ops": [{"op": "HashBucket", "num_buckets": 8}]}
LISTED = {"columns": ["u"], "ops": [{"op": "Categorify"}, {"op": "ListSlice", "start": 0, "end": 2}]}
FIRST = [CODES, SCALED, HASHED, LISTED]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return night(tmp_path, 0, FIRST)


def entry(column: str, *ops: Any, **more: Any) -> dict[str, Any]:
    return {"columns": [column], "ops": [*ops], **more}


@pytest.mark.promise("`would move`")
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (entry("k", {"op": "Categorify", "num_buckets": 5}),
         r"the ids of 'k' would move.*it is k >> Categorify in the base, k >> Categorify\(num_buckets=5\) in the job"),
        (entry("k", {"op": "Categorify", "vocabs": ["k1", "k2"]}), "the ids of 'k' would move"),
        (entry("k", {"op": "HashBucket", "num_buckets": 5}), "the ids of 'k' would move"),
        (entry("k"), "the ids of 'k' would move.*k in the job"),
        (entry("k", {"op": "Lambda", "expression": "upper(k)"}, {"op": "Categorify"}), "the ids of 'k' would move"),
        (entry("c", {"op": "HashBucket", "num_buckets": 9}), "the ids of 'c' would move"),
        (entry("u", {"op": "Categorify", "num_buckets": 2}, {"op": "ListSlice", "start": 0, "end": 2}),
         "the ids of 'u' would move"),
        (entry("k", {"op": "Categorify", "max_size": 9}), r"max_size 9 is less than the 2\d ids of the base"),
    ],
)  # fmt: skip
def test_what_would_move_an_id_is_refused(tmp_path: Path, base: Path, changed: dict[str, Any], why: str) -> None:
    features = [changed if one["columns"] == changed["columns"] else one for one in FIRST]
    with pytest.raises(JobError, match=f"(?s){why}.*base: none"):
        night(tmp_path, 1, features)
    assert not (tmp_path / "out/v0002").exists()


@pytest.mark.promise("A step goes on with what the base has learned if three things are the same in the base")
def test_what_leaves_ids_where_they_are_is_taken(tmp_path: Path, base: Path) -> None:
    """Order, names and tags of entries, columns that are cut elsewhere; the same column under another name is new."""
    listed = entry("u", {"op": "Categorify"}, {"op": "ListSlice", "start": 1}, {"op": "AddTags", "tags": ["item"]})
    other = entry("k", {"op": "Categorify", "num_buckets": 5}, {"op": "Rename", "name": "k5"})
    wide = entry("k", {"op": "Categorify", "dtype": "int64"})
    version = night(tmp_path, 1, [other, listed, HASHED, SCALED, wide])
    k, u = Ids(), Ids()
    for number in (0, 1):
        of = columns_of(number)
        ids = {"k": k.night(of["k"]), "u": u.night([one for some in of["u"] for one in some])}
    rows = rows_of(version)
    assert rows["k"].to_pylist() == ids["k"]
    assert rows.schema.field("k").type == pa.int64()
    assert [one for some in rows["u"].to_pylist() for one in some] == [n for i, n in enumerate(ids["u"]) if i % 3]
    fresh = Ids()
    assert rows["k5"].to_pylist() == [one + 4 for one in fresh.night(columns_of(1)["k"])]


@pytest.mark.promise("A file that is in both counts once", "flows/NIGHTS.md#every-night-on-top-of-the-last")
def test_new_steps_learn_from_older_rows_first(tmp_path: Path, engine: str) -> None:
    for number in (0, 1, 2):
        night(tmp_path, number, [CODES], engine)
    more = [CODES, entry("c", {"op": "Categorify"}), entry("x", {"op": "Normalize", "dtype": "float64"}),
            entry("c", {"op": "TargetEncoding", "target": "y", "dtype": "float64"})]  # fmt: skip
    logs = [str(tmp_path / f"{number}.parquet") for number in (1, 2, 3)]
    # the night's own file is among the older rows, and counts once
    version = night(tmp_path, 3, more, engine, refit={"learn_from": logs}, label=["y"])

    c = Ids()
    c.night([value for number in (1, 2) for value in columns_of(number)["c"]])
    assert rows_of(version)["c"].to_pylist() == c.night(columns_of(3)["c"])
    x = [value for number in (1, 2, 3) for value in columns_of(number)["x"]]
    expected = (np.array(columns_of(3)["x"]) - np.mean(x)) / np.std(x, ddof=1)
    np.testing.assert_allclose(rows_of(version)["x"], expected, rtol=1e-12)
    history = json.loads((version / "_workflow/workflow.json").read_text())["history"]
    assert (history["rows"], len(history["nights"])) == (1200, 4)

    with pytest.raises(DataError, match=r"(?s)there are no rows to learn from.*refit\.learn_from"):
        night(tmp_path, 4, [*more, HASHED], engine, refit={"learn_from": str(tmp_path / "nowhere")})


@pytest.mark.promise('Several versions together (`versions="all"`, a range) have the columns that exist in all of them')
def test_versions_of_several_jobs_are_read_by_their_common_columns(
    tmp_path: Path, base: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = entry("k", {"op": "Categorify", "dtype": "int64"})
    night(tmp_path, 1, [entry("y", {"op": "Rename", "name": "c5"}), code, HASHED, LISTED])
    night(tmp_path, 2, [code, HASHED, LISTED, entry("x", {"op": "Lambda", "expression": "cast(x, 'string')"})])
    out = tmp_path / "out"
    versions = [rows_of(out / f"v000{number}") for number in (1, 2, 3)]
    expected = [value for rows in versions for value in rows["k"].to_pylist()]

    dataset = Dataset(out, versions="all", engine="pandas")
    assert [*dataset.schema] == ["k", "c", "u"]
    assert [value for frame in dataset.to_iter() for value in frame["k"].to_list()] == expected
    left_out = "left out, since some versions lack it or have it in another type or with other ids: "
    assert f"{out}: {left_out}x, c5" in caplog.text
    caplog.clear()
    for device in (None, "cpu"):
        read = loader(out, versions="all", shuffle=False, batch_size=250, device=device)
        assert read.names == ("k", "c", "u")
        ids = [batch["k"] for batch in read]
        assert [value for some in ids for value in (some.to_pylist() if device is None else some.tolist())] == expected
    assert f"{out}: {left_out}x, c5" in caplog.text
    assert loader(out, versions="v0003", shuffle=False).names == ("k", "c", "u", "x")
    with pytest.raises(JobError, match="there is no column 'x'"):
        loader(out, ["x"], versions="all")
    assert [len(rows_of(version)) for version in (out / "v0001", out / "v0003")] == [300, 300]


@pytest.mark.promise(
    "dropped and came back counts as missing in the versions before it came back: the same id means another value there"
)
@pytest.mark.parametrize("applied", [False, True])
def test_a_column_of_ids_that_came_back_is_not_read_with_the_ids_that_it_had(tmp_path: Path, applied: bool) -> None:
    """Where no version lacks it: the one that did was removed, or was never applied."""
    out, u = tmp_path / "out", entry("u", {"op": "Categorify"})
    of = out if not applied else tmp_path / "applied"
    keep: dict[str, Any] = {"path": str(out), "on_existing": "version", "files": 1, "shuffle": "none"}
    for number, values in enumerate([["p", "q"], ["p", "r"], ["q", "r"], ["q", "p"]]):
        features = [CODES, u] if number != 1 else [CODES]
        keep |= {"keep_versions": 1} if number == 2 and not applied else {"keep_versions": None}
        night(tmp_path, number, features, rows={"k": ["a", "a"], "u": values}, output=keep)
        if number == 0:
            (out / "v0001/notes.txt").write_text("keeps this version")
        if applied and number != 1:
            new = {"fitted": str(out), "source": {"path": str(tmp_path / f"{number}.parquet")}}
            run_stages(make_application({**new, "output": {**keep, "path": str(of)}}).request("pandas"))
    (out / "v0001/notes.txt").unlink()

    versions = sorted(of.glob("v*"))
    assert [rows_of(version)["u"].to_pylist() for version in versions] == [[3, 4], [3, 4], [3, 5]]
    for text, columns in (("all", ["k"]), (f"{versions[1].name}..", ["k", "u"]), (versions[0].name, ["k", "u"])):
        assert list(loader(of, versions=text).names) == columns
        assert [*Dataset(of, versions=text, engine="pandas").schema] == columns


def test_preview_says_what_differs_and_what_becomes_of_it(tmp_path: Path, base: Path) -> None:
    written(pa.table(columns_of(1)), tmp_path / "1.parquet")
    features = [entry("y", {"op": "Normalize"}), entry("k", {"op": "Categorify", "max_size": 99}), HASHED]
    made = make_job({
        "base": str(tmp_path / "out"), "source": {"path": str(tmp_path / "1.parquet")}, "features": features,
        "label": ["z"], "output": {"path": str(tmp_path / "out"), "on_existing": "version"},
    })  # fmt: skip
    shown = preview(made)
    assert shown.base.split("; ")[1:] == [
        "Categorify of 'k' goes on with other parameters: max_size 0 in the base, 99 now",
        "Normalize of 'y' is new: v0001 has no such step",
        "Normalize of 'x' is dropped", "v0001 keeps it",
        "Categorify of 'u' is dropped", "v0001 keeps it",
        "columns that earlier versions lack: y, z", "columns that only earlier versions have: x, u",
        "label: z, in earlier versions none",
    ]  # fmt: skip
    assert {row["columns"]: row["mode"] for row in shown.modes} == {"k": "appended", "y": "new"}
