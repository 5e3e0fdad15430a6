"""What workers used, by the samples that were taken of them: cores, GPUs, energy, bytes that they sent each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.cluster.monitor import UsageSample

Workers = Mapping[str, Mapping[str, Any]]


def by_gpu(workers: Workers) -> dict[str, dict[str, Any]]:
    """The GPUs that compute, by UUID, each with the samples of all its workers: what is the GPU's counts once."""
    gpus: dict[str, dict[str, Any]] = {}
    for w in workers.values():
        if (uuid := w.get("gpu_uuid")) and w["samples"]:
            samples = [*gpus.get(uuid, {"samples": ()})["samples"], *w["samples"]]
            gpus[uuid] = {**w, "samples": sorted(samples, key=lambda sample: sample.at)}
    return gpus


def measure_growth(workers: Workers, field: str) -> float:
    """By how much a counter grew in all workers together."""
    place = UsageSample._fields.index(field)
    return float(sum(w["samples"][-1][place] - w["samples"][0][place] for w in workers.values() if w["samples"]))


def counter_growth(gpu: Mapping[str, Any], field: str) -> int | None:
    """By how much a counter of a GPU grew; None where the GPU does not offer it.

    The counter may start again at 0, with its driver or since it was full: a reading below half of the last one is
    such a start. A smaller step back is not: two processes have read the counter at about the same time.
    """
    readings = [value_of(s, field) for s in gpu["samples"] if value_of(s, field) is not None]
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


def seconds_sampled(workers: Workers) -> float:
    """Seconds from the first sample to the last."""
    moments = [s.at for w in workers.values() for s in w["samples"]]
    return max(moments) - min(moments)


def resources(workers: Workers, price_per_hour: float | None = None) -> dict[str, float]:
    """What workers took from the first sample of a stage to the last, by names of RESOURCES, without unknown ones.

    A process with several workers counts once, and so does a GPU. Its energy includes what others do on it.
    """
    if not any(w["samples"] for w in workers.values()):
        return {}
    cores: dict[Any, float] = {}
    for address, w in workers.items():
        process = (w.get("host"), w.get("pid"))
        cores[process] = max(cores.get(process, 0.0), measure_growth({address: w}, "cpu"))
    known = {"core_seconds": sum(cores.values())}
    gpus = by_gpu(workers)
    millijoules = [energy for gpu in gpus.values() if (energy := counter_growth(gpu, "energy")) is not None]
    if gpus:
        known["gpu_seconds"] = sum(seconds_sampled({uuid: gpu}) for uuid, gpu in gpus.items())
    if gpus and len(millijoules) == len(gpus):
        known["energy_joules"] = sum(millijoules) / 1000
    if price_per_hour is not None:
        known["cost"] = price_per_hour * seconds_sampled(workers) / 3600
    return {name: round(value, 6) for name, value in known.items()}


def highest(workers: Workers, field: str) -> float | None:
    """The largest value that was seen on any worker; None where none was seen."""
    values = [value_of(s, field) for w in workers.values() for s in w["samples"] if value_of(s, field) is not None]
    return max(values, default=None)


def sum_sent_bytes(workers: Workers) -> dict[str, float]:
    """Bytes that several workers sent to each other by transport (cuda ipc, memory of the host, tcp, ucx, inproc); {}
    where none were."""
    nbytes_by: dict[str, float] = {}
    for address, w in workers.items() if len(workers) > 1 else ():
        for how, nbytes in count_sent_bytes({address: w}, w["transport"]).items():
            nbytes_by[how] = nbytes_by.get(how, 0.0) + nbytes
    return {transport: nbytes for transport, nbytes in nbytes_by.items() if nbytes}


def count_sent_bytes(worker: Workers, transport: str) -> dict[str, float]:
    """Bytes that others copied out of a worker's GPU and out of its host memory, and those that it sent."""
    lent = measure_growth(worker, "lent")
    on_host = measure_growth(worker, "lent_on_host")
    rest = max(
        measure_growth(worker, "sent") - lent - on_host, 0.0
    )  # Dask counts the results, we their buffers, padded
    return {"cuda ipc": lent, "host memory": on_host, transport: rest}


def value_of(sample: UsageSample, field: str) -> Any:
    return getattr(sample, field)
