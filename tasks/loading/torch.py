"""An output as a data set of PyTorch. Needs the extra `torch`: pip install 'rowmill[torch]'."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from tasks.core.dtypes import dtype_name, is_list, kind_of, leaf_type
from tasks.errors import HostError, JobError
from tasks.loading import Arrays, Batches, Loader, Shard, arrays, check_order, jagged, loader


class Rows(IterableDataset):  # type: ignore[misc]
    """Batches of an output's rows as {column: tensor}: every row once over all ranks and DataLoader workers.

        rows = Rows("out/toy", batch_size=65536, columns=["id", "name", "x", "y", "label"])
        for epoch in range(3):
            rows.set_epoch(epoch)
            for batch in DataLoader(rows, batch_size=None, num_workers=2):
                ...

    `Rows` makes whole batches itself, so the DataLoader gets batch_size=None. `rank` and `ranks` are by default those
    of torch.distributed if it is initialized, else the variables RANK and WORLD_SIZE, else one rank. With several ranks
    set `even`, so that all of them give the same number of batches, or `global_batches`.
    `state_dict` and `load_state_dict` stop and go on in the middle of an epoch. `tags` selects columns as in `loader`.
    The other parameters and the errors are those of `Loader`.

    With `device`, `cuda` or `cuda:1`, tensors are in the memory of that GPU: cuDF decodes the row groups there, and
    PyTorch takes the columns over without a copy. They belong to PyTorch's current stream of the iteration, as if it
    had made them. The DataLoader then has no workers (num_workers=0): a thread reads ahead. Errors: a HostError where
    PyTorch has no CUDA, and those of `Loader`; a JobError in a worker of a DataLoader.

    `jagged` names columns that come as one KeyedJaggedTensor of TorchRec, `batch["jagged"]`, instead of tensors of
    their own. A map {column: column of its weights} gives it weights (float32), 1 for None. A
    map {name: columns} of such lists or maps makes several, `batch[name]`. A column of single values has lists of
    length 1. Columns of integers of several types become int64. Errors: a HostError where TorchRec is not installed; a
    JobError for an unknown column, for integers next to floats, for a name that is a column of the batch, and for
    weights that are not numbers, or lists next to single values; a DataError for lists of other lengths than those of
    their weights.

    Tensors have the columns' types (uint16 becomes int32, uint32 and uint64 become int64); a null float is NaN, and a
    null in any other column a DataError. A list column gives its elements, and `<column>_offsets` as
    torch.nn.EmbeddingBag(include_last_offset=True) takes them. Needs PyTorch.
    """

    def __init__(
        self,
        path: str | Path,
        batch_size: int = 4096,
        columns: Sequence[str] | None = None,
        *,
        rank: int | None = None,
        ranks: int | None = None,
        jagged: Sequence[str] | Mapping[str, str | Sequence[str] | Mapping[str, str | None] | None] = (),
        **settings: Any,
    ) -> None:
        super().__init__()
        self.loader = loader(path, columns, batch_size=batch_size, **settings)
        if self._on_gpu and not torch.backends.cuda.is_built():
            raise HostError(
                f"tensors on {self.loader.device} need a PyTorch with CUDA",
                why=f"this one is {torch.__version__}",
                do="install one from pytorch.org; rowmill.loader(.., device=) gives arrays of CuPy without PyTorch",
            )
        self.jagged = {} if not jagged else _parse_jagged(jagged)
        if self.jagged:
            _import_keyed_jagged_tensor()
            self.loader = _with_columns(self.loader, self.jagged)
        default = _find_rank()
        self.rank = default[0] if rank is None else rank
        self.ranks = default[1] if ranks is None else ranks
        Shard(self.rank, self.ranks)
        self.groups = self.loader.groups  # footers are read once, here, not by every worker
        # epoch, batches of it that are taken, workers that took them: shared with workers that outlive an epoch
        self._place = torch.zeros(3, dtype=torch.int64).share_memory_()
        self._taken: int | None = None

    @property
    def epoch(self) -> int:
        """The number of the epoch that the next iteration gives, from 0."""
        return int(self._place[0].item())

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, hence the order, of the next iteration; workers that already run take it over."""
        if epoch != self.epoch:
            self._place.copy_(torch.tensor([epoch, 0, 0]))
        self._taken = None

    def state_dict(self, batches: int | None = None, workers: int = 0) -> dict[str, Any]:
        """Return where this rank stands: `batches` of the epoch are taken, by a DataLoader with this number of workers.

        None: those that were iterated over in this process, which is right without DataLoader workers. A JobError for
        None where nothing was, since workers read ahead and cannot say what was taken.
        """
        if batches is None:
            if self._taken is None:
                raise JobError(
                    "how many batches were taken is not known here",
                    why="DataLoader workers read ahead of the training",
                    do="give state_dict(batches=..)",
                )
            batches = self._taken
        order = self.loader.order_of(Shard(self.rank, self.ranks))
        if not self.loader.global_batches:
            order["workers"] = max(workers, 1)
        if not 0 <= batches <= (total := self.batches(workers)):
            raise JobError(f"{batches} batches are taken of {total}", do="count those of this epoch and rank")
        return {"epoch": self.epoch, "batch": batches, "order": order}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on behind the batches of a state, until `set_epoch` names another epoch.

        Without `global_batches` a state belongs to its rank, number of ranks and number of workers; with it, to none. A
        JobError for a state of another output or order, and when an iteration begins with another number of workers.
        """
        order = self.loader.order_of(Shard(self.rank, self.ranks))
        check_order(state, order, self.loader.path)
        self._place.copy_(torch.tensor([state["epoch"], state["batch"], state["order"].get("workers", 0)]))
        self._taken = None

    def batches(self, workers: int = 1) -> int:
        """Count the batches that this rank gives in an epoch with this number of DataLoader workers (0 counts as 1)."""
        count = max(workers, 1)
        return sum(self.loader.batches_of(Shard(self.rank, self.ranks, worker, count)) for worker in range(count))

    @property
    def _on_gpu(self) -> bool:
        return self.loader.device not in (None, "cpu")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = get_worker_info()
        if info and self._on_gpu:
            raise JobError(
                f"a worker of a DataLoader makes no batches on {self.loader.device}",
                why="a process of its own has a GPU context of its own",
                do="give the DataLoader num_workers=0: a thread reads ahead",
            )
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        epoch, taken, by = self._place.tolist()
        self.loader.__dict__["groups"] = self.groups
        shards = [Shard(self.rank, self.ranks, number, workers) for number in range(workers)]
        if taken and by and by != workers:
            raise JobError(
                f"the state was taken with {by} workers, there are {workers}",
                where=self.loader.path,
                do="take the same number of workers, or global_batches=True",
            )
        counts, turn = _count_turns([self.loader.batches_of(shard) for shard in shards], taken)
        mine = (worker + turn) % workers  # the DataLoader begins with its worker 0
        if info is None:
            self._taken = taken
        source, stream = self._source()
        for batch in Batches(source, epoch, shards[mine], counts[mine], convert=self._tensors, stream=stream):
            if info is None and self._taken is not None:
                self._taken += 1
            yield batch

    def _source(self) -> tuple[Loader, Callable[[], int] | None]:
        """Return (the loader with the number of PyTorch's current GPU, which gives the address of its current
        stream)."""
        if not self._on_gpu:
            return self.loader, None
        if not torch.cuda.is_available():
            raise HostError(
                f"PyTorch sees no GPU for tensors on {self.loader.device}",
                do="look at nvidia-smi and CUDA_VISIBLE_DEVICES, or leave out device=",
            )
        device = torch.device(str(self.loader.device))
        number = torch.cuda.current_device() if device.index is None else device.index
        return self.loader.with_settings(device=f"cuda:{number}"), lambda: int(
            torch.cuda.current_stream(number).cuda_stream
        )

    def _tensors(self, read: object) -> dict[str, Any]:
        columns = arrays(read, writable=True)
        owned = Arrays({name: _to_writable(values) for name, values in columns.items()}, lengths=columns.lengths)
        named = {name for features in self.jagged.values() for pair in features.items() for name in pair if name}
        inside = {part for name in named for part in (name, f"{name}_offsets")}
        batch: dict[str, Any] = {name: _make_tensor(values) for name, values in owned.items() if name not in inside}
        for key, features in self.jagged.items():
            batch[key] = _make_keyed_jagged_tensor(owned, features)
        return batch


Features = dict[str, str | None]  # the columns of a jagged tensor, each with the column of its weights


def _parse_jagged(jagged: Mapping[str, Any] | Sequence[str]) -> dict[str, Features]:
    """Parse the columns of each jagged tensor by its name. A JobError for a map that has both columns and tensors."""
    if not isinstance(jagged, Mapping):
        return {"jagged": _features(jagged)}
    weighted = {name for name, value in jagged.items() if value is None or isinstance(value, str)}
    if len(weighted) == len(jagged):
        return {"jagged": dict(jagged)}
    if weighted:
        one = next(iter(weighted))
        other = next(name for name in jagged if name not in weighted)
        raise JobError(
            "jagged mixes columns and names of tensors",
            why=f"{one!r} names one column, {other!r} several",
            do=f"jagged={{'{other}': .., 'ids': {{'{one}': {jagged[one]!r}}}}}",
        )
    return {key: _features(value) for key, value in jagged.items()}


def _features(columns: str | Sequence[str] | Mapping[str, str | None]) -> Features:
    if isinstance(columns, Mapping):
        return dict(columns)
    return dict.fromkeys([columns] if isinstance(columns, str) else columns)


def _with_columns(loader: Loader, jagged: Mapping[str, Features]) -> Loader:
    """Make the loader also read the columns of jagged tensors and their weights.

    A JobError for an unknown one, a second name, and weights of another kind than their values.
    """
    inside = [name for features in jagged.values() for pair in features.items() for name in pair if name]
    for key in jagged:
        if key in {*loader.names} - {*inside}:
            raise JobError(
                f"a jagged tensor and a column are both called {key!r}",
                where=loader.path,
                do="name the tensor otherwise: jagged={'ids': [..]}",
            )
    loader = loader.with_settings(columns=tuple(dict.fromkeys([*loader.names, *inside])))
    for name, weight in (pair for features in jagged.values() for pair in features.items()):
        if weight is not None:
            _check_weights(loader, name, weight)
    return loader


def _check_weights(loader: Loader, name: str, weight: str) -> None:
    values = loader.schema[name].dtype
    weights = loader.schema[weight].dtype
    if kind_of(leaf_type(weights)) != "number":
        raise JobError(
            f"the weights of {name!r} are not numbers",
            where=loader.path,
            why=f"{weight!r} is {dtype_name(weights)}",
            do="name a column of numbers",
        )
    if is_list(values) != is_list(weights):
        raise JobError(
            f"{name!r} and its weights, {weight!r}, are not both lists",
            where=loader.path,
            why=f"{name} is {dtype_name(values)}, {weight} is {dtype_name(weights)}",
            do="name a list column with one weight for each value",
        )


def _import_keyed_jagged_tensor() -> Any:
    """Import the class of TorchRec; a HostError if it cannot be imported."""
    try:
        from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
    except (ImportError, OSError) as error:
        raise HostError(
            "jagged tensors need TorchRec",
            why=str(error),
            do="pip install 'rowmill[torchrec]'; without it rowmill.jagged gives keys, values and lengths as arrays",
        ) from None
    return KeyedJaggedTensor


def _make_keyed_jagged_tensor(columns: Arrays, features: Features) -> Any:
    """Make the KeyedJaggedTensor of columns of a batch."""
    types = {columns[name].dtype for name in features}
    if len(types) > 1 and all(dtype.kind == "i" for dtype in types):
        wide = {name: columns[name].astype(np.int64) for name in features}
        columns = Arrays({**columns, **wide}, lengths=columns.lengths)
    parts = jagged(columns, features)
    tensors = {name: _make_tensor(parts[name]) for name in ("values", "lengths", "weights") if name in parts}
    return _import_keyed_jagged_tensor()(keys=parts["keys"], **tensors)


def _make_tensor(values: Any) -> torch.Tensor:
    """Make a tensor of an array, in its memory."""
    if isinstance(values, np.ndarray):
        return torch.from_numpy(values)
    if values.dtype == np.bool_:  # CuPy 13 hands over no booleans
        return torch.from_dlpack(values.view(np.uint8)).view(torch.bool)
    return torch.from_dlpack(values)


def _count_turns(batches: Sequence[int], taken: int) -> tuple[list[int], int]:
    """Compute how many batches each worker has given once `taken` were, in turn; and the worker whose turn is next.

    >>> _count_turns([3, 2, 2], 4)
    ([2, 1, 1], 1)
    """
    count = len(batches)
    rounds = min(taken // count, *batches)
    counts = [rounds] * count
    left = taken - rounds * count
    turn = 0
    while any(map(operator.lt, counts, batches)):
        if counts[turn] < batches[turn]:
            if not left:
                break
            counts[turn], left = counts[turn] + 1, left - 1
        turn = (turn + 1) % count
    return counts, turn


def _to_writable(values: np.ndarray) -> np.ndarray:
    """Copy values that a tensor may not change: those of Arrow are read-only. Unsigned types as PyTorch computes with
    them."""
    wider = {"uint16": np.int32, "uint32": np.int64, "uint64": np.int64}.get(values.dtype.name)
    if wider:
        return values.astype(wider)
    return values if not isinstance(values, np.ndarray) or values.flags.writeable else values.copy()


def _find_rank() -> tuple[int, int]:
    """Return (rank, number of ranks) of this process."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
