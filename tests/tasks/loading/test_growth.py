"""Embeddings that grow: old rows stay bit for bit, new ones follow the rule and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import fsspec
import numpy as np
import pytest
import rowmill

from tasks.errors import DataError, JobError
from tasks.loading import embedding_growth as growth
from tasks.loading.embedding_growth import grow

FIRST = 3


def step(old: int, new: int, **more: Any) -> dict[str, Any]:
    return {
        "op": "Categorify", "columns": ["brand"], "mode": "appended", "why": "", "old_size": old - FIRST,
        "new_size": new - FIRST, "first_id": FIRST, "old_rows": old, "new_rows": new, "dimension": 16, **more,
    }  # fmt: skip


def changes(**steps: Any) -> dict[str, Any]:
    return {"format": 1, "base": "v0001", "rows": {"old": 10, "new": 5}, "steps": steps}


def weight(rows: int, width: int = 8, dtype: Any = np.float32) -> np.ndarray:
    drawn = np.random.default_rng(rows).normal(0.5, 0.25, (rows, width)).astype(dtype)
    drawn[0] = np.nan  # padding: whatever it is, it stays and does not count
    return drawn


class TestNumpy:
    @pytest.mark.promise("Old rows stay as they are, bit for bit, so old ids give the logits that they gave")
    @pytest.mark.parametrize("rule", ["normal", "mean", "outside", "zeros"])
    @pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
    def test_old_rows_stay_bit_for_bit(self, rule, dtype):
        old = weight(50, dtype=dtype)
        before = old.tobytes()
        new = grow(old, step(50, 80), rule=rule)
        assert (new.shape, new.dtype) == ((80, 8), old.dtype)
        assert new[:50].tobytes() == before == old.tobytes()
        assert np.isfinite(new[50:]).all()

    @pytest.mark.promise("New rows are drawn as normal numbers with the mean and deviation of the old ones")
    def test_normal_has_mean_and_deviation_of_the_vocabulary(self):
        old = weight(20_000)
        old[:, 1] *= 10
        new = grow(old, step(20_000, 60_000))[20_000:].astype(float)
        expected = old[FIRST:].astype(float)
        assert new.mean(axis=0) == pytest.approx(expected.mean(axis=0), rel=0.02)
        assert new.std(axis=0) == pytest.approx(expected.std(axis=0), rel=0.02)
        standard = (new - expected.mean(axis=0)) / expected.std(axis=0)
        assert (standard**4).mean() == pytest.approx(3, rel=0.02)  # as of the normal
        assert np.abs(np.corrcoef(standard.T) - np.eye(8)).max() < 0.03
        assert abs(np.corrcoef(standard[:-1, 0], standard[1:, 0])[0, 1]) < 0.03

    def test_the_other_rules(self):
        old = weight(40)
        expected = {"mean": old[FIRST:].astype(float).mean(axis=0), "outside": old[2], "zeros": np.zeros(8)}
        for rule, row in expected.items():
            new = grow(old, step(40, 43), rule=rule)
            assert np.array_equal(new[40:], np.broadcast_to(row.astype(np.float32), (3, 8)))

    def test_a_rule_of_ones_own(self):
        old = weight(10)
        new = grow(old, step(10, 14), rule=lambda ids, weight: np.outer(ids, weight[2]))
        assert np.allclose(new[10:], np.outer([10, 11, 12, 13], old[2]))
        with pytest.raises(JobError, match=r"shape \(8,\) for 4 ids\n  do: let it give \(4, 8\)"):
            grow(old, step(10, 14), rule=lambda ids, weight: weight[2])

    def test_a_draw_depends_on_seed_id_and_dimension_alone(self, monkeypatch):
        old = weight(100)
        whole = grow(old, step(100, 900), seed=4)
        assert np.array_equal(whole, grow(old, [step(100, 300), step(300, 900)], seed=4), equal_nan=True)
        assert np.array_equal(whole[:200], grow(old, step(100, 200), seed=4), equal_nan=True)
        monkeypatch.setattr(growth, "CHUNK", 64)
        cut = grow(old, step(100, 900), seed=4)
        assert np.allclose(whole, cut, rtol=1e-6, equal_nan=True)
        assert not np.isclose(whole[100:], grow(old, step(100, 900), seed=5)[100:]).any(axis=1).all()

    def test_a_weight_per_id(self):
        assert grow(np.arange(5.0), step(5, 7), rule="mean").tolist() == [0, 1, 2, 3, 4, 3.5, 3.5]

    def test_nothing_new(self):
        assert grow(weight(9), step(9, 9)).tobytes() == weight(9).tobytes()

    def test_an_empty_vocabulary(self):
        new = grow(weight(FIRST), step(FIRST, 4_000))[FIRST:]
        assert abs(new.mean()) < 0.001
        assert new.std() == pytest.approx(0.01, rel=0.05)

    def test_whole_numbers(self):
        seen = np.arange(6, dtype=np.int32)
        assert grow(seen, step(6, 8), rule="zeros").tolist() == [0, 1, 2, 3, 4, 5, 0, 0]
        with pytest.raises(JobError, match="the rule normal draws fractions, the weight is of int32"):
            grow(seen, step(6, 8))


class TestWhichChanges:
    def test_one_vocabulary_of_several(self):
        whole = changes(
            brand=step(5, 6),
            user=step(7, 9, columns=["user"]),
            x={"op": "Normalize", "columns": ["x"], "mode": "merged"},
        )
        assert grow(weight(7), whole, "user").shape == (9, 8)
        with pytest.raises(JobError, match=r"several vocabularies changed\n  do: name one by column: brand, user"):
            grow(weight(7), whole)
        with pytest.raises(JobError, match=r"no vocabulary of 'brant'\n  why: .*\n  do: did you mean 'brand'"):
            grow(weight(7), whole, "brant")
        with pytest.raises(JobError, match="Normalize has no ids"):
            grow(weight(7), whole, "x")

    def test_tuples_and_groups(self):
        pair = changes(pair=step(5, 6, columns=["home", "away"]))
        for name in ("home", "away", "home_away"):
            assert len(grow(weight(5), pair, name)) == 6

    def test_nights_in_a_row(self):
        nights = [changes(brand=step(5, 6)), changes(brand=step(6, 6)), changes(brand=step(6, 9))]
        assert len(grow(weight(5), nights, "brand")) == 9
        with pytest.raises(JobError, match="one ends with 6 ids of brand, the next begins with 9"):
            grow(weight(5), [nights[0], changes(brand=step(9, 11))])
        with pytest.raises(JobError, match="there are no changes"):
            grow(weight(5), [])

    def test_a_url(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        place = f"memory://grown/{tmp_path.name}"
        content = {"workflow.json": {}, "changes.json": changes(brand=step(5, 6))}
        for name, data in content.items():
            fsspec.filesystem("memory").pipe(f"/grown/{tmp_path.name}/_workflow/{name}", json.dumps(data).encode())
        assert len(grow(weight(5), place)) == 6
        with pytest.raises(JobError, match="no vocabulary of 'user'") as error:
            grow(weight(5), place, "user")
        assert error.value.where == f"memory:///grown/{tmp_path.name}"

    @pytest.mark.parametrize("place", [".", "_workflow"])
    def test_a_folder(self, place, tmp_path):
        folder = tmp_path / place
        folder.mkdir(exist_ok=True)
        (folder / "workflow.json").write_text("{}")
        with pytest.raises(
            DataError, match=r"changes.json is missing\n  .*\n  why: only what a refit wrote has changes"
        ):
            grow(weight(5), tmp_path)
        (folder / "changes.json").write_text(json.dumps(changes(brand=step(5, 6))))
        assert len(grow(weight(5), tmp_path)) == len(grow(weight(5), [str(tmp_path)])) == 6
        (folder / "changes.json").write_text(json.dumps(changes(brand=step(5, 6, old_rows="5"))))
        with pytest.raises(DataError, match="old_rows"):
            grow(weight(5), tmp_path)
        (folder / "changes.json").write_text('{"steps": 5}')
        with pytest.raises(DataError, match=r"changes\.json is damaged"):
            grow(weight(5), tmp_path)

    def test_rows_of_another_night(self):
        with pytest.raises(
            JobError, match="the weight has 4 rows, the vocabulary of brand had 5 before the refit and has 6 now"
        ):
            grow(weight(4), step(5, 6))
        with pytest.raises(JobError, match="why: it has grown already"):
            grow(weight(6), step(5, 6))

    def test_a_frozen_step(self):
        with pytest.raises(JobError, match=r"the ids of brand are frozen\n  why: set in refit"):
            grow(weight(5), step(5, 5, mode="frozen", why="set in refit"))

    def test_what_cannot_grow(self):
        with pytest.raises(JobError, match=r"no rule is called 'means'\n  do: did you mean 'mean'"):
            grow(weight(5), step(5, 6), rule="means")
        with pytest.raises(JobError, match="list cannot grow"):
            grow([1, 2, 3], step(3, 4))


@pytest.mark.system
def test_it_is_public_and_imports_no_torch():
    assert rowmill.grow is grow
    lines = ["import sys, numpy, rowmill", f"rowmill.grow(numpy.zeros((5, 2)), {step(5, 6)})"]
    code = "\n".join([*lines, "assert 'torch' not in sys.modules"])
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestTorch:
    @pytest.fixture
    def torch(self):
        return pytest.importorskip("torch")

    @pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
    def test_an_embedding(self, torch, dtype):
        old = torch.nn.Embedding(50, 8, padding_idx=0, max_norm=3.0, sparse=True, dtype=getattr(torch, dtype)).eval()
        before = old.weight.detach().clone()
        new = grow(old, step(50, 80))
        assert type(new) is torch.nn.Embedding
        assert (new.num_embeddings, new.embedding_dim, new.padding_idx, new.max_norm, new.sparse) == (
            80,
            8,
            0,
            3.0,
            True,
        )
        assert new.weight.requires_grad
        assert not new.training
        assert new.weight.dtype == old.weight.dtype
        assert torch.equal(new.weight[:50].view(torch.uint8), before.view(torch.uint8))
        assert torch.equal(old.weight.view(torch.uint8), before.view(torch.uint8))
        assert torch.isfinite(new.weight).all()

    def test_a_bag(self, torch):
        old = torch.nn.EmbeddingBag(50, 8, mode="sum", include_last_offset=True)
        old.weight.requires_grad_(False)
        new = grow(old, step(50, 80))
        assert (type(new), new.mode, new.include_last_offset) == (torch.nn.EmbeddingBag, "sum", True)
        assert not new.weight.requires_grad
        ids, offsets = torch.tensor([3, 4, 49]), torch.tensor([0, 2, 3])
        assert torch.equal(old(ids, offsets), new(ids, offsets))

    def test_tensors_give_what_arrays_give(self, torch):
        old = weight(500)
        for rule in ("normal", "mean", "outside", "zeros"):
            expected = grow(old, step(500, 700), rule=rule, seed=3)
            assert np.array_equal(
                grow(torch.from_numpy(old), step(500, 700), rule=rule, seed=3).numpy(), expected, equal_nan=True
            )
        parameter = torch.nn.Parameter(torch.from_numpy(old))
        new = grow(parameter, step(500, 700), rule=lambda ids, old: torch.ones(len(ids), 8))
        assert type(new) is torch.nn.Parameter
        assert (new[500:] == 1).all()

    def test_the_moments_of_an_optimizer(self, torch):
        embedding = torch.nn.Embedding(10, 4)
        adam = torch.optim.Adam(embedding.parameters())
        embedding(torch.tensor([3, 4])).sum().backward()
        adam.step()
        moment = adam.state[embedding.weight]["exp_avg"]
        assert torch.equal(grow(moment, step(10, 12), rule="zeros"), torch.cat([moment, torch.zeros(2, 4)]))
