"""Train a small model on an output: `rowmill run toy`, then `python flows/recipes/torch_example.py out/toy`.

On several GPUs or processes: `torchrun --nproc-per-node 2 flows/recipes/torch_example.py out/toy`. The sizes of the
embeddings, the roles of the columns and the target come from the manifest. An output behind a URL is named with the
options of its storage, if they have a name: `torch_example.py s3://shop/toy shop`. Needs the extra `torch`.
"""

from __future__ import annotations

import os
import sys

import torch
from rowmill import Rows, Schema, Tags
from torch import nn
from torch.utils.data import DataLoader


class Tower(nn.Module):
    """An embedding for every column of ids, and a layer over these and the continuous columns."""

    def __init__(self, schema: Schema) -> None:
        super().__init__()
        sizes = {c.name: c.properties["embedding"] for c in schema.columns if "embedding" in c.properties}
        self.continuous = [n for n in schema.with_tag(Tags.CONTINUOUS) if n not in sizes]
        self.embeddings = nn.ModuleDict(
            {name: nn.Embedding(size["rows"], size["dimension"], padding_idx=0) for name, size in sizes.items()}
        )
        width = sum(size["dimension"] for size in sizes.values()) + len(self.continuous)
        self.layers = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        embedded = [embedding(batch[name].long()) for name, embedding in self.embeddings.items()]
        numbers = [batch[name].float().nan_to_num().unsqueeze(1) for name in self.continuous]
        return self.layers(torch.cat([*embedded, *numbers], dim=1)).squeeze(1)


def train(
    out: str, epochs: int = 2, batch_size: int = 4096, workers: int = 2, storage_options: str | None = None
) -> list[float]:
    """The mean loss of every epoch."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else torch.device("cpu")
    torch.manual_seed(0)
    rows = Rows(out, batch_size, even=True, storage_options=storage_options)
    schema = rows.loader.schema
    (target,) = schema.with_tag(Tags.TARGET)
    model: nn.Module = Tower(schema).to(device)
    if torch.distributed.is_initialized():
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loss_of = nn.BCEWithLogitsLoss()
    batches = DataLoader(rows, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
    losses = []
    for epoch in range(epochs):
        rows.set_epoch(epoch)
        total = 0.0
        count = 0
        for batch in batches:
            batch = {name: values.to(device, non_blocking=True) for name, values in batch.items()}
            loss = loss_of(model(batch), batch[target].float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total = total + loss.item()
            count = count + 1
        losses.append(total / max(count, 1))
        if rows.rank == 0:
            print(f"epoch {epoch}: {count} batches of {batch_size} rows, mean loss {losses[-1]:.4f}", flush=True)
    return losses


if __name__ == "__main__":
    place, options = [*sys.argv[1:], None, None][:2]
    train(place or "out/toy", storage_options=options)
