"""An output as a data set of PyTorch. Needs the extra `torch`: pip install 'millrace[torch]'."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from tasks.loading import Shard, arrays, loader


class Rows(IterableDataset):  # type: ignore[misc]
    """Batches of an output's rows as {column: tensor}: every row once over all ranks and DataLoader workers.

        rows = Rows("out/toy", batch_size=65536, columns=["id", "name", "x", "y", "label"])
        for epoch in range(3):
            rows.set_epoch(epoch)
            for batch in DataLoader(rows, batch_size=None, num_workers=2):
                ...

    `Rows` makes whole batches itself, so the DataLoader gets batch_size=None. `rank` and `ranks` are by default those
    of torch.distributed if it is initialized, else the variables RANK and WORLD_SIZE, else one rank. With several ranks
    set `even`, so that all of them give the same number of batches. The other parameters and the errors are those of
    `Loader`.

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
        **settings: Any,
    ) -> None:
        super().__init__()
        self.loader = loader(path, columns, batch_size=batch_size, **settings)
        default = _rank()
        self.rank, self.ranks = default[0] if rank is None else rank, default[1] if ranks is None else ranks
        Shard(self.rank, self.ranks)
        self.groups = self.loader.groups  # footers are read once, here, not by every worker
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # reaches workers that outlive an epoch

    @property
    def epoch(self) -> int:
        """The number of the epoch that the next iteration gives, from 0."""
        return int(self._epoch.item())

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, hence the order, of the next iteration; workers that already run take it over."""
        self._epoch.fill_(epoch)

    def batches(self, workers: int = 1) -> int:
        """How many batches this rank gives in an epoch with this number of DataLoader workers (0 counts as 1)."""
        count = max(workers, 1)
        return sum(self.loader.batches_of(Shard(self.rank, self.ranks, worker, count)) for worker in range(count))

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        info = get_worker_info()
        shard = Shard(self.rank, self.ranks, info.id if info else 0, info.num_workers if info else 1)
        self.loader.__dict__["groups"] = self.groups
        for table in self.loader.batches(self.epoch, shard):
            yield {name: torch.from_numpy(_owned(values)) for name, values in arrays(table).items()}


def _owned(values: np.ndarray) -> np.ndarray:
    """Values that a tensor may change: those of Arrow are read-only. Unsigned types as PyTorch computes with them."""
    wider = {"uint16": np.int32, "uint32": np.int64, "uint64": np.int64}.get(values.dtype.name)
    if wider:
        return values.astype(wider)
    return values if values.flags.writeable else values.copy()


def _rank() -> tuple[int, int]:
    """(rank, number of ranks) of this process."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
