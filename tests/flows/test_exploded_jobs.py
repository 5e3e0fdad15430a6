"""Jobs whose source turns lists into rows: every shuffle and rule, fitted workflows, refits, previews and reports."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.job.job import make_application, make_job
from flows.preview.job_preview import preview
from flows.preview.preview_text import sections
from tasks import ops
from tasks.cluster.dask_pool import DaskPool
from tasks.cluster.local_pool import LocalPool
from tasks.core import plan
from tasks.core.plan import Limits
from tasks.dataset import Dataset
from tasks.errors import DataError, JobError
from tasks.job.base_version import find_newest_good
from tasks.sources import planning
from tasks.stages import plan_splits
from tasks.workflow import Workflow
from tests.flows.runs import rows_of
from tests.frames import to_list
from tests.stages import Report, run_stages

KINDS = ("clicks", "carts", "orders")
SESSIONS: list[dict[str, Any]] = [
    {"session": n, "events": [{"aid": (7 * n + i) % 11, "ts": 100 * n + i, "type": KINDS[i % 3]} for i in range(n % 5)]}
    for n in range(60)
]
SESSIONS[5]["events"] = None
EVENTS = [{"session": one["session"], **event} for one in SESSIONS for event in one["events"] or ()]
NAMES = ["session", "events.aid", "events.ts", "events.type"]
TEXT = (
    "source.explode: 60 rows of the files become 120, one for each element of events; 12 have an empty list or null "
    "there and are left out"
)


def write(path: Path, sessions: list[dict[str, Any]] = SESSIONS) -> str:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(sessions), path, row_group_size=9)
    else:
        path.write_text("".join(json.dumps(one) + "\n" for one in sessions))
    return str(path)


def job_of(
    path: str, out: Path, features: list[dict[str, Any]] | None = None, *, source: dict[str, Any] | None = None,
    output: dict[str, Any] | None = None, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """A job that writes the events as they are."""
    return {
        "source": {"path": path, "explode": "events", **(source or {})},
        "features": features or [{"columns": NAMES}],
        "output": {"path": str(out), "files": 2, **(output or {})},
        **more,
    }


def written(folder: Path) -> list[tuple[Any, ...]]:
    """The rows of an output, in its order."""
    table = rows_of(folder)
    return [*zip(*(table[name].to_pylist() for name in NAMES), strict=True)]


TRUTH = [(one["session"], one["aid"], one["ts"], one["type"]) for one in EVENTS]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources of many blocks, of few elements each."""
    limits = Limits(join_below=7, cut_above=5, range_bytes=300)
    monkeypatch.setattr(plan_splits, "make_plan", partial(planning.make_plan, limits=limits))


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize("shuffle", ["none", "partition", "worker", "full", "key"])
@pytest.mark.usefixtures("small_blocks")
def test_every_shuffle_has_the_rows_and_the_order_of_the_exploded_file(
    suffix: str, shuffle: str, engine: str, tmp_path: Path
) -> None:
    """The output is the same bytes as that of rows which were exploded before; whatever the size of partitions."""
    keys = {"keys": ["session"], "sort_by": ["events.ts"]} if shuffle == "key" else {}
    source = write(tmp_path / f"in.{suffix}")
    outputs = []
    for number, size in enumerate((1, 10**9)):
        out = tmp_path / f"out{number}"
        job = job_of(source, out, source={"partition_size": size}, output={"shuffle": shuffle, **keys},
                     run={"min_partition_size": 1})  # fmt: skip
        (ingested, *_) = run_stages(make_job(job).request(engine))
        assert (ingested.rows, ingested.exploded) == (120, TEXT)
        assert ingested.blocks > 15
        outputs.append(written(out))
    assert sorted(outputs[0]) == sorted(TRUTH)
    if shuffle in ("none", "full", "key"):
        assert outputs[0] == outputs[1]
    if shuffle == "none":
        assert outputs[0] == TRUTH
    if shuffle == "full":
        flat = [{"session": one["session"], "events": {"aid": one["aid"], "ts": one["ts"], "type": one["type"]}}
                for one in EVENTS]  # fmt: skip
        job = job_of(write(tmp_path / f"flat.{suffix}", flat), tmp_path / "flat", source={"explode": None})
        run_stages(make_job(job).request(engine))
        assert written(tmp_path / "flat") == outputs[0]


