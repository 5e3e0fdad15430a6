"""What workers used, computed from their samples: cores, GPUs, energy, bytes that they sent each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.cluster.monitor import UsageSample
from tasks.core import storage_traffic
from tasks.core.settings import StoragePrice

# Workers by address, or GPUs by UUID. Each is what `tasks.cluster.monitor.look` returns: host, pid, gpu_uuid,
# transport, samples (in the order of time; empty for a worker that could not be sampled), ..
Workers = Mapping[str, Mapping[str, Any]]


def group_by_gpu(workers: Workers) -> dict[str, dict[str, Any]]:
    """Return the GPUs that compute, by UUID. Samples of workers that share a GPU are merged: its figures count once."""
    gpus: dict[str, dict[str, Any]] = {}
    for w in workers.values():
        if (uuid := w.get("gpu_uuid")) and w["samples"]:
            samples = [*gpus.get(uuid, {"samples": ()})["samples"], *w["samples"]]
            gpus[uuid] = {**w, "samples": sorted(samples, key=lambda sample: sample.at)}
    return gpus


def list_readings(samples: Sequence[UsageSample], field: str) -> list[tuple[float, Any]]:
    """List (time, value) of a field for the samples in which the field could be read."""
    readings = [(sample.at, getattr(sample, field)) for sample in samples]
    return [(moment, value) for moment, value in readings if value is not None]


def measure_growth(worker: Mapping[str, Any], field: str) -> float:
    """Measure by how much a counter of a worker's process grew. Such a counter never starts again."""
    readings = [value for _, value in list_readings(worker["samples"], field)]
    return float(readings[-1] - readings[0]) if readings else 0.0


def measure_gpu_growth(gpu: Mapping[str, Any], field: str) -> int | None:
    """Measure by how much a counter of a GPU grew; None if the GPU does not offer it.

    The counter may start again at 0, when its driver is loaded or when it overflows: a reading below half of the last
    one is such a start. A smaller step back is not: two processes have read the counter at about the same time.
    """
    readings = [value for _, value in list_readings(gpu["samples"], field)]
    growth = 0
    last = readings[0] if readings else 0
    for reading in readings:
        if reading < last / 2:
            growth = growth + reading
            last = reading
        elif reading > last:
            growth = growth + reading - last
            last = reading
    return growth if len(readings) > 1 else None


def measure_seconds(workers: Workers) -> float:
    """Measure the seconds from the first sample to the last; at least one worker must have samples."""
    moments = [s.at for w in workers.values() for s in w["samples"]]
    return max(moments) - min(moments)


def measure_resources(
    workers: Workers, price_per_hour: float | None = None, storage_price: StoragePrice | None = None
) -> dict[str, float]:
    """Measure what workers took from the first sample of a stage to the last.

    The keys are those of `tasks.core.stage_results.RESOURCES`; values that are not known are left out, and so are
    requests and bytes of storages where there are none. A process with several workers counts once, and so does a GPU.
    Its energy includes what other programs do on it.
    """
    if not any(w["samples"] for w in workers.values()):
        return {}
    taken = {"core_seconds": _sum_over_processes(workers, "cpu")}
    traffic = {name: _sum_over_processes(workers, name) for name in storage_traffic.NAMES}
    taken |= {name: int(count) for name, count in traffic.items() if count}
    if storage_price is not None:
        taken["storage_cost"] = storage_price.compute_cost(taken)
    gpus = group_by_gpu(workers)
    energies = [measure_gpu_growth(gpu, "energy") for gpu in gpus.values()]
    millijoules = [energy for energy in energies if energy is not None]
    if gpus:
        taken["gpu_seconds"] = sum(measure_seconds({uuid: gpu}) for uuid, gpu in gpus.items())
    if gpus and len(millijoules) == len(gpus):
        taken["energy_joules"] = sum(millijoules) / 1000
    if price_per_hour is not None:
        taken["cost"] = price_per_hour * measure_seconds(workers) / 3600
    return {name: round(value, 6) for name, value in taken.items()}


def _sum_over_processes(workers: Workers, field: str) -> float:
    """Sum by how much a counter grew, once for each process."""
    growth: dict[Any, float] = {}
    for w in workers.values():
        process = (w.get("host"), w.get("pid"))
        growth[process] = max(growth.get(process, 0.0), measure_growth(w, field))
    return sum(growth.values())


def find_maximum(workers: Workers, field: str) -> float | None:
    """Find the largest value of a field on any worker; None if no sample has one."""
    values = [value for w in workers.values() for _, value in list_readings(w["samples"], field)]
    return max(values, default=None)


def sum_sent_bytes(workers: Workers) -> dict[str, float]:
    """Sum the bytes that workers sent to each other, by transport; {} for a single worker, or if nothing was sent."""
    if len(workers) < 2:
        return {}
    nbytes_by: dict[str, float] = {}
    for w in workers.values():
        for transport, nbytes in split_sent_bytes(w).items():
            nbytes_by[transport] = nbytes_by.get(transport, 0.0) + nbytes
    return {transport: nbytes for transport, nbytes in nbytes_by.items() if nbytes}


def split_sent_bytes(worker: Mapping[str, Any]) -> dict[str, float]:
    """Divide the bytes that a worker sent by transport: `cuda ipc` for those that others copied out of its GPU, `host
    memory` for those out of its host memory, and its own (tcp, ucx, inproc) for the rest."""
    by_ipc = measure_growth(worker, "lent")
    on_host = measure_growth(worker, "lent_on_host")
    # May be below 0: Dask counts the results, rowmill their buffers, which are padded.
    rest = measure_growth(worker, "sent") - by_ipc - on_host
    return {"cuda ipc": by_ipc, "host memory": on_host, worker["transport"]: max(rest, 0.0)}
