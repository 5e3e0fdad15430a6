"""Batches with jagged tensors of TorchRec. Needs the extra `torchrec-cpu`, or `torchrec` and a GPU."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tasks import ops
from tasks.dataset import Dataset
from tasks.errors import JobError
from tasks.workflow import Workflow

torch = pytest.importorskip("torch")
MISSING = find_spec("torchrec") is None
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        MISSING, reason="needs TorchRec: pip install -e '.[torchrec-cpu]', then --no-deps torchrec==1.8.0"
    ),
    pytest.mark.filterwarnings("ignore"),  # its own
]
ROWS = 300


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torchrec") / "out"
    rows = {
        "number": pa.array(range(ROWS), pa.int64()),
        "word": [["to", "be", "or"][i % 3] for i in range(ROWS)],
        "items": pa.array([[i] * (i % 4) if i % 5 else None for i in range(ROWS)], pa.list_(pa.uint16())),
        "score": [[0.5] * (i % 3) for i in range(ROWS)],
        "weight": [[i + j / 4 for j in range(i % 4)] if i % 5 else None for i in range(ROWS)],
        "count": pa.array([i % 7 for i in range(ROWS)], pa.int8()),
        "y": pa.array([i % 2 for i in range(ROWS)], pa.float32()),
    }
    graph = ["number", "items", "score", "weight", "count", "y"] + (["word"] >> ops.Categorify())
    made = Workflow(graph).fit_transform(Dataset(pa.table(rows), engine="pandas"))
    made.to_parquet(str(folder), files=3, row_group_size=40)
    return folder


def loaded(batches: Any) -> list[tuple[int, list[int], list[int]]]:
    """(number, items, word) of every row of batches."""
    rows = []
    for batch in batches:
        items, words = (batch["jagged"][name].to_dense() for name in ("items", "word"))
        triples = zip(batch["number"].tolist(), items, words, strict=True)
        rows += [(number, mine.tolist(), word.tolist()) for number, mine, word in triples]
    return rows


@pytest.mark.promise(
    'the named columns as one KeyedJaggedTensor, `batch["jagged"]` or `batch["ids"]`, single values as lists of '
    "length 1"
)
def test_named_columns_come_as_one_keyed_jagged_tensor(out: Path) -> None:
    from tasks.loading.torch import Rows

    rows = Rows(out, 64, columns=["number", "y"], jagged=["items", "word"])
    batch = next(iter(rows))
    assert {*batch} == {"number", "y", "jagged"}
    tensor = batch["jagged"]
    assert tensor.keys() == ["items", "word"]
    assert (tensor.values().dtype, tensor.lengths().dtype) == (torch.int32, torch.int32)
    assert tensor.stride() == 64
    ids = {i % 3: word for i, _, (word,) in loaded(rows)}
    assert {*ids} == {0, 1, 2}
    expected = [(i, [i] * (i % 4) if i % 5 else [], [ids[i % 3]]) for i in range(ROWS)]
    assert sorted(loaded(rows)) == expected


@pytest.mark.promise(
    'the named columns as one KeyedJaggedTensor, `batch["jagged"]` or `batch["ids"]`, single values as lists of '
    "length 1"
)
def test_several_tensors_by_name_and_a_model_that_takes_them(out: Path) -> None:
    import torchrec

    from tasks.loading.torch import Rows

    batch = next(iter(Rows(out, 50, jagged={"ids": ["items", "number"], "scores": ["score"]})))
    assert {*batch} == {"word", "y", "weight", "weight_offsets", "count", "ids", "scores"}
    assert (batch["ids"].values().dtype, batch["scores"].values().dtype) == (torch.int64, torch.float64)
    tables = [
        torchrec.EmbeddingBagConfig(name="t", embedding_dim=4, num_embeddings=ROWS, feature_names=["items", "number"])
    ]
    pooled = torchrec.EmbeddingBagCollection(tables=tables, device=torch.device("cpu"))(batch["ids"])
    assert (pooled.keys(), pooled.values().shape) == (["items", "number"], (50, 8))


def test_workers_hand_over_jagged_tensors(out: Path) -> None:
    lines = [
        "from torch.utils.data import DataLoader",
        "from tests.tasks.loading.test_torchrec import loaded",
        "from tasks.loading.torch import Rows",
        f"rows = Rows({str(out)!r}, 64, columns=['number'], jagged=['items', 'word'])",
        "here = loaded(rows)",
        "there = loaded(DataLoader(rows, batch_size=None, num_workers=1))",
        "print(here == there and len(here))",
    ]
    command = [sys.executable, "-W", "ignore", "-c", "\n".join(lines)]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert done.stdout == f"{ROWS}\n", done.stderr


@pytest.mark.promise("weights: a score for each value of seen, 1 for item")
def test_a_column_of_weights_stands_beside_the_values(out: Path) -> None:
    from tasks.loading.torch import Rows

    rows = Rows(out, 64, columns=["number"], jagged={"items": "weight", "word": None, "number": "count"})
    loaded = {}
    for batch in rows:
        tensor = batch["jagged"]
        assert {*batch} == {"jagged"}
        assert tensor.keys() == ["items", "word", "number"]
        assert (tensor.values().dtype, tensor.weights().dtype) == (torch.int64, torch.float32)
        features = [(tensor[name].to_dense(), tensor[name].to_dense_weights()) for name in tensor.keys()]  # noqa: SIM118
        (items, weights), (_, ones), (numbers, counts) = features
        assert all(one.tolist() == [1.0] for one in ones)
        for number, *row in zip(numbers, items, weights, counts, strict=True):
            loaded[number.item()] = [values.tolist() for values in row]
    weights = {i: [i + j / 4 for j in range(i % 4)] if i % 5 else [] for i in range(ROWS)}
    assert loaded == {i: [[i] * len(weights[i]), weights[i], [float(i % 7)]] for i in range(ROWS)}


def test_a_weighted_model_takes_the_weights(out: Path) -> None:
    import torchrec

    from tasks.loading.torch import Rows

    batch = next(iter(Rows(out, 50, columns=["number"], jagged={"ids": {"items": "weight"}, "plain": ["number"]})))
    assert batch["plain"].weights_or_none() is None
    tables = [torchrec.EmbeddingBagConfig(name="t", embedding_dim=2, num_embeddings=ROWS, feature_names=["items"])]
    bags = torchrec.EmbeddingBagCollection(tables=tables, is_weighted=True, device=torch.device("cpu"))
    vectors = bags.embedding_bags["t"].weight.detach()
    pooled = bags(batch["ids"]).values().detach()
    numbers = batch["plain"].values().tolist()
    expected = [
        sum(i + j / 4 for j in range(i % 4)) * vectors[i] if i % 5 and i % 4 else 0 * vectors[0] for i in numbers
    ]
    torch.testing.assert_close(pooled, torch.stack(expected))


@pytest.mark.parametrize("settings", [{}, {"global_batches": True}, {"device": "cpu"}])
def test_weighted_batches_go_on_behind_every_batch_on_every_number_of_ranks(
    out: Path, settings: dict[str, Any]
) -> None:
    """Shuffled, read ahead, with lists and weights: stopped and resumed, each rank has the rest, and no row twice."""
    from tasks.loading.torch import Rows

    features = {"items": "weight", "number": None}

    def contents(batch: dict[str, Any]) -> list[Any]:
        tensor = batch["jagged"]
        return [tensor.values().tolist(), tensor.lengths().tolist(), tensor.weights().tolist()]

    for ranks in (1, 2, 3, 8):
        for rank in range(ranks):
            size = 24 * ranks if "global_batches" in settings else 24
            running = Rows(out, size, columns=["number"], jagged=features, rank=rank, ranks=ranks, seed=5, **settings)
            whole = [contents(batch) for batch in running]
            assert len(whole) == running.batches()
            taken = iter(running)
            for count in range(len(whole) + 1):
                again = Rows(out, size, columns=["number"], jagged=features, rank=rank, ranks=ranks, seed=5, **settings)
                again.load_state_dict(running.state_dict(count))
                assert [contents(batch) for batch in again] == whole[count:]
                assert contents(next(taken)) == whole[count] if count < len(whole) else not list(taken)


@pytest.mark.promise("lists of other lengths than those of their weights are an error that names the row of the batch")
def test_weights_that_do_not_fit_are_named(out: Path, tmp_path: Path) -> None:
    from tasks.errors import DataError
    from tasks.loading.torch import Rows

    with pytest.raises(JobError, match=r"(?s)no column 'weigth'.*did you mean 'weight'"):
        Rows(out, jagged={"items": "weigth"})
    with pytest.raises(JobError, match=r"(?s)'items' and its weights, 'y', are not both lists.*y is float"):
        Rows(out, jagged={"items": "y"})
    with pytest.raises(
        JobError, match=r"(?s)mixes columns and names of tensors.*'items' names one column, 'ids' several"
    ):
        Rows(out, jagged={"items": "weight", "ids": ["word"]})
    for device in (None, "cpu"):
        with pytest.raises(
            DataError, match=r"(?s)'items' and of its weights, 'score', have different lengths: .*row \d+ of"
        ):
            next(iter(Rows(out, jagged={"items": "score"}, device=device)))
    table = pa.table({"ids": [[1]], "names": [["a"]]})
    Workflow(["ids", "names"]).fit_transform(Dataset(table)).to_parquet(str(tmp_path / "out"), files=1)
    with pytest.raises(JobError, match=r"(?s)weights of 'ids' are not numbers.*'names' is list<string>"):
        Rows(tmp_path / "out", jagged={"ids": "names"})


def test_what_a_jagged_tensor_cannot_have_is_named(out: Path) -> None:
    from tasks.loading.torch import Rows

    with pytest.raises(JobError, match=r"(?s)no column 'item'.*did you mean 'items'"):
        Rows(out, jagged=["item"])
    with pytest.raises(JobError, match="a jagged tensor and a column are both called 'y'"):
        Rows(out, jagged={"y": ["items"]})
    with pytest.raises(JobError, match=r"(?s)have one type.*items is int32, score is float64"):
        next(iter(Rows(out, jagged=["items", "score"])))


@pytest.mark.promise("weights: a score for each value of seen, 1 for item")
def test_the_example_of_the_manual_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rowmill import Rows

    monkeypatch.chdir(tmp_path)
    table = pa.table({"item": [1, 2], "seen": [[3], [4, 5]], "score": [[0.5], [0.1, 0.2]], "y": [0, 1]})
    Workflow([*table.column_names]).fit_transform(Dataset(table)).to_parquet("out/shop", files=1)
    page = (Path(__file__).parents[3] / "flows" / "SERVING.md").read_text()
    start = page.index('rows = Rows("out/shop"')
    first, second, third = page[start : page.index("```", start)].splitlines()
    names: dict[str, Any] = {"Rows": Rows}
    exec(first, names)
    assert {*next(iter(names["rows"]))} == {"y", "score", "score_offsets", "jagged"}
    exec(second, names)
    assert {*next(iter(names["rows"]))} == {"y", "ids", "scores"}
    exec(third, names)
    batch = next(iter(names["rows"]))
    assert {*batch} == {"y", "jagged"}
    assert sorted(batch["jagged"].weights().tolist()) == pytest.approx([0.1, 0.2, 0.5, 1, 1])
