"""The recipe sessions through the real flow: what it writes equals a plain computation on the same events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import flows
from flows.job.job import make_job
from tests.flows.runs import rows_of
from tests.flows.test_recipes import ids, run_recipe, scaled, source_of
from tests.stages import run_stages

pytestmark = pytest.mark.xdist_group("flows")
CLOSE = {"rtol": 2e-5, "atol": 2e-5}  # outputs are float32


@pytest.mark.promise("events grouped by session and sorted by time")
def test_sessions(tmp_path: Path, run_alone: Any) -> None:
    (out,) = run_recipe("sessions", tmp_path, run_alone, 20_000)
    found = rows_of(out).to_pylist()
    events = source_of(tmp_path / "data" / "sessions").sort_values("event_time", kind="stable")
    sessions = events.groupby("user_session", sort=False)
    events["pause"] = np.log1p(sessions["event_time"].diff().dt.total_seconds().fillna(0))
    events["rolling"] = sessions["price"].transform(lambda price: price.rolling(3, min_periods=1).mean())
    events["bought"] = events["event_type"] == "purchase"
    last = sessions.tail(20)

    def lists(column: str, coded: bool) -> pd.Series:
        """The column's last 20 values of each session, as ids or scaled."""
        values = events.loc[last.index, column]
        made = ids(values, values) if coded else scaled(values)
        return (
            pd.Series(list(made), index=events.loc[last.index, "user_session"]).groupby(level=0, sort=False).agg(list)
        )

    expected = sessions.agg(
        count=("product_id", "count"), nunique=("product_id", "nunique"), mean=("price", "mean"), most=("price", "max"),
        bought=("bought", "last"), start=("event_time", "first"), user=("user_id", "first"),
    )  # fmt: skip
    expected["mean"], expected["most"] = scaled(np.log1p(expected["mean"])), scaled(np.log1p(expected["most"]))
    expected["user"] = ids(expected["user"], expected["user"])
    coded = {"products": "product_id", "codes": "category_code", "types": "event_type"}
    for name, column in {**coded, "pauses": "pause", "prices": "rolling"}.items():
        expected[name] = lists(column, name in coded)

    assert len(found) == len(expected) > 3000

    def facts(row: Any) -> tuple[Any, ...]:
        return (row["products"], row["codes"], row["types"], row["count"], row["nunique"], int(row["bought"]),
                row["user"], row["start"].hour, row["start"].weekday())  # fmt: skip

    def written(row: dict[str, Any]) -> tuple[Any, ...]:
        names = ["product_id_list", "category_code_list", "event_type_list", "product_id_count", "product_id_nunique",
                 "bought", "user_id_first", "start_hour", "start_weekday"]  # fmt: skip
        return tuple(row[name] for name in names)

    wanted = sorted((facts(row), i) for i, row in enumerate(expected.to_dict("records")))
    got = sorted((written(row), i) for i, row in enumerate(found))
    assert [f for f, _ in got] == [f for f, _ in wanted]
    numbers = [
        ("pauses", "pause_list"),
        ("prices", "price_rolling_mean_3_list"),
        ("mean", "price_mean"),
        ("most", "price_max"),
    ]
    for theirs, ours in numbers:
        a = np.concatenate([np.atleast_1d(expected[theirs].iloc[i]) for _, i in wanted])
        b = np.concatenate([np.atleast_1d(found[i][ours]) for _, i in got])
        np.testing.assert_allclose(np.sort(a), np.sort(b), **CLOSE)


@pytest.mark.promise("Events without a session id get one from the time between two events of a user")
def test_sessions_are_cut_where_the_next_event_comes_late(tmp_path: Path) -> None:
    """The recipe of the page, on two users: half an hour is not a gap, a second more is."""
    page = (Path(flows.__file__).parent / "README.md").read_text()
    job = yaml.safe_load(page.partition("`session` counts the sessions of each user from 0:")[2].split("```")[1][5:])
    seconds = [0, 1800, 3601, 100, 5000, 5001]
    table = pa.table({
        "user": ["a", "a", "a", "b", "b", "b"], "item": [1, 2, 3, 4, 5, 6],
        "time": pa.array(seconds, pa.timestamp("s")),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "in.parquet")
    job["source"]["path"], job["output"] = str(tmp_path / "in.parquet"), {"path": str(tmp_path / "out"), "files": 1}
    run_stages(make_job(job).request("pandas"))
    lists = sorted(pq.read_table(tmp_path / "out")["item_list"].to_pylist())
    assert lists == [[1, 2], [3], [4], [5, 6]]


@pytest.mark.promise("becomes a row per event with")
def test_a_list_of_events_becomes_rows_as_the_page_says(tmp_path: Path) -> None:
    page = (Path(flows.__file__).parent / "README.md").read_text()
    job = yaml.safe_load(page.partition("becomes a row per event with")[2].split("```")[1].removeprefix("yaml"))
    sessions: list[dict[str, Any]] = [
        {"session": 7, "events": [{"aid": 1, "ts": 20, "type": "carts"}, {"aid": 2, "ts": 10, "type": "clicks"}]},
        {"session": 8, "events": []},
        {"session": 9, "events": [{"aid": 1, "ts": 30, "type": "clicks"}]},
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(session) + "\n" for session in sessions))
    job["source"]["path"] = str(tmp_path / "train.jsonl")
    job["output"] = {"path": str(tmp_path / "out"), "files": 1, "shuffle": "none"}
    run_stages(make_job(job).request("pandas"))
    rows = pq.read_table(tmp_path / "out").to_pylist()
    assert sorted((row["session"], row["events.ts"], row["events.aid"], row["events.type"]) for row in rows) == [
        (7, 10, 4, 3), (7, 20, 3, 4), (9, 30, 3, 3),
    ]  # fmt: skip
