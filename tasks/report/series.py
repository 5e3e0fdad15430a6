"""Curves and tables of the samples of workers: rows and bytes per second, memory, computing, spill, bytes moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tasks.cluster.usage import (
    Workers,
    find_maximum,
    group_by_gpu,
    list_readings,
    measure_gpu_growth,
    measure_growth,
    measure_seconds,
    split_sent_bytes,
    sum_sent_bytes,
)
from tasks.core.strict_json import JsonObject
from tasks.core.units import amount, exact_amount
from tasks.report import svg

Curve = list[tuple[float, float]]
MOST_LINES = 6  # more workers than that are drawn as their sum
BINS = 60


def name_workers(workers: Workers) -> dict[str, str]:
    """Give a short name to every worker, or every GPU of `group_by_gpu`; with its host if there are several."""
    several = len({w["host"] for w in workers.values()}) > 1
    names = {}
    for number, (address, w) in enumerate(workers.items()):
        what = "GPU" if address == w.get("gpu_uuid") else "GPU worker" if w.get("gpu") else "worker"
        names[address] = f"{what} {number}"
        if several:
            names[address] += f" on {w['host']}"
    return names


def level(workers: Workers, field: str, zero: float) -> dict[str, Curve]:
    """Draw a quantity over time for each worker, or the sum of many workers; in seconds from `zero`."""
    curves = {}
    for address, name in name_workers(workers).items():
        readings = list_readings(workers[address]["samples"], field)
        if readings:
            curves[name] = [(moment - zero, float(value)) for moment, value in readings]
    return _limit_curves(curves)


def rates(workers: Workers, field: str, zero: float) -> dict[str, Curve]:
    """Compute how fast a counter grew, per second, for each worker; rows of a partition count when it is done.

    Workers are sampled twice a second, and counters jump at the end of a partition. The time is therefore cut into at
    most `BINS` equal bins of half a second or more, and the growth within each is shown at its middle.
    """
    curves = {}
    for address, name in name_workers(workers).items():
        readings = list_readings(workers[address]["samples"], field)
        if len(readings) > 1 and readings[-1][0] > readings[0][0]:
            curves[name] = _compute_rate_curve(readings, zero)
    return _limit_curves(curves)


def _compute_rate_curve(readings: Curve, zero: float) -> Curve:
    first = readings[0][0]
    last = readings[-1][0]
    bins = max(1, min(BINS, int((last - first) / 0.5)))
    edges = [first + (last - first) * i / bins for i in range(bins + 1)]
    heights = _interpolate(edges, [(moment, float(value)) for moment, value in readings])
    return [
        ((edges[i] + edges[i + 1]) / 2 - zero, max(0.0, (heights[i + 1] - heights[i]) / (edges[i + 1] - edges[i])))
        for i in range(bins)
    ]


def _interpolate(moments: Sequence[float], points: Curve) -> list[float]:
    """Compute a curve's values at ascending moments, by straight lines between its points."""
    resampled = []
    i = 0
    for moment in moments:
        while i + 1 < len(points) - 1 and points[i + 1][0] < moment:
            i += 1
        (t0, v0), (t1, v1) = points[i], points[min(i + 1, len(points) - 1)]
        share = min(max((moment - t0) / (t1 - t0), 0.0), 1.0) if t1 > t0 else 0.0
        resampled.append(v0 + share * (v1 - v0))
    return resampled


def _limit_curves(curves: dict[str, Curve]) -> dict[str, Curve]:
    """Return the curves, or the sum of more than `MOST_LINES` of them, at the moments of the one with most points."""
    if len(curves) <= MOST_LINES:
        return curves
    moments = [t for t, _ in max(curves.values(), key=len)]
    sums = [sum(values) for values in zip(*(_interpolate(moments, c) for c in curves.values()), strict=True)]
    return {f"all {len(curves)} together": list(zip(moments, sums, strict=True))}


def gpu_rows(workers: Workers) -> list[JsonObject]:
    """Tabulate what each GPU took in a stage; a cell is empty if the GPU does not offer the figure."""

    def cell(value: float | None, text: Callable[[float], str]) -> str:
        return "" if value is None else text(value)

    rows = []
    gpus = group_by_gpu(workers)
    for uuid, name in name_workers(gpus).items():
        gpu = {uuid: gpus[uuid]}
        energy = measure_gpu_growth(gpus[uuid], "energy")
        row = {
            "GPU": name,
            "seconds": f"{measure_seconds(gpu):,.1f}",
            "energy": cell(energy, lambda n: f"{n / 1000:,.1f} J"),
        }
        row["power, peak"] = cell(find_maximum(gpu, "watts"), "{:,.0f} W".format)
        for way in ("in", "out"):
            row[f"NVLink {way}"] = cell(measure_gpu_growth(gpus[uuid], f"nvlink_{way}"), amount)
            row[f"PCIe {way} per second, peak"] = cell(find_maximum(gpu, f"pcie_{way}"), amount)
        rows.append(row)
    return rows


