"""The ports of NVTABULAR.md run on look-alike data; what they write equals a plain computation with pandas.

The data have the columns, types and oddities of the data of the notebooks: nulls, rare values, equal counts, ties.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tasks import ops
from tasks.dataset import Dataset
from tasks.errors import JobError
from tasks.manifest import Manifest
from tasks.workflow import Workflow
from tests.flows.runs import rows_of
from tests.flows.test_recipes import ids, scaled, source_of
from tests.frames import to_list

PAGE = (Path(__file__).resolve().parents[2] / "tasks/ops/NVTABULAR.md").read_text()
PORTS = dict(re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?```python\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE))
CLOSE = {"rtol": 2e-6, "atol": 2e-6}  # outputs are float32
GENRES = ["Drama", "Comedy", "Action", "Thriller", "Children's", "Film-Noir", "Western"]


def run(section: str, **replaced: str) -> dict[str, Any]:
    """Run the port of a section in the current folder, with numbers replaced; the names that it defines."""
    code = PORTS[section]
    names: dict[str, Any] = {}
    for old, new in replaced.items():
        assert old in code
        code = code.replace(old, new)
    exec(code, names)
    return names


def written(folder: Path | str) -> pd.DataFrame:
    """The rows of an output, in the order of its files, with plain numpy types and lists."""
    return pd.DataFrame(rows_of(Path(folder)).to_pydict())


def coded_lists(lists: pd.Series, learned_from: pd.Series, threshold: int = 1) -> list[list[int]]:
    leaves = learned_from.explode()
    return [ids(values, leaves, threshold) for values in lists]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str) -> Path:
    """The current folder of a port; a data set takes the engine of the host."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def movielens(here: Path) -> Path:
    """Ratings and movies as in the notebooks; the rows of `valid` have users and movies that `train` lacks."""
    rng = np.random.default_rng(1)
    folder = here / "ml-1m"
    folder.mkdir()
    movies = pd.DataFrame(
        {
            "movieId": np.arange(1, 81),
            "title": [f"Film {n} (1995)" for n in range(1, 81)],
            "genres": [
                sorted(rng.choice(GENRES, 1 + n % 3, replace=False, p=[0.3, 0.25, 0.2, 0.1, 0.1, 0.04, 0.01]))
                for n in range(80)
            ],
        }
    )
    movies.to_parquet(folder / "movies_converted.parquet", index=False)
    for name, rows, users in (("train", 900, 60), ("valid", 200, 70)):
        frame = pd.DataFrame(
            {
                "userId": rng.integers(1, users, rows),
                "movieId": rng.zipf(1.4, rows) % (60 if name == "train" else 80) + 1,
                "rating": rng.integers(1, 6, rows),
                "timestamp": 956_703_932 + rng.integers(0, 10**8, rows),
            }
        )
        frame.to_parquet(folder / f"{name}.parquet", index=False)
    return folder


@pytest.mark.promise("every value that it writes is compared with a plain computation in pandas")
@pytest.mark.promise(
    "0 is for padding, 1 null, 2 other values, 3 the most frequent one",
    "tasks/ops/NVTABULAR.md#movielens-the-first-steps",
)
def test_movielens_first_steps(movielens: Path) -> None:
    names = run("MovieLens, the first steps")
    movies = pd.read_parquet(movielens / "movies_converted.parquet").set_index("movieId")["genres"]
    train, valid = (pd.read_parquet(movielens / f"{name}.parquet") for name in ("train", "valid"))

    def expected(frame: pd.DataFrame) -> dict[str, list[Any]]:
        return {
            "userId": ids(frame["userId"], train["userId"]),
            "movieId": ids(frame["movieId"], train["movieId"]),
            "genres": coded_lists(frame["movieId"].map(movies), train["movieId"].map(movies)),
            "rating": frame["rating"].tolist(),
            "target_binary": (frame["rating"] > 3).tolist(),
        }

    assert written("train_transformed").to_dict("list") == expected(train)
    (found,) = names["valid_transformed"].frames()
    assert {name: to_list(found[name]) for name in found} == expected(valid)
    assert 2 in expected(valid)["userId"], "some users of valid are not in train"
    assert len(names["frame"]) == 900
    assert names["train_transformed"].schema["target_binary"].tags == {"target", "binary_classification"}
    assert 'name: "genres"' in Path("schema.pbtxt").read_text()
    assert names["workflow"].embeddings()["userId"]["rows"] == train["userId"].nunique() + 3


