"""The recipe sequences through the real flow: what plain pandas makes of the same events, and nothing leaks."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.job.job import load_job, make_job
from flows.preprocess import preprocess
from flows.sample.plugin import make_samples
from tasks.errors import JobError
from tests.flows.runs import call, have_stages_here, rows_of
from tests.flows.test_recipes import ids, run_recipe, source_of

pytestmark = pytest.mark.xdist_group("flows")
LENGTH, ROWS = 50, 20_000
CODED = ["product_id", "category_code", "event_type"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the recipe ran on events that are harder than those of the sample: in no order, a quarter of an
    hour long, so that visitors have many at one time."""
    folder = tmp_path_factory.mktemp("sequences")
    data, draw = folder / "data" / "sequences", np.random.default_rng(0)
    places = [f"source.path={data}/train", f"source.valid={data}/valid", f"source.sample.rows={ROWS}"]
    make_samples(load_job("sequences", places, sample=True), logging.getLogger("rowmill"))
    for path in (data / "train", data / "valid"):
        table = source_of(path)
        shutil.rmtree(path)
        path.mkdir()
        table["event_time"] = table["event_time"].dt.floor("15min")
        pq.write_table(pa.Table.from_pandas(table.iloc[draw.permutation(len(table))]), path / "part-00000.parquet")
    with pytest.MonkeyPatch.context() as patched:
        have_stages_here(patched)
        run_recipe("sequences", folder, partial(call, preprocess), ROWS)
    return folder


def events(folder: Path, split: str) -> pd.DataFrame:
    """The events of a split with what the training rows taught, those of a visitor in the order of time."""
    train, table = (source_of(folder / "data" / "sequences" / name) for name in ("train", split))
    table = table.assign(**{name: ids(table[name], train[name]) for name in CODED})
    table["seconds"] = table["event_time"].astype("int64") // 10**6
    learned = np.log1p(train["price"])
    table["price"] = ((np.log1p(table["price"]) - learned.mean()) / learned.std(ddof=1)).astype("float32")
    return table.sort_values("event_time", kind="stable").reset_index(drop=True)


def expected(folder: Path, split: str) -> Iterator[dict[str, Any]]:
    """A row for each event that has earlier ones, visitor by visitor."""
    for user, own in events(folder, split).groupby("user_id", sort=False):
        columns = {name: own[name].tolist() for name in (*CODED, "price", "seconds")}
        for place, (second, product) in enumerate(zip(columns["seconds"], columns["product_id"], strict=True)):
            before = [n for n in range(place) if columns["seconds"][n] < second][-LENGTH:]
            if before:
                lists = {f"{name}_history": [values[n] for n in before] for name, values in columns.items()}
                yield {"user": user, "seconds": second, "product_id": product, **lists}


def written(folder: Path, split: str) -> list[dict[str, Any]]:
    return rows_of(folder / "out" / split).to_pylist()


def in_order(rows: list[dict[str, Any]], users: list[Any]) -> list[tuple[Any, ...]]:
    """Whole rows, sorted, but for prices, which are compared by their distance."""
    names = ["seconds", "product_id", *(f"{name}_history" for name in (*CODED, "seconds"))]
    keyed = [((user, *(row[n] for n in names)), row["price_history"]) for user, row in zip(users, rows, strict=True)]
    return sorted(keyed, key=lambda item: item[0])


@pytest.mark.promise(
    "the next product as target, what the visitor did before it as lists; nothing leaks, a later month as validation "
    "data"
)
@pytest.mark.parametrize("split", ["train", "valid"])
def test_every_row_is_what_plain_pandas_makes_of_the_events_before_it(folder: Path, split: str) -> None:
    wanted, found = list(expected(folder, split)), written(folder, split)
    users = [row["user"] for row in expected(folder, "train")]  # of the rows that stay, which user ids are learned from
    theirs = in_order(wanted, ids([row["user"] for row in wanted], users))
    ours = in_order(found, [row["user_id"] for row in found])
    assert len(ours) > {"train": ROWS // 2, "valid": ROWS // 10}[split]
    assert [row for row, _ in ours] == [row for row, _ in theirs]
    for (_, a), (_, b) in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)
    longest = max(len(row["product_id_history"]) for row in found)
    assert longest == LENGTH or split == "valid"


@pytest.mark.promise(
    "the next product as target, what the visitor did before it as lists; nothing leaks, a later month as validation "
    "data"
)
@pytest.mark.parametrize("split", ["train", "valid"])
def test_no_history_has_an_event_at_or_after_its_target(folder: Path, split: str) -> None:
    source = source_of(folder / "data" / "sequences" / split)
    assert source.duplicated(["user_id", "event_time"]).mean() > 0.3  # of several of one time none is in a history
    for row in written(folder, split):
        times = row["seconds_history"]
        assert 1 <= len(times) <= LENGTH
        assert times == sorted(times)
        assert times[-1] < row["seconds"]
        assert {len(row[f"{name}_history"]) for name in (*CODED, "price")} == {len(times)}


@pytest.mark.promise(
    "the next product as target, what the visitor did before it as lists; nothing leaks, a later month as validation "
    "data"
)
def test_what_is_learned_comes_from_rows_before_the_validation_rows(folder: Path) -> None:
    train, valid = (source_of(folder / "data" / "sequences" / name) for name in ("train", "valid"))
    assert train["event_time"].max() < valid["event_time"].min()
    unseen = ~valid["product_id"].isin(train["product_id"])
    assert 0 < unseen.mean() < 1
    seen = written(folder, "train")
    assert min(min(row["product_id"], *row["product_id_history"]) for row in seen) >= 3  # each has an id of its own
    later = [row["product_id"] for row in written(folder, "valid")]
    assert 0 < later.count(2) / len(later) < 1  # out of vocabulary: not learned from
    names = {"seconds", "user_id", "product_id", *(f"{name}_history" for name in (*CODED, "price", "seconds"))}
    assert set(rows_of(folder / "out" / "train").column_names) == names  # of the target's own row nothing that tells it


def test_only_the_sample_ecommerce_has_a_later_month() -> None:
    assert load_job("sequences").source.sample.later  # type: ignore[union-attr]
    job = load_job("toy").model_dump(by_alias=True, mode="json", exclude_unset=True)
    job["source"]["sample"]["later"] = True
    with pytest.raises(JobError, match="later is of the sample ecommerce, not of toy"):
        make_job(job)
