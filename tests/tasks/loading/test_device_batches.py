"""Batches in the memory of a device: the rows, order and bits of those that are Arrow tables, handed over by DLPack.

With `--engine cudf` the device is a GPU, else it is host memory, where the same code puts row groups in order.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Collection, Iterable
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakSet

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import loading
from tasks.dataset import Dataset
from tasks.engines.cpu.batch_device import BatchDevice
from tasks.errors import DataError, HostError, JobError
from tasks.loading import Loader, Shard, arrays, batch_arrays, jagged, loader
from tasks.workflow import Workflow
from tests.examples import examples

ROWS = 503
DAY = datetime.date(2026, 1, 1)
NOON = datetime.datetime(2026, 1, 1, 12)


def table(rows: int) -> pa.Table:
    """Every type that has numbers, with nulls where a null has a number: in floats and as lists."""
    numbers = np.arange(rows)
    floats = [None if i % 5 == 0 else i / 7 for i in range(rows)]
    columns: dict[str, Any] = {"number": pa.array(numbers)}
    for kind in ("int8", "int16", "int32", "uint8", "uint16", "uint32", "uint64"):
        columns[kind] = pa.array(numbers % 120).cast(pa.type_for_alias(kind))
    for kind in (pa.float32(), pa.float64()):
        columns[str(kind)] = pa.array(floats, kind)
    columns["no_float"] = pa.nulls(rows, pa.float64())
    columns["flag"] = pa.array([i % 3 == 0 for i in range(rows)])
    columns["day"] = pa.array([DAY + datetime.timedelta(days=i % 900) for i in range(rows)])
    for unit in ("s", "ms", "us", "ns"):
        times = [NOON + datetime.timedelta(seconds=i) for i in range(rows)]
        columns[f"time_{unit}"] = pa.array(times, pa.timestamp(unit))
    columns["zoned"] = pa.array(times, pa.timestamp("us", "Europe/Paris"))
    columns["clock"] = pa.array(numbers % 86_400, pa.int32()).cast(pa.time32("s"))
    columns["items"] = pa.array([None if i % 11 == 0 else [i] * (i % 4) for i in range(rows)], pa.list_(pa.int32()))
    columns["scores"] = pa.array(
        [None if i % 11 == 0 else [None if j else i / 3 for j in range(i % 4)] for i in range(rows)],
        pa.list_(pa.float32()),
    )
    columns["flags"] = pa.array([[True, False][: i % 3] for i in range(rows)], pa.list_(pa.bool_()))
    columns["days"] = pa.array([[DAY] * (i % 2) for i in range(rows)], pa.list_(pa.date32()))
    columns["empty"] = pa.array([[] for _ in range(rows)], pa.list_(pa.int64()))
    columns["side"] = pa.array(["left", "right", None] * rows)[:rows]
    return pa.table(columns)


def written(folder: Path, engine: str, rows: int = ROWS, without: Collection[str] = (), **output: Any) -> Path:
    source = table(rows).drop_columns([*without])
    transformed = Workflow(source.column_names).fit_transform(Dataset(source, engine=engine))
    transformed.to_parquet(str(folder), **{"files": 3, "row_group_size": 60, "seed": 1, **output})
    return folder


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Path:
    """503 rows in 3 files, in row groups of 60."""
    return written(tmp_path_factory.mktemp("device") / "out", engine)


@pytest.fixture(scope="module")
def device(engine: str) -> str:
    return "cuda" if engine == "cudf" else "cpu"


NAMES = [name for name in table(1).column_names if name != "side"]


def on_host(values: Any) -> np.ndarray:
    return values if isinstance(values, np.ndarray) else values.get()


def bits(batch: dict[str, Any]) -> dict[str, tuple[str, bytes]]:
    """Type and bytes of each array."""
    return {name: (values.dtype.name, on_host(values).tobytes()) for name, values in batch.items()}


def both(out: Path, device: str, **how: Any) -> tuple[Loader, Loader]:
    """The loader with Arrow tables, and the one with arrays of the device."""
    return loader(out, NAMES, **how), loader(out, NAMES, device=device, **how)


@pytest.mark.promise("Rows, their order, their bits and the states are those of host memory")
@pytest.mark.parametrize("how", [
    {"batch_size": 64}, {"batch_size": 500}, {"batch_size": 7, "shuffle": False, "ahead": 0}, {"batch_size": 1000},
    {"batch_size": 40, "even": True, "drop_last": True, "seed": 3, "ahead": 5},
    {"batch_size": 100, "global_batches": True},
])  # fmt: skip
def test_batches_have_the_rows_order_and_bits_of_arrow_tables(
    out: Path, device: str, xp: ModuleType, how: dict[str, Any]
) -> None:
    plain, on_device = both(out, device, **how)
    for shard in (Shard(), Shard(7, 8), Shard(1, 2, 2, 3)):
        tables, batches = list(plain.batches(2, shard)), list(on_device.batches(2, shard))
        assert len(batches) == len(tables) == plain.batches_of(shard)
        for rows, batch in zip(tables, batches, strict=True):
            expected = arrays(rows)
            assert [*batch] == [*expected]
            assert bits(batch) == bits(expected)
            assert all(isinstance(values, xp.ndarray) for values in batch.values())
            assert {n: v.tolist() for n, v in batch.lengths.items()} == {
                n: v.tolist() for n, v in expected.lengths.items()
            }


@pytest.mark.parametrize(
    "output", [{"format": "arrow"}, {"partition_on": ["side"]}, {"partition_on": ["int8"], "format": "arrow"}]
)
def test_arrow_files_and_folders_are_put_on_a_device_too(
    output: dict[str, Any], tmp_path: Path, engine: str, device: str
) -> None:
    folder = written(tmp_path / "out", engine, 90, files=1, **output)
    plain, on_device = both(folder, device, batch_size=32)
    assert [bits(batch) for batch in on_device] == [bits(arrays(batch)) for batch in plain]


def test_files_of_the_engine_itself_are_read_with_the_same_bits(tmp_path: Path, engine: str, device: str) -> None:
    """cuDF writes row groups of 5,000 rows and more, if it has the types of all columns."""
    without = ("clock", "zoned", "days", "side")
    folder = written(tmp_path / "out", engine, 11_000, without, files=1, row_group_size=5_000)
    plain, on_device = (loader(folder, batch_size=4_000, device=where) for where in (None, device))
    assert [group.rows for group in plain.groups] == [5_000, 5_000, 1_000]
    assert [bits(batch) for batch in on_device] == [bits(arrays(batch)) for batch in plain]


@pytest.mark.promise("Rows, their order, their bits and the states are those of host memory")
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("how", [{}, {"global_batches": True}])
def test_states_are_those_of_arrow_tables_behind_every_batch(
    out: Path, device: str, ranks: int, how: dict[str, Any]
) -> None:
    names = ["number", "items", "scores"]
    plain, on_device = (loader(out, names, batch_size=96, device=where, **how) for where in (None, device))
    for rank in range(ranks):
        whole = [bits(arrays(batch)) for batch in plain.batches(1, Shard(rank, ranks))]
        tables, batches = (source.batches(1, Shard(rank, ranks)) for source in (plain, on_device))
        for taken in range(len(whole) + 1):
            state = json.loads(json.dumps(batches.state_dict()))
            assert state == tables.state_dict()
            for source in (plain, on_device):
                resumed = source.batches(0, Shard(rank, ranks))
                resumed.load_state_dict(state)
                assert [bits(arrays(batch)) for batch in resumed] == whole[taken:]
            next(tables, None)
            next(batches, None)


@given(
    ranks=st.integers(1, 8), others=st.integers(1, 8), size=st.integers(1, 200), seed=st.integers(0, 9),
    ahead=st.integers(0, 3), together=st.booleans(), share=st.floats(0, 1), shuffle=st.booleans(),
)  # fmt: skip
@examples(25)
def test_every_row_has_its_lists_and_weights_once_wherever_ranks_stop(
    out: Path, device: str, ranks: int, others: int, size: int, seed: int, ahead: int, together: bool, share: float,
    shuffle: bool,
) -> None:  # fmt: skip
    """Ranks stop after a share of their batches and go on in new processes: with global batches, as another number."""
    names = ["number", "items", "scores"]
    source = loader(
        out, names, device=device, batch_size=size, seed=seed, ahead=ahead, global_batches=together, shuffle=shuffle
    )
    others = others if together else ranks
    stops = [int(share * source.batches_of(Shard(rank, ranks))) for rank in range(ranks)]
    running = [source.batches(seed, Shard(rank, ranks)) for rank in range(ranks)]
    found = [row for batches, stop in zip(running, stops, strict=True) for row in rows_of(islice(batches, stop))]
    for rank in range(others):
        resumed = source.batches(0, Shard(rank, others))
        resumed.load_state_dict(running[0 if together else rank].state_dict())
        found += rows_of(resumed)
    lengths = [i % 4 if i % 11 else 0 for i in range(ROWS)]
    weights = [np.float32([np.nan if j else i / 3 for j in range(n)]).tobytes() for i, n in enumerate(lengths)]
    assert sorted(found) == [(i, [i] * n, weights[i]) for i, n in enumerate(lengths)]


def rows_of(batches: Iterable[Any]) -> list[tuple[int, list[int], bytes]]:
    """(number, items, bytes of their weights) of every row of batches."""
    rows = []
    for batch in batches:
        form = jagged(batch, {"items": "scores"})
        cuts = np.cumsum(on_host(form["lengths"]))[:-1]
        lists, weights = (np.split(on_host(form[name]), cuts) for name in ("values", "weights"))
        if numbers := batch["number"].tolist():  # some ranks have no row of a last batch
            rows += [(n, i.tolist(), w.tobytes()) for n, i, w in zip(numbers, lists, weights, strict=True)]
    return rows


@pytest.mark.promise("takes the columns over without a copy (DLPack)")
def test_a_batch_is_memory_of_its_own_that_dlpack_hands_over(out: Path, device: str, xp: ModuleType) -> None:
    source = loader(out, ["number", "items", "flag", "empty"], batch_size=50, device=device, shuffle=False)
    before = [bits(batch) for batch in source]
    for batch in source:
        for name, values in batch.items():
            taken = xp.from_dlpack(values)
            assert taken.__dlpack_device__() == values.__dlpack_device__()
            taken[:] = 1
            assert values.tolist() == [1] * len(values), name
    assert [bits(batch) for batch in source] == before


@pytest.mark.parametrize(
    ("name", "message"),
    [("word", r"column 'word' is string, which is not a number"),
     ("count", r"column 'count' has nulls\n.*int16 has no"), ("lists", r"column 'lists' has nulls\n.*int64 has no"),
     ("no", r"column 'no' has nulls\n.*bool has no")],
)  # fmt: skip
def test_what_has_no_number_is_refused_as_on_the_host(
    name: str, message: str, tmp_path: Path, engine: str, device: str
) -> None:
    columns = {
        "word": ["a", "b"], "count": pa.array([1, None], pa.int16()), "lists": [[1, None], [2]],
        "no": pa.array([None, None], pa.bool_()), "x": [1.5, 2.5],
    }  # fmt: skip
    rows = pa.table(columns)
    Workflow([*columns]).fit_transform(Dataset(rows, engine=engine)).to_parquet(str(tmp_path / "out"), files=1)
    assert len(list(loader(tmp_path / "out", ["x"], device=device))) == 1
    for where in (None, device):
        with pytest.raises(DataError, match=message):
            arrays(next(loader(tmp_path / "out", [name, "x"], device=where).batches()))


def test_a_device_that_cannot_be_is_named(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("gpu", "cuda:x", -1, "cuda:"):
        with pytest.raises(JobError, match=r"(?s)device is .*give cpu, cuda or cuda:1"):
            loader(out, device=wrong)
    monkeypatch.setattr(loading, "find_spec", lambda name: None)
    with pytest.raises(HostError, match=r"(?s)need cuDF and CuPy\n.*cudf and .*cannot be imported.*rowmill\[cuda13\]"):
        loader(out, device="cuda")
    assert loader(out, device="cpu").device == "cpu"


def test_a_gpu_is_named_by_its_text_its_number_or_as_pytorch_does(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(loading, "GPU_MODULES", ())
    assert [loader(out, device=d).device for d in ("cuda", "cuda:1", 1, torch.device("cuda", 1))] == [
        "cuda", "cuda:1", "cuda:1", "cuda:1"
    ]  # fmt: skip


def test_a_host_without_a_gpu_that_answers_is_named(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def engine(name: str) -> Any:
        raise RuntimeError("CUDA driver version is insufficient for CUDA runtime version")

    monkeypatch.setattr(loading, "GPU_MODULES", ())
    monkeypatch.setattr(loading, "engine", engine)
    with pytest.raises(HostError, match=r"need a GPU that cuDF can use\n.*insufficient(?s:.*)nvidia-smi"):
        loader(out, device="cuda").batches()


class Decoding(BatchDevice):
    """A device that decodes row groups by itself, as a GPU does: values, which are not null, and offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.decoded: set[str] = set()
        self.fails: Exception | None = None

    def read(self, path: str, group: int, types: dict[str, pa.DataType]) -> dict[str, tuple[Any, Any, Any]]:
        if self.fails:
            raise self.fails
        names = [name for name in types if name not in ("clock", "uint16", "side")]
        self.decoded |= {*names}
        rows = pq.ParquetFile(path).read_row_group(group, columns=names)
        return {name: self.parts(rows[name].combine_chunks()) for name in names}

    def parts(self, values: pa.Array) -> tuple[Any, Any, Any]:
        if pa.types.is_list(values.type):
            numbers, valid, _ = self.parts(values.flatten())
            return numbers, valid, np.append(0, np.cumsum(values.value_lengths().fill_null(0))).astype(np.int64)
        valid = np.asarray(values.is_valid()) if values.null_count else None
        integers = {4: pa.int32(), 8: pa.int64()}
        if pa.types.is_temporal(values.type):
            values = values.cast(integers[values.type.byte_width])
        fill = False if pa.types.is_boolean(values.type) else 0
        return values.fill_null(fill).to_numpy(zero_copy_only=False), valid, None