@pytest.mark.promise("every value that it writes is compared with a plain computation in pandas")
@pytest.mark.promise("the columns that are loaded are the choice", "tasks/ops/NVTABULAR.md#movielens-advanced")
def test_movielens_advanced(movielens: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = run("MovieLens, advanced")
    movies = pd.read_parquet(movielens / "movies_converted.parquet").set_index("movieId")["genres"]
    data = pd.read_parquet(movielens / "train.parquet").sample(frac=1, random_state=0)
    train, valid = data[:720], data[720:]
    genres, counts = train["movieId"].map(movies), train["movieId"].map(movies).explode().value_counts()
    assert counts.min() < 100 < counts.max(), "some genres are rare"

    def expected(frame: pd.DataFrame) -> list[tuple[Any, ...]]:
        lists = coded_lists(frame["movieId"].map(movies), genres, threshold=100)
        columns = (ids(frame["userId"], train["userId"]), ids(frame["movieId"], train["movieId"]), map(tuple, lists))
        return sorted(zip(*columns, frame["rating"] > 3, strict=True))

    def rows(folder: str) -> list[tuple[Any, ...]]:
        return [(r.userId, r.movieId, tuple(r.genres), r.binary_rating) for r in written(folder).itertuples()]

    assert sorted(rows("train")) == expected(train)
    assert sorted(rows("valid")) == expected(valid)
    assert [user for user, *_ in rows("train")] != sorted(user for user, *_ in rows("train"))
    schema = names["workflow"].output_schema
    assert schema["userId"].tags == {"categorical", "user_id", "user"}
    assert schema["genres"].properties["cardinality"] == 3 + int((counts >= 100).sum())
    assert "720 ['userId', 'movieId', 'binary_rating']" in capsys.readouterr().out
    user = valid[["userId", "movieId", "rating"]][:1]
    served = Workflow.load("train/_workflow").transform(user)
    assert to_list(served["userId"]) == ids(user["userId"], train["userId"])


@pytest.fixture
def shop(here: Path) -> pd.DataFrame:
    """Events of 7 days; sessions of one event, long ones, products that are older than the data, null texts."""
    rng, rows = np.random.default_rng(2), 2500
    product = rng.zipf(1.3, rows) % 120
    first = 1_569_888_000 - 86_400 + rng.integers(0, 4 * 86_400, 120)
    sessions = np.concatenate([np.repeat(0, 45), rng.integers(1, 900, rows - 45)])
    events = pd.DataFrame(
        {
            "user_session": sessions,
            "event_type": rng.choice(["view", "cart", "purchase"], rows, p=[0.9, 0.07, 0.03]),
            "product_id": 1_000_000 + product,
            "category_id": 2_053_013_550_000_000_000 + product % 23,
            "category_code": np.array(["appliances.iron", "electronics.audio", None], dtype=object)[product % 3],
            "brand": np.array(["lg", "samsung", None, "apple", "lg"], dtype=object)[product % 5],
            "price": np.where(product % 23 == 0, 0.0, np.round(rng.lognormal(4, 1, rows), 2)),
            "user_id": 500_000_000 + sessions % 400,
            "event_time_ts": 1_569_888_000 + 500 + rng.permutation(7 * 86_400 - 500)[:rows],
            "prod_first_event_time_ts": first[product],
        }
    ).sample(frac=1, random_state=3, ignore_index=True)
    events.to_parquet("Oct-2019.parquet", index=False)
    return events


@pytest.mark.promise("every value that it writes is compared with a plain computation in pandas")
@pytest.mark.promise(
    "events of a shop become one row for each session, with lists in the order of time",
    "tasks/ops/NVTABULAR.md#sessions",
)
def test_sessions(shop: pd.DataFrame) -> None:
    names = run("Sessions")
    found = ds.dataset("sessions_by_day", partitioning=Manifest.load("sessions_by_day").partitioning).to_table()
    got = {row["user_session"]: row for row in found.to_pylist()}

    rows = shop.copy()
    for name in ("product_id", "category_code", "brand", "category_id"):
        rows[name] = ids(shop[name], shop[name])
    weekday = pd.to_datetime(shop["event_time_ts"], unit="s").dt.weekday
    rows["et_dayofweek_sin"] = np.sin(2 * np.pi * (weekday + 1) / 7)
    rows["et_dayofweek_cos"] = np.cos(2 * np.pi * (weekday + 1) / 7)
    rows["price_log_norm"] = scaled(np.log1p(shop["price"]))
    age = (shop["event_time_ts"] - shop["prod_first_event_time_ts"]).clip(lower=0) / 86_400
    rows["product_recency_days_log_norm"] = scaled(np.log1p(age))
    mean = shop.groupby("category_id")["price"].transform("mean")
    rows["relative_price_to_avg_categ_id"] = np.where(mean > 0, (shop["price"] - mean) / (mean + 1e-5), 0)
    rows["day_index"] = (shop["event_time_ts"] - shop["event_time_ts"].min()) // 86_400 + 1
    groups = {n: g for n, g in rows.sort_values("event_time_ts").groupby("user_session") if len(g) >= 2}

    assert set(got) == set(groups)
    assert (age == 0).any()
    assert (mean == 0).any()
    for session, group in groups.items():
        row = got[session]
        assert (row["product_id-count"], row["day_index"]) == (len(group), group["day_index"].iloc[0])
        for name in names["lists"]:
            padded = np.zeros(20)
            padded[: min(20, len(group))] = group[name].to_numpy()[:20]
            np.testing.assert_allclose(row[f"{name}-list_seq"], padded, err_msg=f"{session} {name}", **CLOSE)
    assert max(len(group) for group in groups.values()) > 20
    days = sorted(path.name for path in Path("sessions_by_day").glob("day_index=*"))
    assert days == [f"day_index={day}" for day in range(1, 8)]
    schema = Workflow.load("workflow_etl").output_schema
    assert "categorical" in schema["product_id-list_seq"].tags
    assert "categorical" not in schema["price_log_norm-list_seq"].tags


@pytest.fixture
def criteo(here: Path) -> Path:
    """Three days: numbers with nulls and some below 0, hex ids with nulls, of 4 to 60 values."""
    rng, folder = np.random.default_rng(4), here / "criteo"
    folder.mkdir()
    for day in range(3):
        columns: dict[str, Any] = {"label": pa.array(rng.integers(0, 2, 300), pa.int32())}
        for n in range(1, 14):
            columns[f"I{n}"] = pa.array(rng.zipf(1.5, 300) % 10_000 - 2, pa.int32(), mask=rng.random(300) < n / 20)
        for n in range(1, 27):
            values = [f"{17 * v * n:08x}" for v in rng.zipf(1.2, 300) % (4 + 2 * n + 3 * day)]
            columns[f"C{n}"] = pa.array(values, mask=rng.random(300) < 0.1)
        pq.write_table(pa.table(columns), folder / f"day_{day}.parquet")
    return folder


@pytest.mark.promise("every value that it writes is compared with a plain computation in pandas")
@pytest.mark.promise("types belong to the workflow, so that serving has them, too", "tasks/ops/NVTABULAR.md#criteo")
@pytest.mark.parametrize("most", [10_000_000, 20])
def test_criteo(most: int, criteo: Path) -> None:
    run("Criteo", **{"10_000_000": str(most)})
    days = source_of(criteo)
    train, valid = days[:600], days[600:]
    found = written("output/valid")
    shuffled = written("output/train")

    for n in range(1, 14):
        filled = days[f"I{n}"].fillna(0).clip(lower=0).astype(float)
        mean, std = filled[:600].mean(), filled[:600].std(ddof=1)
        np.testing.assert_allclose(found[f"I{n}"], (filled[600:] - mean) / std, **CLOSE)
        np.testing.assert_allclose(np.sort(shuffled[f"I{n}"]), np.sort((filled[:600] - mean) / std), **CLOSE)
    for n in range(1, 27):
        name = f"C{n}"
        coded = [2 if place >= most else place for place in ids(valid[name], train[name])]
        assert found[name].tolist() == coded
        learned = [2 if place >= most else place for place in ids(train[name], train[name])]
        assert sorted(shuffled[name]) == sorted(learned)
        assert {1, 2} < set(coded), "there are nulls, and values that the days before lack"
    assert found["label"].tolist() == valid["label"].tolist()
    assert shuffled["label"].tolist() != train["label"].tolist()
    assert sorted(shuffled["label"]) == sorted(train["label"])
    assert {c.name: str(c.dtype) for c in Workflow.load("output/workflow").output_schema.columns} == (
        {f"C{n}": "int64" for n in range(1, 27)} | {f"I{n}": "float" for n in range(1, 14)} | {"label": "float"}
    )
    assert len(list(Path("output/train").glob("part-*.parquet"))) == 8
    assert Workflow.load("output/workflow").embeddings()["C26"]["rows"] == min(most, train["C26"].nunique() + 3)


@pytest.mark.promise("a `lambda` is refused when it is to be written")
def test_what_the_steps_say_is_refused(movielens: Path) -> None:
    train = Dataset("ml-1m/train.parquet")
    movies = ops.JoinExternal("ml-1m/movies_converted.parquet", on="movieId", columns=["genres"])
    with pytest.raises(JobError, match="two columns are called 'movieId'"):
        Workflow((["movieId"] >> ops.Categorify()) + (["movieId"] >> movies)).fit(train)
    good = Workflow(["rating"] >> ops.Lambda(lambda rating: rating > 3, dtype="bool")).fit_transform(train)
    assert to_list(good.head(900)["rating"]) == (pd.read_parquet("ml-1m/train.parquet")["rating"] > 3).tolist()
    with pytest.raises(JobError, match="cannot be saved"):
        good.to_parquet("good")


@pytest.mark.promise("every value that it writes is compared with a plain computation in pandas")
def test_the_page_goes_through_four_notebooks_by_name() -> None:
    assert list(PORTS) == ["MovieLens, the first steps", "MovieLens, advanced", "Sessions", "Criteo"]
    named = re.findall(r"`([\w/.-]+\.ipynb)` of (NVIDIA-Merlin/\w+)", PAGE)
    assert named == [
        ("examples/01-Getting-started.ipynb", "NVIDIA-Merlin/NVTabular"),
        ("examples/02-Advanced-NVTabular-workflow.ipynb", "NVIDIA-Merlin/NVTabular"),
        ("examples/tutorial/02-ETL-with-NVTabular.ipynb", "NVIDIA-Merlin/Transformers4Rec"),
        ("docs/source/examples/scaling-criteo/02-ETL-with-NVTabular.ipynb", "NVIDIA-Merlin/NVTabular"),
    ]