RULES: list[tuple[dict[str, Any], dict[str, int]]] = [
    ({"filter": "events.type == 'clicks' and session < 30"}, {"": 30}),
    ({"unique": {"keys": ["session"], "keep": "last", "by": "events.ts"}}, {"": 48}),
    ({"split": {"by": "last", "column": "events.ts", "together": ["session"], "test": 1}}, {"train": 84, "test": 36}),
    ({"split": {"by": "time", "column": "events.ts", "test": 0.25}}, {"train": 90, "test": 30}),
    ({"split": {"by": "hash", "together": ["session"], "test": 0.3}}, {"train": 85, "test": 35}),
    ({"downsample": {"where": "events.type == 'clicks'", "fraction": 0.5}}, {"": 92}),
    ({"keys": ["session"], "sort_by": ["events.ts"]}, {"": 120}),
    ({"keys": ["session"], "parse_once": True}, {"": 120}),
]


@pytest.mark.promise("All that follows works on the new rows")
@pytest.mark.parametrize(("rule", "counts"), RULES)
@pytest.mark.usefixtures("small_blocks")
def test_rules_are_of_the_new_rows(rule: dict[str, Any], counts: dict[str, int], tmp_path: Path) -> None:
    job = job_of(write(tmp_path / "in.jsonl"), tmp_path / "out", source=rule, output={"shuffle": "none"})
    run_stages(make_job(job).request("pandas"))
    rows = {split: written(tmp_path / "out" / split) for split in counts}
    assert {split: len(some) for split, some in rows.items()} == counts
    assert {row for some in rows.values() for row in some} <= {*TRUTH}
    if rule.get("split", {}).get("by") == "hash":
        assert {row[0] for row in rows["train"]}.isdisjoint(row[0] for row in rows["test"])
    if rule.get("split", {}).get("by") == "last":
        assert all(row[2] % 100 == row[0] % 5 - 1 for row in rows["test"])
    if "keys" in rule:
        assert all(rows[""][i][0] == rows[""][i + 1][0] or rows[""][i][2] % 100 == rows[""][i][0] % 5 - 1
                   for i in range(119))  # fmt: skip


CODED = [{"columns": ["events.aid"], "ops": [{"op": "Categorify"}]}, {"columns": ["session"]}]


@pytest.mark.promise("`apply` and `refit` explode as the fit did, unless their source sets the key")
def test_a_fitted_workflow_explodes_later_data(tmp_path: Path, engine: str) -> None:
    run_stages(make_job(job_of(write(tmp_path / "in.jsonl"), tmp_path / "fit", CODED)).request(engine))
    later = [{"session": 7, "events": [{"aid": 3}, {"aid": 99}]}, {"session": 8, "events": []}]
    job: dict[str, Any] = {"fitted": str(tmp_path / "fit"), "source": {"path": write(tmp_path / "later.jsonl", later)},
                           "output": {"path": str(tmp_path / "out"), "files": 1, "shuffle": "none"}}  # fmt: skip
    run_stages(make_application(job).request(engine))
    out = rows_of(tmp_path / "out").to_pydict()
    assert out["session"] == [7, 7]
    assert out["events.aid"][1] == 2  # no id of the fit

    flat = [{"session": 7, "events": {"aid": 3}}]
    job["source"] = {"path": write(tmp_path / "flat.jsonl", flat)}
    job["output"]["path"] = str(tmp_path / "flat")
    with pytest.raises(JobError, match="column 'events' has no lists") as error:
        run_stages(make_application(job).request(engine))
    assert error.value.do == (
        "the fitted workflow explodes this column; if its values are rows already, set source.explode: null"
    )
    job["source"]["explode"] = None
    (ingested, *_) = run_stages(make_application(job).request(engine))
    assert ingested.differs_from_fit == "source.explode is none, in the fit events"
    assert rows_of(tmp_path / "flat").to_pydict() == {"events.aid": [out["events.aid"][0]], "session": [7]}

    saved = Workflow.load(tmp_path / "fit")
    again = saved.transform(Dataset(str(tmp_path / "later.jsonl"), engine=engine))
    assert to_list(again.head()["session"]) == [7, 7]
    served = saved.transform(pa.table({"session": [7], "events.aid": [3]}))
    assert served.to_pydict() == {"events.aid": [out["events.aid"][0]], "session": [7]}


