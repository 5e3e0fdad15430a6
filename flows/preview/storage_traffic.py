"""What a run will fetch from storages: requests, bytes, seconds at the speed that is measured now, and their price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flows.preview.readings import Reading
from tasks.core.plan import Plan
from tasks.core.settings import StoragePrice
from tasks.graph.node import Node, list_side_files
from tasks.job.request import Request
from tasks.sources.remote_reads import (
    Reads,
    estimate_footers,
    estimate_listing,
    estimate_pass,
    estimate_text,
    name_storages,
)
from tasks.storage.bandwidth import measure_bandwidth
from tasks.storage.files import is_remote

LOOKS_AT_SIDE_TABLE = 4  # a listing, its columns, its rows, and whether it has changed


@dataclass(frozen=True)
class StorageTraffic:
    """What a run will fetch: requests and bytes by what they are for, and the bytes a second that were measured."""

    storages: Sequence[str]
    reads: Mapping[str, Reads]
    bandwidth: float | None
    cost: float | None

    @property
    def total(self) -> Reads:
        return sum(self.reads.values(), Reads())

    @property
    def seconds(self) -> float | None:
        return self.total.nbytes / self.bandwidth if self.bandwidth else None


def estimate_traffic(
    request: Request, final: Node, plans: Mapping[str, Plan], readings: Sequence[Reading], workers: int
) -> StorageTraffic | None:
    """Estimate what a run will fetch from storages; None if it reads none. A short read measures the speed.

    A pass counts whole, though what an earlier one has decoded may still be in memory.
    """
    planned = list(plans.values())
    remote = [file for plan in planned for file in plan.files if is_remote(file.path)]
    side_files = [file for file in list_side_files(final) if is_remote(file.path)]
    if not remote and not side_files:
        return None
    processes = min(workers, len(readings)) + 1
    reads = {
        "listing": sum(map(estimate_listing, planned), Reads()),
        "footers": sum((estimate_footers(plan, processes) for plan in planned), Reads()),
        "text, once": sum(map(estimate_text, planned), Reads()),
        "side tables": Reads(LOOKS_AT_SIDE_TABLE * len(side_files), sum(max(0, file.size) for file in side_files)),
    }
    for reading in readings:
        reads[reading.what] = estimate_pass(plans[reading.plan], reading.columns)
    options = planned[0].options.get("storage_options")
    traffic = {name: of for name, of in reads.items() if of.requests}
    bandwidth = measure_bandwidth(remote, options) if remote else None
    storages = name_storages([*remote, *side_files])
    return StorageTraffic(storages, traffic, bandwidth, _estimate_cost(request.run.storage_price, traffic))


def _estimate_cost(price: StoragePrice | None, reads: Mapping[str, Reads]) -> float | None:
    if price is None:
        return None
    total = sum(reads.values(), Reads())
    return price.compute_cost({"storage_gets": total.requests, "storage_bytes_read": total.nbytes})
