"""An output as a data set of PyTorch, in real DataLoader workers. Needs the extra `torch`."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tasks import ops
from tasks.core.schema import Tags
from tasks.dataset import Dataset
from tasks.storage.staging import Staging
from tasks.workflow import Workflow

torch = pytest.importorskip("torch")
# Two workers are right here on one CPU, too; PyTorch warns where a process may use fewer CPUs than there are workers.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
ROWS = 600
# A DataLoader forks its workers. A process that has run clusters of other tests has threads, locks and hooks of which a
# fork ends with status 1, so these tests run in a process of their own.
OWN_PROCESS = "ROWMILL_TEST_OWN_PROCESS"
forks = pytest.mark.skipif(OWN_PROCESS not in os.environ, reason="run by test_workers_in_a_process_of_their_own")
EXAMPLE = Path(__file__).resolve().parents[3] / "flows" / "recipes" / "torch_example.py"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torch") / "out"
    rows = {
        "number": pa.array(range(ROWS), pa.uint32()),
        "word": [["to", "be", "or"][i % 3] for i in range(ROWS)],
        "x": [float(i % 3) for i in range(ROWS)],
        "items": [list(range(i % 4)) for i in range(ROWS)],
        "label": pa.array([int(i % 3 == 0) for i in range(ROWS)], pa.int8()),
    }
    graph = ["number"] + (["word"] >> ops.Categorify()) + (["x"] >> ops.Normalize()) + ["items"]
    graph = graph + (["label"] >> ops.AddTags([Tags.TARGET]))
    transformed = Workflow(graph).fit_transform(Dataset(pa.table(rows), engine="pandas"))
    transformed.to_parquet(str(folder), files=4, row_group_size=50)
    return folder


def loader(rows: Any, workers: int, **more: Any) -> Any:
    """Workers begin anew where this process holds a GPU, which it cannot hand down to forks of its own."""
    from torch.utils.data import DataLoader

    how = {"multiprocessing_context": "spawn"} if workers and "cupy" in sys.modules else {}
    return DataLoader(rows, batch_size=None, num_workers=workers, **how, **more)


def numbers(rows: Any, workers: int) -> list[list[int]]:
    return [batch["number"].tolist() for batch in loader(rows, workers)]


@pytest.mark.system
def test_workers_in_a_process_of_their_own(engine: str) -> None:
    names = "outlive or every_batch_of_workers or (over_ranks_and_workers and 2) or know_what_was_taken or replaced"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n0",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:benchmark",
        "-m",
        "system",
        # An iterator of torch that is left while its workers still start complains when this process ends.
        "-W",
        "ignore::pytest.PytestUnraisableExceptionWarning",
        "--engine",
        engine,
        __file__,
        "-k",
        names,
    ]
    environment = {**os.environ, OWN_PROCESS: "yes"}
    done = subprocess.run(command, env=environment, cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 passed" in done.stdout


@pytest.mark.promise("every row once per epoch over all ranks")
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=[pytest.mark.system, forks])])
def test_every_row_once_over_ranks_and_workers(out: Path, workers: int) -> None:
    from tasks.loading.torch import Rows

    ranks = [Rows(out, 64, rank=rank, ranks=2) for rank in range(2)]
    found = [numbers(rows, workers) for rows in ranks]
    assert sorted(n for rank in found for batch in rank for n in batch) == list(range(ROWS))
    assert [len(rank) for rank in found] == [rows.batches(workers) for rows in ranks]


@pytest.mark.system
@forks
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_read_the_output_that_was_replaced_to_the_end_of_its_time(tmp_path: Path, context: str) -> None:
    from torch.utils.data import DataLoader

    from tasks.errors import DataError
    from tasks.loading.torch import Rows

    def write(value: int) -> None:
        workflow = Workflow(["x", "n"]).fit_transform(pa.table({"x": [value] * ROWS, "n": range(ROWS)}))
        workflow.to_parquet(str(tmp_path / "out"), files=4, row_group_size=50, on_existing="replace")

    write(1)
    workers = 2 if context == "fork" else 1  # one that is not a fork is a Python that imports PyTorch for seconds
    rows = Rows(tmp_path / "out", 20)
    batches = iter(DataLoader(rows, batch_size=None, num_workers=workers, multiprocessing_context=context))
    first = next(batches)
    write(2)
    seen = [first, *batches]
    assert {x for batch in seen for x in batch["x"].tolist()} == {1}
    assert sorted(n for batch in seen for n in batch["n"].tolist()) == list(range(ROWS))
    again = DataLoader(rows, batch_size=None, num_workers=workers, multiprocessing_context=context)
    assert {x for batch in again for x in batch["x"].tolist()} == {1}  # workers that begin after the replace
    assert {x for batch in Rows(tmp_path / "out", 20) for x in batch["x"].tolist()} == {2}
    for old in Staging(tmp_path / "out").olds:
        shutil.rmtree(old)
    late = DataLoader(
        rows, batch_size=None, num_workers=1, multiprocessing_context=context
    )  # no other is still starting
    with pytest.raises(DataError, match="the output that is read is gone"):
        next(iter(late))  # a list asks the data set first, for its length: its worker would be left while it starts


@pytest.mark.system
@forks
def test_workers_that_outlive_an_epoch_hear_of_the_next(out: Path) -> None:
    from tasks.loading.torch import Rows

    rows = Rows(out, 64, even=True, drop_last=True)
    batches = loader(rows, 2, persistent_workers=True)
    epochs = []
    for epoch in (0, 1, 0):
        rows.set_epoch(epoch)
        epochs.append([batch["number"].tolist() for batch in batches])
    assert epochs[0] == epochs[2] != epochs[1]
    assert {len(batch) for epoch in epochs for batch in epoch} == {64}
    assert len(epochs[0]) == rows.batches(2) == 8


def test_batches_are_tensors_that_may_be_changed_and_lists_fit_embedding_bags(out: Path) -> None:
    from tasks.loading.torch import Rows

    batch = next(iter(Rows(out, 100)))
    assert {name: values.dtype for name, values in batch.items()} == {
        "number": torch.int64, "word": torch.int32, "x": torch.float32, "items": torch.int64,
        "items_offsets": torch.int64, "label": torch.int8,
    }  # fmt: skip
    batch["word"] += 1
    bag = torch.nn.EmbeddingBag(4, 3, include_last_offset=True, mode="sum")
    assert bag(batch["items"], batch["items_offsets"]).shape == (100, 3)


def test_jagged_tensors_without_torchrec_name_what_to_install(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.errors import HostError
    from tasks.loading.torch import Rows

    monkeypatch.setitem(sys.modules, "torchrec.sparse.jagged_tensor", None)
    with pytest.raises(HostError, match=r"(?s)need TorchRec.*rowmill\[torchrec\].*rowmill.jagged"):
        Rows(out, jagged=["items"])


def test_the_rank_is_that_of_the_environment_or_of_torch(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.errors import JobError
    from tasks.loading.torch import Rows

    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    rows = Rows(out)
    assert (rows.rank, rows.ranks) == (1, 3)
    with pytest.raises(JobError, match="no worker 0 of 1, rank 3 of 3"):
        Rows(out, rank=3)


@pytest.mark.promise("trains on the embedding sizes and tags of the manifest")
def test_the_example_learns(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = runpy.run_path(str(EXAMPLE))["train"]
    losses = train(str(out), epochs=4, batch_size=50, workers=0)
    assert losses[-1] < 0.05 < losses[0] < 1
    assert "epoch 3: 12 batches of 50 rows" in capsys.readouterr().out


def test_the_example_of_the_manual_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = {"id": range(40), "name": [1, 2] * 20, "x": [0.5] * 40, "y": [1.5] * 40, "label": [0, 1] * 20}
    Workflow([*rows]).fit_transform(Dataset(pa.table({n: list(v) for n, v in rows.items()}))).to_parquet("out/toy")
    section = (EXAMPLE.parents[1] / "SERVING.md").read_text().partition("\n## Train on it")[2]
    text = section.partition("```py\n")[2].partition("```")[0]
    names: dict[str, Any] = {}
    exec(text.replace("num_workers=4", "num_workers=0"), names)
    assert sorted(names["batch"]["id"].tolist()) == list(range(40))


@pytest.mark.promise("then `rows.load_state_dict(state)` in the next process continues after them")
@pytest.mark.system
@forks
@pytest.mark.parametrize("settings", [{}, {"global_batches": True}])
def test_rows_go_on_behind_every_batch_of_workers(out: Path, settings: dict[str, Any]) -> None:
    from tasks.loading.torch import Rows

    rows = Rows(out, 110, ["number"], rank=0, ranks=1, **settings)
    whole = numbers(rows, 2)
    for taken in range(len(whole) + 1):
        again = Rows(out, 110, ["number"], rank=0, ranks=1, **settings)
        again.load_state_dict(rows.state_dict(taken, workers=2))
        assert numbers(again, 2) == whole[taken:]


@pytest.mark.system
@forks
def test_rows_of_this_process_know_what_was_taken(out: Path) -> None:
    from tasks.errors import JobError
    from tasks.loading.torch import Rows

    rows = Rows(out, 64)
    with pytest.raises(JobError, match="how many batches were taken is not known here"):
        rows.state_dict()
    rows.set_epoch(1)
    taken = iter(rows)
    first = [next(taken)["number"].tolist() for _ in range(3)]
    again = Rows(out, 64)
    again.load_state_dict(rows.state_dict())
    again.set_epoch(1)
    rest = numbers(again, 0)
    assert sorted(n for batch in first + rest for n in batch) == list(range(ROWS))
    with pytest.raises(JobError, match="was taken with 1 workers, there are 2"):
        numbers(again, 2)
    again.set_epoch(2)
    assert len(numbers(again, 0)) == 10
    with pytest.raises(JobError, match="11 batches are taken of 10"):
        rows.state_dict(11)


def on_cuda() -> str:
    """`cuda`; skips where PyTorch has no GPU, as the wheels for the CPU do."""
    if not torch.cuda.is_available():
        pytest.skip(f"needs a PyTorch with CUDA and a GPU: this one is {torch.__version__}")
    return "cuda"


def devices() -> list[Any]:
    return ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.promise("Rows, their order, their bits and the states are those of host memory")
@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("settings", [{}, {"even": True, "drop_last": True}, {"global_batches": True, "ahead": 0}])
def test_tensors_on_a_device_are_those_of_host_memory(out: Path, device: str, settings: dict[str, Any]) -> None:
    from tasks.loading.torch import Rows

    device = on_cuda() if device == "cuda" else device
    for rank in range(3):
        on_host = Rows(out, 64, rank=rank, ranks=3, **settings)
        on_device = Rows(out, 64, rank=rank, ranks=3, device=device, **settings)
        on_host.set_epoch(2)
        on_device.load_state_dict(on_host.state_dict(1))
        for expected, batch in zip([*on_host][1:], on_device, strict=True):
            assert [*batch] == [*expected]
            assert {values.device.type for values in batch.values()} == {device}
            for name, values in batch.items():
                assert values.dtype == expected[name].dtype
                assert torch.equal(values.cpu(), expected[name])
        assert on_device.state_dict() == on_host.state_dict()


@pytest.mark.parametrize("device", devices())
def test_booleans_are_tensors_that_may_be_changed_on_every_device(tmp_path: Path, device: str) -> None:
    from tasks.loading.torch import Rows

    flags = pa.table({"flag": [True, False, True], "count": pa.array([1, 2, 3], pa.uint16())})
    Workflow(["flag", "count"]).fit_transform(Dataset(flags)).to_parquet(str(tmp_path / "out"), files=1)
    (batch,) = Rows(tmp_path / "out", device=on_cuda() if device == "cuda" else device, shuffle=False)
    assert (batch["flag"].dtype, batch["count"].dtype) == (torch.bool, torch.int32)
    assert torch.equal(
        batch["count"][batch["flag"]].cpu().sort().values, batch["count"].cpu()[batch["flag"].cpu()].sort().values
    )
    batch["flag"].logical_not_()
    assert int(batch["flag"].sum()) == 1


def test_a_pytorch_without_cuda_makes_no_tensors_on_a_gpu(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks import loading
    from tasks.errors import HostError
    from tasks.loading.torch import Rows

    monkeypatch.setattr(loading, "GPU_MODULES", ())
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    with pytest.raises(HostError, match=r"(?s)tensors on cuda:1 need a PyTorch with CUDA.*rowmill.loader"):
        Rows(out, device="cuda:1")


def test_without_a_gpu_and_in_workers_there_are_no_tensors_on_one(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks import loading
    from tasks.errors import HostError, JobError
    from tasks.loading import torch as module

    monkeypatch.setattr(loading, "GPU_MODULES", ())
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    rows = module.Rows(out, device="cuda")
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(HostError, match="PyTorch sees no GPU for tensors on cuda\n"):
            next(iter(rows))
    monkeypatch.setattr(module, "get_worker_info", object)
    with pytest.raises(JobError, match=r"(?s)a worker of a DataLoader makes no batches on cuda.*num_workers=0"):
        next(iter(rows))


@pytest.mark.gpu
def test_tensors_that_are_let_go_are_not_overwritten_before_their_stream_has_read_them(out: Path) -> None:
    """PyTorch's stream is far behind the iteration, as in training: each batch is freed before it is read."""
    from tasks.loading.torch import Rows

    on_cuda()
    sums = [int(batch["number"].sum()) for batch in Rows(out, 30)]
    rows, found, work = Rows(out, 30, device="cuda"), [], torch.rand(4096, 4096, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            for batch in rows:
                work @ work @ work
                found.append(batch["number"].sum())
                del batch
    torch.cuda.synchronize()
    assert [int(total) for total in found] == 3 * sums


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_tensors_may_be_changed_and_the_next_epoch_has_the_rows_of_the_file(tmp_path: Path, form: str) -> None:
    from tasks.loading.torch import Rows

    table = pa.table({"x": pa.array(range(40), pa.int32()), "y": pa.array([0.5, None] * 20)})
    transformed = Workflow(["x", "y"]).fit_transform(Dataset(table))
    transformed.to_parquet(str(tmp_path / "out"), files=1, format=form, shuffle="none")
    rows = Rows(tmp_path / "out", 16, shuffle=False)
    for _ in range(2):
        batches = [(batch["x"].tolist(), batch["x"].zero_().sum().item()) for batch in rows]
        assert [x for values, _ in batches for x in values] == list(range(40))
        assert [total for _, total in batches] == [0, 0, 0]
