"""The recipes as shipped, on small samples: what they write equals a plain computation of the same rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from flows.job.job import load_job, make_application
from flows.preprocess import preprocess
from tasks.manifest import Manifest
from tasks.workflow import Workflow
from tests.flows.runs import call, have_stages_here, rows_of
from tests.stages import run_stages

pytestmark = pytest.mark.xdist_group("flows")
Run = Callable[[dict[str, Any]], list[Path]]
CLOSE = {"rtol": 2e-6, "atol": 2e-6}  # outputs are float32


def run_recipe(name: str, folder: Path, run: Run, rows: int, *changes: str) -> list[Path]:
    """Run a recipe with its data and its output in a folder, on a sample of so many rows."""
    source = load_job(name).source
    places = [f"source.path={folder}/{source.path}", f"output.path={folder}/out"]
    if source.valid:
        places.append(f"source.valid={folder}/{source.valid}")
    job = load_job(name, [*places, f"source.sample.rows={rows}", *changes])
    data = job.model_dump(by_alias=True, mode="json", exclude_unset=True)
    return run(data)


def source_of(folder: Path) -> pd.DataFrame:
    return pd.concat([pd.read_parquet(path) for path in sorted(folder.glob("*.parquet"))], ignore_index=True)


def ids(values: Iterable[Any], learned_from: Iterable[Any], threshold: int = 1) -> list[int]:
    """1 for null, 2 for what is not in the vocabulary, then by count descending and value ascending from 3."""
    counts = Counter(value for value in learned_from if not pd.isna(value))
    kept = [value for value, count in counts.items() if count >= threshold]
    place = {value: 3 + n for n, value in enumerate(sorted(kept, key=lambda value: (-counts[value], value)))}
    return [1 if pd.isna(value) else place.get(value, 2) for value in values]


def scaled(x: Any) -> Any:
    return (x - x.mean()) / x.std(ddof=1)


def folds_of(rows: np.ndarray, kfold: int, seed: int) -> np.ndarray:
    """floor(h kfold / 2^32), h = MurmurHash3_x86_32 of the row number as 8 little-endian bytes, after its reference."""
    mask = np.uint64(0xFFFFFFFF)

    def turned(h: np.ndarray, bits: int) -> np.ndarray:
        return ((h << np.uint64(bits)) | (h >> np.uint64(32 - bits))) & mask

    h = np.full(len(rows), seed, dtype=np.uint64)
    for word in (rows.astype(np.uint64) & mask, rows.astype(np.uint64) >> np.uint64(32)):
        k = turned(word * np.uint64(0xCC9E2D51) & mask, 15) * np.uint64(0x1B873593) & mask
        h = (turned(h ^ k, 13) * np.uint64(5) + np.uint64(0xE6546B64)) & mask
    h ^= np.uint64(8)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = (h ^ (h >> np.uint64(shift))) * np.uint64(factor) & mask
    h ^= h >> np.uint64(16)
    return (h * np.uint64(kfold) >> np.uint64(32)).astype(int)


@pytest.mark.promise("A recipe is a job that runs as shipped")
def test_toy_is_scaled_coded_and_shuffled(tmp_path: Path, run_alone: Run) -> None:
    (out,) = run_recipe("toy", tmp_path, run_alone, 5000)
    source = source_of(tmp_path / "data" / "toy")
    written = rows_of(out)
    table = written.sort_by("timestamp")

    assert [part["rows"] for part in Manifest.load(out).parts] == [625] * 8
    assert written.column_names == ["timestamp", "x", "y", "name", "id", "label"]
    assert written["timestamp"].to_pylist() != table["timestamp"].to_pylist()
    assert table["timestamp"].to_pandas().tolist() == source["timestamp"].tolist()
    for name in ("x", "y"):
        np.testing.assert_allclose(table[name].to_numpy(), scaled(source[name]), **CLOSE)
    for name in ("name", "id"):
        assert table[name].to_pylist() == ids(source[name], source[name])
    assert table["label"].to_pylist() == source["label"].tolist()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ecommerce recipe over 100,000 rows (about 5,000 are kept), written in the order of the source."""
    folder = tmp_path_factory.mktemp("ecommerce")
    with pytest.MonkeyPatch.context() as patched:
        have_stages_here(patched)
        run_recipe("ecommerce", folder, partial(call, preprocess), 100_000, "output.shuffle=none")
    return folder