def worker_rows(workers: Workers, seconds: float) -> list[JsonObject]:
    """Tabulate what each worker did in a stage."""
    names = name_workers(workers)
    rows = []
    for address, w in workers.items():
        gpu_memory = find_maximum({address: w}, "device")
        row = {
            "worker": names[address],
            "threads": w["threads"],
            "rows": int(measure_growth(w, "rows")),
            "rows/s": round(measure_growth(w, "rows") / max(seconds, 1e-9)),
            "computed": f"{measure_growth(w, 'cpu'):,.1f} s",
            "host memory": amount(find_maximum({address: w}, "rss") or 0),
        }
        if gpu_memory is not None:
            row["GPU memory"] = amount(gpu_memory)
        row["spilled"] = amount(max((s.to_host + s.to_disk for s in w["samples"]), default=0))
        row["sent"] = _describe_sent_bytes(w)
        rows.append(row)
    return rows


def _describe_sent_bytes(worker: Mapping[str, Any]) -> str:
    """Describe what a worker sent by each transport; by its own one even if that is nothing."""
    nbytes_by = split_sent_bytes(worker)
    used = {name: nbytes for name, nbytes in nbytes_by.items() if nbytes or name == worker["transport"]}
    return ", ".join(f"{amount(nbytes)} ({name})" for name, nbytes in used.items())


def per_second(value: float) -> str:
    """Format a rate for an axis.

    >>> [per_second(v) for v in (0, 950, 2_500_000, 1.2e9)]
    ['0', '950', '2.5 M', '1.2 G']
    """
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g}"


def plots(
    workers: Workers,
    zero: float,
    span: tuple[float, float],
    bands: Sequence[tuple[str, float, float]] = (),
    few: bool = False,
) -> list[str]:
    """Draw throughput, memory, computing, spill and bytes moved; with `few`, throughput and memory only.

    What never happened (spilling, moving between workers) has no picture. `span` is the time of the axis, in seconds
    from `zero`, and `bands` are the stages in it: (title, begin, end).
    """
    if not any(w["samples"] for w in workers.values()):
        return []

    def draw(title: str, curves: dict[str, Curve], shown: Callable[[float], str], ceiling: float | None = None) -> str:
        return svg.lines(title, curves, shown, span, bands, ceiling=ceiling)

    total = max((w["device_total"] or 0 for w in workers.values()), default=0) or None
    limit = max((w["memory_limit"] or 0 for w in workers.values()), default=0) or None
    pictures = [draw("rows per second", rates(workers, "rows", zero), per_second)]
    if device := level(workers, "device", zero):
        pictures.append(draw("GPU memory", device, exact_amount, total))
    if few and device:
        return pictures
    pictures.append(draw("host memory", level(workers, "rss", zero), exact_amount, limit))
    if few:
        return pictures
    pictures.insert(1, draw("bytes per second", rates(workers, "bytes", zero), exact_amount))
    for title, field in (("read from", "storage_bytes_read"), ("written to", "storage_bytes_written")):
        if any(measure_growth(w, field) for w in workers.values()):
            curves = rates(workers, field, zero)
            pictures.append(draw(f"{title} storages, bytes per second", curves, exact_amount))
    pictures.append(draw("cores computing", rates(workers, "cpu", zero), per_second))
    if find_maximum(workers, "busy"):
        pictures.append(draw("GPU busy, %", level(workers, "busy", zero), per_second))
    gpus = group_by_gpu(workers)
    gpu_curves = {"GPU power, W": level(gpus, "watts", zero)}
    for way, text in (("in", "received"), ("out", "sent")):
        gpu_curves[f"{text} over PCIe, bytes per second"] = level(gpus, f"pcie_{way}", zero)
        gpu_curves[f"{text} over NVLink, bytes per second"] = rates(gpus, f"nvlink_{way}", zero)
    for title, curves in gpu_curves.items():
        if any(value for curve in curves.values() for _, value in curve):
            pictures.append(draw(title, curves, per_second))
    for title, field in (("spilled from GPU to host", "to_host"), ("spilled to disk", "to_disk")):
        if find_maximum(workers, field):
            pictures.append(draw(title, level(workers, field, zero), exact_amount))
    if sum_sent_bytes(workers):
        pictures.append(draw("sent to other workers, bytes per second", rates(workers, "sent", zero), exact_amount))
    return pictures