def test_nights_learn_from_exploded_rows(tmp_path: Path) -> None:
    out = tmp_path / "out"
    nights = [
        [{"session": 1, "events": [{"aid": 5, "ts": 1}, {"aid": 5, "ts": 2}, {"aid": 7, "ts": 3}]}],
        [{"session": 2, "events": [{"ts": 4, "aid": 9}]}, {"session": 3, "events": [None, {"aid": 7, "ts": 5}]}],
    ]
    for number, sessions in enumerate(nights):
        source = write(tmp_path / f"{number}.parquet", sessions)
        job = job_of(source, out, CODED, output={"on_existing": "version", "files": 1, "shuffle": "none"})
        made = make_job(job | ({"base": str(out)} if number else {}))
        run_stages(made.request("pandas", find_newest_good(made.base_path).version if made.base_path else None))
    assert rows_of(out / "v0001").to_pydict() == {"events.aid": [3, 3, 4], "session": [1, 1, 1]}
    assert rows_of(out / "v0002").to_pydict() == {"events.aid": [5, 1, 4], "session": [2, 3, 3]}


def test_a_preview_and_a_report_show_the_new_rows(tmp_path: Path) -> None:
    made = make_job(job_of(write(tmp_path / "in.parquet"), tmp_path / "out"))
    shown = preview(made)
    (section,) = [one for one in sections(shown) if one.title == "How columns are read"]
    assert section.text == TEXT
    assert shown.rows == 120
    assert shown.sample.before.num_rows == 120
    run_stages(made.request("pandas"), plugins=[Report()])
    report = (tmp_path / "out" / "_report.html").read_text()
    assert "events.aid" in report
    assert "could not be sampled" not in report


def test_each_split_says_how_many_rows_it_has_and_a_contract_may_leave_out_the_column(tmp_path: Path) -> None:
    valid = write(tmp_path / "valid.jsonl", [{"session": 1, "events": [{"aid": 1}, {"aid": 2}]}])
    features = [{"columns": ["session"]}]
    contract = {"columns": {"session": {"type": "int64"}}, "new_columns": "discard_column"}
    job = job_of(write(tmp_path / "in.jsonl"), tmp_path / "out", features, source={"valid": valid}, contract=contract)
    (ingested, *_) = run_stages(make_job(job).request("pandas"))
    assert ingested.exploded == (
        f"train: {TEXT}; valid: source.explode: 1 rows of the files become 2, one for each element of events"
    )
    assert rows_of(tmp_path / "out" / "valid").to_pydict() == {"session": [1, 1]}

    write(tmp_path / "valid.jsonl", [{"session": 1, "events": []}])
    job["output"]["path"] = str(tmp_path / "none")
    with pytest.raises(DataError, match="there are no validation data") as error:
        run_stages(make_job(job).request("pandas"))
    assert error.value.why == "source.explode makes a row of each element, and none of an empty or null list"


@pytest.mark.system
def test_workers_of_a_cluster_count_and_make_the_same_rows(tmp_path: Path, client: Any) -> None:
    source = write(tmp_path / "in.parquet")
    for name, pool in (("threads", LocalPool(1)), ("workers", DaskPool(client))):
        run_stages(make_job(job_of(source, tmp_path / name)).request("pandas"), pool=pool)
    assert written(tmp_path / "workers") == written(tmp_path / "threads")
    assert sorted(written(tmp_path / "workers")) == sorted(TRUTH)


def test_an_error_of_a_value_names_its_element(tmp_path: Path) -> None:
    later = [{"session": 1, "events": [{"type": "1"}, {"type": "2"}]}, {"session": 2, "events": [{"type": "x"}]}]
    job = job_of(write(tmp_path / "in.jsonl", later), tmp_path / "out", [{"columns": ["session"]}],
                 source={"filter": "cast(events.type, 'int64') > 0", "strict": True})  # fmt: skip
    with pytest.raises(DataError) as error:
        run_stages(make_job(job).request("pandas"))
    assert f"row 2 of the source (element 2 of events of {tmp_path}/in.jsonl, counted from 0)" in str(error.value)


def test_a_data_set_with_rules_and_a_plain_list(tmp_path: Path) -> None:
    path = write(tmp_path / "in.jsonl", [{"u": 1, "x": [3, 4]}, {"u": 2, "x": None}, {"u": 3, "x": [4]}])
    data = Dataset(path, explode="x", engine="pandas")
    assert data.head().to_dict("list") == {"u": [1, 1, 3], "x": [3, 4, 4]}
    assert data.unique("x").head().to_dict("list") == {"u": [1, 1], "x": [3, 4]}
    assert data.shuffle_by_keys("u").num_rows == 3
    coded = Workflow(["x"] >> ops.Categorify()).fit_transform(data)
    assert coded.head().to_dict("list") == {"x": [4, 3, 3]}
    assert data.as_source() == {"path": path, "explode": "x"}
    assert plan.EXPLODED in data.plan.options
