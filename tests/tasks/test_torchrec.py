"""Batches with jagged tensors of TorchRec. Needs the extra `torchrec-cpu`, or `torchrec` and a GPU."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tasks import ops
from tasks.dataset import Dataset
from tasks.errors import JobError
from tasks.workflow import Workflow

torch = pytest.importorskip("torch")
with warnings.catch_warnings():  # its own
    warnings.simplefilter("ignore")
    torchrec = pytest.importorskip("torchrec", exc_type=ImportError)
pytestmark = pytest.mark.filterwarnings("ignore")
ROWS = 300


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torchrec") / "out"
    rows = {
        "number": pa.array(range(ROWS), pa.int64()),
        "word": [["to", "be", "or"][i % 3] for i in range(ROWS)],
        "items": pa.array([[i] * (i % 4) if i % 5 else None for i in range(ROWS)], pa.list_(pa.uint16())),
        "score": [[0.5] * (i % 3) for i in range(ROWS)],
        "y": pa.array([i % 2 for i in range(ROWS)], pa.float32()),
    }
    graph = ["number", "items", "score", "y"] + (["word"] >> ops.Categorify())
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


def test_several_tensors_by_name_and_a_model_that_takes_them(out: Path) -> None:
    from tasks.loading.torch import Rows

    batch = next(iter(Rows(out, 50, jagged={"ids": ["items", "number"], "scores": ["score"]})))
    assert {*batch} == {"word", "y", "ids", "scores"}
    assert (batch["ids"].values().dtype, batch["scores"].values().dtype) == (torch.int64, torch.float64)
    tables = [
        torchrec.EmbeddingBagConfig(name="t", embedding_dim=4, num_embeddings=ROWS, feature_names=["items", "number"])
    ]
    pooled = torchrec.EmbeddingBagCollection(tables=tables, device=torch.device("cpu"))(batch["ids"])
    assert (pooled.keys(), pooled.values().shape) == (["items", "number"], (50, 8))


def test_workers_hand_over_jagged_tensors(out: Path) -> None:
    lines = [
        "from torch.utils.data import DataLoader",
        "from tests.tasks.test_torchrec import loaded",
        "from tasks.loading.torch import Rows",
        f"rows = Rows({str(out)!r}, 64, columns=['number'], jagged=['items', 'word'])",
        "here = loaded(rows)",
        "there = loaded(DataLoader(rows, batch_size=None, num_workers=1))",
        "print(here == there and len(here))",
    ]
    command = [sys.executable, "-W", "ignore", "-c", "\n".join(lines)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.stdout == f"{ROWS}\n", done.stderr


def test_what_a_jagged_tensor_cannot_have_is_named(out: Path) -> None:
    from tasks.loading.torch import Rows

    with pytest.raises(JobError, match=r"(?s)no column 'item'.*did you mean 'items'"):
        Rows(out, jagged=["item"])
    with pytest.raises(JobError, match="a jagged tensor and a column are both called 'y'"):
        Rows(out, jagged={"y": ["items"]})
    with pytest.raises(JobError, match=r"(?s)have one type.*items is int32, score is float64"):
        next(iter(Rows(out, jagged=["items", "score"])))


def test_the_example_of_the_manual_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from millrace import Rows

    monkeypatch.chdir(tmp_path)
    table = pa.table({"item": [1, 2], "seen": [[3], [4, 5]], "score": [[0.5], [0.1, 0.2]], "y": [0, 1]})
    Workflow([*table.column_names]).fit_transform(Dataset(table)).to_parquet("out/shop", files=1)
    page = (Path(__file__).parents[2] / "flows" / "README.md").read_text()
    start = page.index('rows = Rows("out/shop"')
    first, second = page[start : page.index("```", start)].splitlines()
    names: dict[str, Any] = {"Rows": Rows}
    exec(first, names)
    assert {*next(iter(names["rows"]))} == {"y", "score", "score_offsets", "jagged"}
    exec(second, names)
    assert {*next(iter(names["rows"]))} == {"y", "ids", "scores"}