@pytest.fixture
def decoding(monkeypatch: pytest.MonkeyPatch) -> Decoding:
    device = Decoding()
    monkeypatch.setattr(loading, "_open_device", lambda name: device)
    return device


@pytest.mark.parametrize("shuffle", [False, True])
def test_columns_that_the_device_decodes_and_those_of_arrow_stand_side_by_side(
    out: Path, decoding: Decoding, shuffle: bool
) -> None:
    plain, on_device = both(out, "cpu", batch_size=64, shuffle=shuffle)
    assert [bits(batch) for batch in on_device] == [bits(arrays(batch)) for batch in plain]
    assert decoding.decoded == {*NAMES} - {"clock", "uint16"}
    with pytest.raises(DataError, match="column 'side' is string"):
        next(loader(out, ["side", "number"], device="cpu").batches())


def test_what_the_device_cannot_read_is_read_on_the_host_with_a_warning(
    out: Path, decoding: Decoding, caplog: pytest.LogCaptureFixture
) -> None:
    decoding.fails = RuntimeError("unsupported encoding")
    plain, on_device = both(out, "cpu", batch_size=64)
    assert [bits(batch) for batch in on_device] == [bits(arrays(batch)) for batch in plain]
    (line,) = caplog.messages
    assert "are read on the host where cuDF fails, first row group" in line
    assert line.endswith(".parquet: unsupported encoding")


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_device_whose_memory_is_too_small_is_named_and_the_batch_is_read_again(
    out: Path, decoding: Decoding, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = loader(out, NAMES, batch_size=64, device="cpu", ahead=ahead)
    whole, batches = [bits(batch) for batch in source], source.batches()
    found = [bits(next(batches))]
    decoding.fails = MemoryError("std::bad_alloc: out_of_memory")
    message = r"(?s)memory of cpu is too small for row group . of part-0.*rows of 2. columns"
    with pytest.raises(HostError, match=message):
        found.extend(map(bits, batches))
    decoding.fails = None
    with monkeypatch.context() as patch:
        patch.setattr(loading, "assemble_batch", lambda *_: (_ for _ in ()).throw(MemoryError("out_of_memory")))
        with pytest.raises(HostError, match="memory of cpu is too small for a batch\n"):
            next(batches)
    assert found + [bits(batch) for batch in batches] == whole


def counting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many row groups with one column are in memory whenever one has been put in order."""
    alive, counts = WeakSet[Any](), list[int]()

    def in_order(*arguments: Any) -> Any:
        column = batch_arrays.in_order(*arguments)
        alive.add(column)
        counts.append(len(alive))
        return column

    monkeypatch.setattr(loading, "in_order", in_order)
    return counts


@pytest.mark.promise("a thread decodes what the next batches need, on a stream of its own")
@pytest.mark.parametrize(("size", "ahead", "most"), [(20, 1, 2), (20, 0, 2), (60, 3, 6), (90, 0, 3)])
def test_row_groups_in_memory_are_those_of_the_batches_ahead(
    out: Path, device: str, size: int, ahead: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row groups have 60 rows, the last one of a file fewer."""
    counts = counting(monkeypatch)
    batches = loader(out, ["number"], batch_size=size, ahead=ahead, device=device).batches()
    assert sum(len(batch["number"]) for batch in batches) == ROWS
    assert len(counts) == 9
    assert max(counts) <= most


def test_the_next_row_group_is_read_while_batches_of_one_are_taken(
    out: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = counting(monkeypatch)
    batches = loader(out, ["number"], batch_size=5, ahead=1, device=device, shuffle=False).batches()
    next(batches)
    batches._threads.group_reader.shutdown()  # type: ignore[union-attr]
    assert counts == [1, 2]


@pytest.mark.parametrize("how", [{}, {"global_batches": True}])
def test_a_rank_reads_the_row_groups_of_its_own_batches_alone(
    out: Path, device: str, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = counting(monkeypatch)
    source = loader(out, ["number"], batch_size=168, device=device, shuffle=False, **how)
    group_of = np.repeat(range(len(source.groups)), [group.rows for group in source.groups])
    for rank in range(3):
        counts.clear()
        shard, taken = Shard(rank, 3), list(source.batches(0, Shard(rank, 3)))
        spans = [source.span(shard, number) for number in range(len(taken))]
        assert len(counts) == len({*np.concatenate([group_of[first:last] for first, last in spans])}) < 9


def test_lists_of_many_elements_are_put_in_order_by_parts(
    out: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [bits(batch) for batch in loader(out, NAMES, batch_size=64, device=device)]
    monkeypatch.setattr(batch_arrays, "ELEMENTS", 5)
    assert [bits(batch) for batch in loader(out, NAMES, batch_size=64, device=device)] == whole


def test_jagged_form_and_weights_are_of_the_same_library(out: Path, device: str, xp: ModuleType) -> None:
    names = {"items": "scores", "int32": None}
    plain, on_device = both(out, device, batch_size=64)
    for rows, batch in zip(plain, on_device, strict=True):
        form, expected = jagged(batch, names), jagged(arrays(rows), names)
        assert form.pop("keys") == expected.pop("keys") == ["items", "int32"]
        assert all(isinstance(values, xp.ndarray) for values in form.values())
        assert bits(form) == bits(expected)


@pytest.mark.promise("lists of other lengths than those of their weights are an error that names the row of the batch")
def test_weights_of_other_lengths_are_refused_with_the_row(device: str, tmp_path: Path, engine: str) -> None:
    rows = pa.table({"ids": [[1], [2, 3], None], "weights": [[0.5], [0.5], []]})
    Workflow(["ids", "weights"]).fit_transform(Dataset(rows, engine=engine)).to_parquet(
        str(tmp_path / "out"), files=1, shuffle="none"
    )
    batch = next(loader(tmp_path / "out", device=device, shuffle=False).batches())
    message = r"'ids' and of its weights, 'weights', have different lengths: 2 and 1\n.*row 1 of the batch, one of 1"
    for columns in (batch, dict(batch)):
        with pytest.raises(DataError, match=message):
            jagged(columns, {"ids": "weights"})
    with pytest.raises(JobError, match="no column 'weight' in the batch"):
        jagged(batch, {"ids": "weight"})


# On a GPU


@pytest.mark.gpu
def test_cudf_decodes_what_it_reads_and_arrow_the_rest(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = set[str]()
    plain = loading._Files.read
    monkeypatch.setattr(
        loading._Files, "read", lambda self, group, names: (read.update(names), plain(self, group, names))[1]
    )
    batch = next(loader(out, NAMES, batch_size=64, device="cuda:0").batches())
    import rmm

    assert read == {"clock"}
    assert type(rmm.mr.get_current_device_resource()) is not rmm.mr.CudaMemoryResource
    assert {values.__dlpack_device__() for values in batch.values()} == {(2, 0)}


@pytest.mark.gpu
def test_a_gpu_that_this_process_does_not_see_is_named(out: Path) -> None:
    with pytest.raises(JobError, match=r"no GPU cuda:99\n.*this process sees \d+, the first is cuda:0; .*MIG"):
        loader(out, device="cuda:99").batches()


@pytest.mark.promise("a thread decodes what the next batches need, on a stream of its own")
@pytest.mark.gpu
@pytest.mark.parametrize("non_blocking", [False, True])
def test_a_batch_that_is_let_go_is_not_overwritten_before_its_stream_has_read_it(
    out: Path, xp: ModuleType, non_blocking: bool
) -> None:
    """The stream of the caller is far behind: a batch waits there for a kernel that sleeps, and is freed before."""
    code = """extern "C" __global__ void nap(long long cycles) {
        for (long long start = clock64(); clock64() - start < cycles;);
    }"""
    sleep = xp.RawKernel(code, "nap")
    plain, on_device = both(out, "cuda", batch_size=32)
    sums = [int(arrays(batch)["number"].sum()) + int(arrays(batch)["items"].sum()) for batch in plain]
    stream = xp.cuda.Stream(non_blocking=non_blocking)
    found = []
    with stream:
        for _ in range(3):
            for batch in on_device:
                sleep((1,), (1,), (np.int64(5_000_000),))
                found.append(batch["number"].sum() + batch["items"].sum())
                del batch
    stream.synchronize()
    assert [int(total) for total in found] == 3 * sums


@pytest.mark.gpu
def test_epochs_take_no_more_memory_than_the_first(out: Path, xp: ModuleType) -> None:
    source, pool = loader(out, NAMES, batch_size=50, device="cuda"), xp.get_default_memory_pool()
    pool.free_all_blocks()
    before, taken = pool.total_bytes(), []
    for epoch in range(12):
        for batch in source.batches(epoch):
            del batch
        taken.append(pool.total_bytes() - before)
    assert taken[-1] <= 2 * taken[1]