def events(folder: Path, split: str) -> pd.DataFrame:
    """The kept events with target, the parts of the category and their row numbers, by plain pandas."""
    table = source_of(folder / "data" / "ecommerce" / split)
    table["row"] = np.arange(len(table))
    table = table[table.event_type.isin(["cart", "purchase"])].reset_index(drop=True)
    table["target"] = (table.event_type == "purchase").astype(int)
    parts = table.category_code.str.split(".", expand=True).reindex(columns=range(4))
    return table.assign(**{f"cat_{n}": parts[n].where(parts[n].notna(), None) for n in range(4)})


def group_sums(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    grouped = table.groupby(keys, dropna=False)["target"]
    return pd.DataFrame({"S": grouped.sum(), "C": grouped.count()}).reset_index()


def joined(table: pd.DataFrame, sums: pd.DataFrame, keys: list[str]) -> tuple[np.ndarray, np.ndarray]:
    found = table[keys].merge(sums, how="left", on=keys).fillna({"S": 0, "C": 0})
    return found["S"].to_numpy(), found["C"].to_numpy()


GROUP = ["cat_2", "brand"]


@pytest.mark.parametrize("split", ["train", "valid"])
def test_ecommerce_plain_encoding_is_the_mean_of_groups_of_21_rows(shop: Path, split: str) -> None:
    train, table = events(shop, "train"), events(shop, split)
    s, c = joined(table, group_sums(train, GROUP), GROUP)
    expected = np.where(c >= 21, s / np.maximum(c, 1), train.target.mean())
    found = rows_of(shop / "out" / split)["TE_cat_2_brand_target_plain"].to_numpy()

    assert 0.05 < (c >= 21).mean() < 0.95  # both kinds of group are there
    np.testing.assert_allclose(found, expected, **CLOSE)


def test_ecommerce_smoothed_encoding_leaves_each_rows_fold_out(shop: Path) -> None:
    train = events(shop, "train")
    train["fold"] = folds_of(train.row.to_numpy(), 5, 42)
    s, c = joined(train, group_sums(train, GROUP), GROUP)
    s_fold, c_fold = joined(train, group_sums(train, [*GROUP, "fold"]), [*GROUP, "fold"])
    expected = (s - s_fold + 20 * train.target.mean()) / (c - c_fold + 20)

    assert sorted(train.fold.unique()) == [0, 1, 2, 3, 4]
    assert (c_fold > 0).all()
    np.testing.assert_allclose(rows_of(shop / "out" / "train")["TE_cat_2_brand_target"].to_numpy(), expected, **CLOSE)


def test_ecommerce_validation_rows_get_the_encoding_of_all_folds(shop: Path) -> None:
    train, valid = events(shop, "train"), events(shop, "valid")
    s, c = joined(valid, group_sums(train, GROUP), GROUP)
    expected = (s + 20 * train.target.mean()) / (c + 20)

    np.testing.assert_allclose(rows_of(shop / "out" / "valid")["TE_cat_2_brand_target"].to_numpy(), expected, **CLOSE)


@pytest.mark.promise("filter, text and date parts, a computed target, two target encodings of a group, train and valid")
@pytest.mark.parametrize("split", ["train", "valid"])
def test_ecommerce_ids_time_parts_price_and_target(shop: Path, split: str) -> None:
    train, table = events(shop, "train"), events(shop, split)
    found = rows_of(shop / "out" / split)
    price = [np.log1p(rows.price.fillna(0)) for rows in (train, table)]
    time = table.event_time.dt

    for name in ("brand", "cat_0", "cat_1", "cat_2", "cat_3", "product_id", "category_id", "user_id"):
        assert found[name].to_pylist() == ids(table[name], train[name])
    for part, expected in {"hour": time.hour, "weekday": time.weekday, "day": time.day, "month": time.month}.items():
        assert found[f"ts_{part}"].to_pylist() == expected.tolist()
    np.testing.assert_allclose(found["price"].to_numpy(), (price[1] - price[0].mean()) / price[0].std(), **CLOSE)
    assert found["target"].to_pylist() == table.target.tolist()


def valid_events(folder: Path) -> pa.Table:
    """The kept validation events as they come, in their order."""
    table = pa.concat_tables(
        pq.read_table(path) for path in sorted((folder / "data" / "ecommerce" / "valid").glob("*.parquet"))
    )
    return table.filter(pc.is_in(table["event_type"], pa.array(["cart", "purchase"])))


@pytest.mark.promise("the same numbers as the batch job, bit by bit")
@pytest.mark.promise('`Workflow.load("out/toy")` reads it', "flows/README.md#what-the-output-folder-holds")
@pytest.mark.promise("that are learned once and are the same in training and in serving", "README.md#for-whom")
def test_ecommerce_is_served_with_the_same_bits_as_the_batch_job(shop: Path) -> None:
    workflow, written = Workflow.load(shop / "out"), rows_of(shop / "out" / "valid")
    frame = valid_events(shop)
    few = [0, 1, 17, frame.num_rows - 1]
    single = pa.concat_tables([workflow.transform(frame.slice(row, 1)) for row in few])
    by_pandas = pa.Table.from_pandas(workflow.transform(frame.to_pandas()), preserve_index=False)

    assert workflow.transform(frame).equals(written)
    assert by_pandas.replace_schema_metadata().cast(written.schema).equals(written)
    assert single.equals(written.take(few))


def test_ecommerce_applied_to_the_validation_data_gives_the_rows_of_the_one_job(shop: Path, engine: str) -> None:
    data = {
        "fitted": str(shop / "out"),
        "source": {"path": str(shop / "data" / "ecommerce" / "valid")},
        "output": {"path": str(shop / "applied"), "shuffle": "none"},
    }
    run_stages(make_application(data).request(engine))

    assert rows_of(shop / "applied").equals(rows_of(shop / "out" / "valid"))


def test_ecommerce_ids_go_back_to_values(shop: Path) -> None:
    back = Workflow.load(shop / "out").inverse(rows_of(shop / "out" / "train"))
    table = events(shop, "train")

    assert back.column_names == rows_of(shop / "out" / "train").column_names
    for name in ("brand", "cat_0", "cat_3", "product_id"):
        assert [None if pd.isna(value) else value for value in table[name]] == back[name].to_pylist()
    assert back["target"].to_pylist() == table.target.tolist()


@pytest.mark.promise("A recipe is a job that runs as shipped")
def test_criteo_counts_are_log_scaled_and_rare_categories_share_an_id(tmp_path: Path, run_alone: Run) -> None:
    (out,) = run_recipe("criteo", tmp_path, run_alone, 20_000, "output.shuffle=none")
    source, table = source_of(tmp_path / "data" / "criteo"), rows_of(out)

    assert table.column_names == [*(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in range(1, 27)), "label"]
    for n in range(1, 14):
        logged = np.log1p(source[f"I{n}"].fillna(0).clip(lower=0).astype(float)).astype("float32").astype(float)
        np.testing.assert_allclose(table[f"I{n}"].to_numpy(), scaled(logged), rtol=1e-5, atol=1e-5)
    for n in range(1, 27):
        assert table[f"C{n}"].to_pylist() == ids(source[f"C{n}"], source[f"C{n}"], threshold=15)
    assert table["label"].to_pylist() == source["label"].tolist()


def test_a_sample_that_was_cut_off_is_made_whole(tmp_path: Path, run_alone: Run) -> None:
    from flows.sample import make_sample

    make_sample("toy", tmp_path / "data" / "toy", 3000, files=3)
    (tmp_path / "data" / "toy" / "part-00001.parquet").unlink()
    (out,) = run_recipe("toy", tmp_path, run_alone, 3000)

    assert pq.read_metadata(tmp_path / "data" / "toy" / "part-00001.parquet").num_rows == 1000
    assert Manifest.load(out).rows["out"] == 3000
