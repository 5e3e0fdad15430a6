"""Samples of workers to curves: rows and bytes per second, memory, computing, spill, bytes moved, over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tasks.cluster.monitor import UsageSample
from tasks.cluster.usage import (
    Workers,
    by_gpu,
    count_sent_bytes,
    counter_growth,
    highest,
    measure_growth,
    seconds_sampled,
    sum_sent_bytes,
    value_of,
)
from tasks.core.strict_json import JsonObject
from tasks.core.units import amount, exact_amount
from tasks.report import svg

Curve = list[tuple[float, float]]
# more workers than that are drawn as their sum
MOST_LINES = 6
BINS = 60
LEVELS = ("device", "rss", "to_host", "to_disk")  # how much there is; the others count up


def name_workers(workers: Workers) -> dict[str, str]:
    """A short name for every worker (GPU or process) or GPU of `by_gpu`, with its host where there are several."""
    several = len({w["host"] for w in workers.values()}) > 1
    names = {}
    for number, (address, w) in enumerate(workers.items()):
        what = "GPU" if address == w.get("gpu_uuid") else "GPU worker" if w.get("gpu") else "worker"
        names[address] = f"{what} {number}"
        if several:
            names[address] += f" on {w['host']}"
    return names


def level(workers: Workers, field: str, zero: float) -> dict[str, Curve]:
    """A quantity over time for each worker, or of all together where they are many; seconds from `zero`."""
    curves = {
        n: [(s.at - zero, float(value_of(s, field))) for s in workers[a]["samples"] if value_of(s, field) is not None]
        for a, n in name_workers(workers).items()
    }
    return _few({name: curve for name, curve in curves.items() if curve}, added=True)


def rates(workers: Workers, field: str, zero: float) -> dict[str, Curve]:
    """How fast a counter grew, per second, for each worker; a partition's rows count when it is done.

    Samples are two in a second and partitions come in lumps: the time is cut into at most `BINS` equal bins of half a
    second or more, and the growth within each is shown at its middle.
    """
    curves = {}
    for address, name in name_workers(workers).items():
        samples = [s for s in workers[address]["samples"] if value_of(s, field) is not None]
        if len(samples) > 1 and samples[-1].at > samples[0].at:
            curves[name] = _compute_rate_curve(samples, field, zero)
    return _few(curves, added=True)


def _compute_rate_curve(samples: Sequence[UsageSample], field: str, zero: float) -> Curve:
    first = samples[0].at
    last = samples[-1].at
    bins = max(1, min(BINS, int((last - first) / 0.5)))
    edges = [first + (last - first) * i / bins for i in range(bins + 1)]
    heights = _at(edges, [(s.at, float(value_of(s, field))) for s in samples])
    return [
        ((edges[i] + edges[i + 1]) / 2 - zero, max(0.0, (heights[i + 1] - heights[i]) / (edges[i + 1] - edges[i])))
        for i in range(bins)
    ]


def _at(moments: Sequence[float], points: Curve) -> list[float]:
    """A curve's values at ascending moments, between its points by straight lines."""
    resampled = []
    i = 0
    for moment in moments:
        while i + 1 < len(points) - 1 and points[i + 1][0] < moment:
            i += 1
        (t0, v0), (t1, v1) = points[i], points[min(i + 1, len(points) - 1)]
        share = min(max((moment - t0) / (t1 - t0), 0.0), 1.0) if t1 > t0 else 0.0
        resampled.append(v0 + share * (v1 - v0))
    return resampled


def _few(curves: dict[str, Curve], added: bool) -> dict[str, Curve]:
    """The curves themselves, or of many workers their sum at the moments of the first."""
    if len(curves) <= MOST_LINES or not added:
        return curves
    moments = [t for t, _ in max(curves.values(), key=len)]
    sums = [sum(values) for values in zip(*(_at(moments, c) for c in curves.values()), strict=True)]
    return {f"all {len(curves)} together": list(zip(moments, sums, strict=True))}


def gpu_rows(workers: Workers) -> list[JsonObject]:
    """What each GPU took in a stage, as rows of a table; empty cells for what it does not offer."""

    def cell(value: float | None, text: Callable[[float], str]) -> str:
        return "" if value is None else text(value)

    rows = []
    gpus = by_gpu(workers)
    for uuid, name in name_workers(gpus).items():
        gpu = {uuid: gpus[uuid]}
        energy = counter_growth(gpus[uuid], "energy")
        row = {
            "GPU": name,
            "seconds": f"{seconds_sampled(gpu):,.1f}",
            "energy": cell(energy, lambda n: f"{n / 1000:,.1f} J"),
        }
        row["power, peak"] = cell(highest(gpu, "watts"), "{:,.0f} W".format)
        for way in ("in", "out"):
            row[f"NVLink {way}"] = cell(counter_growth(gpus[uuid], f"nvlink_{way}"), amount)
            row[f"PCIe {way} per second, peak"] = cell(highest(gpu, f"pcie_{way}"), amount)
        rows.append(row)
    return rows


def worker_rows(workers: Workers, seconds: float) -> list[JsonObject]:
    """What each worker did in a stage, as rows of a table with plain values."""
    names = name_workers(workers)
    rows = []
    for address, w in workers.items():
        one = {address: w}
        gpu = highest(one, "device")
        row = {
            "worker": names[address],
            "threads": w["threads"],
            "rows": int(measure_growth(one, "rows")),
            "rows/s": round(measure_growth(one, "rows") / max(seconds, 1e-9)),
            "computed": f"{measure_growth(one, 'cpu'):,.1f} s",
            "host memory": amount(highest(one, "rss") or 0),
        }
        if gpu is not None:
            row["GPU memory"] = amount(gpu)
        row["spilled"] = amount(max((s.to_host + s.to_disk for s in w["samples"]), default=0))
        row["sent"] = _describe_sent_bytes(one, w["transport"])
        rows.append(row)
    return rows


def _describe_sent_bytes(worker: Workers, transport: str) -> str:
    nbytes_by = count_sent_bytes(worker, transport)
    return ", ".join(f"{amount(nbytes)} ({how})" for how, nbytes in nbytes_by.items() if nbytes or how == transport)


def per_second(value: float) -> str:
    """A rate for an axis.

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
    """Throughput, memory, computing, spill and bytes moved as pictures; `few`: throughput and memory alone.

    What never happened (spilling, moving between workers) has no picture.
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
    pictures.append(draw("cores computing", rates(workers, "cpu", zero), per_second))
    if highest(workers, "busy"):
        pictures.append(draw("GPU busy, %", level(workers, "busy", zero), per_second))
    gpus = by_gpu(workers)
    of_gpus = {"GPU power, W": level(gpus, "watts", zero)}
    for way, text in (("in", "received"), ("out", "sent")):
        of_gpus[f"{text} over PCIe, bytes per second"] = level(gpus, f"pcie_{way}", zero)
        of_gpus[f"{text} over NVLink, bytes per second"] = rates(gpus, f"nvlink_{way}", zero)
    for title, curves in of_gpus.items():
        if any(value for curve in curves.values() for _, value in curve):
            pictures.append(draw(title, curves, per_second))
    for title, field in (("spilled from GPU to host", "to_host"), ("spilled to disk", "to_disk")):
        if highest(workers, field):
            pictures.append(draw(title, level(workers, field, zero), exact_amount))
    if sum_sent_bytes(workers):
        pictures.append(draw("sent to other workers, bytes per second", rates(workers, "sent", zero), exact_amount))
    return pictures
