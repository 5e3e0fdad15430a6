"""A model of night 1 goes on in night 2: its embeddings grow with the ids, old rows get the logits that they got."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.job.job import make_job
from flows.sample import make_batches
from tasks.core.schema import Schema, embeddings_of
from tasks.job.base_version import find_newest_good
from tasks.loading.embedding_growth import grow
from tasks.manifest import Manifest
from tests.stages import run_stages

torch = pytest.importorskip("torch")
COLUMNS = ["user_id", "product_id", "brand", "category_code"]


class Clicks(torch.nn.Module):  # type: ignore[misc]
    """Logistic regression on the sum of an embedding for each column: whether an event is more than a view."""

    def __init__(self, sizes: dict[str, dict[str, int]]) -> None:
        super().__init__()
        self.columns = torch.nn.ModuleDict(
            {name: torch.nn.Embedding(size["rows"], 8, padding_idx=0) for name, size in sizes.items()}
        )
        self.last = torch.nn.Linear(8, 1)

    def forward(self, rows: dict[str, Any]) -> Any:
        return self.last(sum(self.columns[name](rows[name]) for name in self.columns)).squeeze(1)


def night(source: Path, out: Path, base: bool) -> Path:
    """Learn from a day on top of what the output holds; the version that it gives."""
    job = make_job({
        "source": {"path": str(source)},
        "features": [
            {"columns": COLUMNS, "ops": [{"op": "Categorify"}]},
            {"columns": ["event_type"], "ops": [
                {"op": "Lambda", "expression": "cast(_ != 'view', 'int8')", "name": "more"},
            ]},
        ],
        "output": {"path": str(out), "on_existing": "version", "files": 2}, **({"base": str(out)} if base else {}),
    })  # fmt: skip
    run_stages(job.request("pandas", find_newest_good(out).version) if base else job.request("pandas"))
    return out / (out / "_latest").read_text().strip()


def tensors(table: pa.Table) -> dict[str, Any]:
    return {name: torch.from_numpy(table[name].to_numpy().astype("int64")) for name in table.column_names}


def rows_of(version: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(part) for part in sorted(version.glob("part-*.parquet")))


def sizes_of(version: Path) -> dict[str, dict[str, int]]:
    return embeddings_of(Schema.from_json(Manifest.load(version).data["schema"]))


def trained(model: Clicks, rows: dict[str, Any], steps: int) -> list[float]:
    """The losses of some steps over all rows."""
    best, losses = torch.optim.Adam(model.parameters(), lr=0.05), []
    for _ in range(steps):
        best.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(rows), rows["more"].float())
        loss.backward()
        best.step()
        losses.append(loss.item())
    return losses


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Beside other tests, more threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.promise("Old rows stay as they are, bit for bit, so old ids give the logits that they gave")
def test_a_model_that_has_grown_gives_old_rows_the_same_logits_bit_for_bit(one_thread: None, tmp_path: Path) -> None:
    make_batches(tmp_path / "shop", 2, 3_000)
    days, out = sorted((tmp_path / "shop").iterdir()), tmp_path / "out"
    first = night(days[0], out, base=False)
    torch.manual_seed(0)
    model, old = Clicks(sizes_of(first)), tensors(rows_of(first))
    losses = trained(model, old, 20)
    assert losses[-1] < 0.7 * losses[0]
    with torch.no_grad():
        before = model(old)

    second = night(days[1], out, base=True)
    sizes = sizes_of(second)
    for name in COLUMNS:
        model.columns[name] = grow(model.columns[name], second, name)
        assert model.columns[name].num_embeddings == sizes[name]["rows"]
    assert sizes["user_id"]["rows"] > sizes_of(first)["user_id"]["rows"] + 100
    with torch.no_grad():
        assert model(old).numpy().tobytes() == before.numpy().tobytes()

    new = tensors(rows_of(second))
    with torch.no_grad():
        assert torch.isfinite(model(new)).all()
    assert max(int(new[name].max()) for name in COLUMNS) >= model.columns["user_id"].num_embeddings - 1
    losses = trained(model, new, 10)  # it goes on to learn, new rows too
    assert losses[-1] < losses[0]
