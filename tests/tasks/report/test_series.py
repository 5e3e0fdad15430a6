"""Samples to curves, summaries to artifacts: literal samples, literal figures."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from tasks.cluster import usage
from tasks.cluster.monitor import UsageSample
from tasks.core.settings import StoragePrice
from tasks.core.stage_results import StatisticsResult, TransformResult, WriteResult, resources_text, total_resources
from tasks.report import series, svg
from tasks.report.artifact import stage_markdown
from tasks.report.box_graph import graph
from tests.tasks.cluster.test_monitor import sample


def worker(samples: list[UsageSample], **more: Any) -> dict[str, Any]:
    about = {
        "host": "h",
        "pid": 1,
        "threads": 2,
        "transport": "tcp",
        "memory_limit": 10**9,
        "gpu": None,
        "device_total": None,
    }
    return {**about, "samples": samples, **more}


def workers(number: int = 2, seconds: int = 4) -> dict[str, dict[str, Any]]:
    """Worker w works through 1000 (w + 1) rows a second, half a core busy."""
    found = {}
    for w in range(number):
        moments = range(2 * seconds + 1)
        samples = [
            sample(100.0 + t / 2, rows=500 * (w + 1) * t, cpu=0.25 * t, rss=10**8, sent=1000 * t) for t in moments
        ]
        found[f"tcp://{w}"] = worker(samples, pid=w)
    return found


def test_rates_are_those_of_each_worker() -> None:
    curves = series.rates(workers(), "rows", zero=100.0)
    assert sorted(curves) == ["worker 0", "worker 1"]
    assert [t for t, _ in curves["worker 0"]] == [0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3.25, 3.75]
    assert [v for _, v in curves["worker 1"]] == pytest.approx([2000.0] * 8)
    assert [v for _, v in series.rates(workers(), "cpu", 100.0)["worker 0"]] == pytest.approx([0.5] * 8)


def test_many_workers_are_drawn_as_their_sum() -> None:
    ((name, curve),) = series.rates(workers(10), "rows", zero=100.0).items()
    assert name == "all 10 together"
    assert curve[3] == (1.75, pytest.approx(55_000))


def test_a_worker_that_was_seen_once_has_no_rate() -> None:
    assert series.rates({"tcp://a": worker([sample(1.0, rows=5)])}, "rows", 0.0) == {}
    assert series.plots({"tcp://a": worker([])}, 0.0, (0.0, 1.0)) == []


@pytest.mark.promise("The report shows the bytes of each way")
def test_bytes_between_workers_are_told_by_transport() -> None:
    assert usage.sum_sent_bytes(workers()) == {"tcp": 16_000.0}
    assert usage.sum_sent_bytes(workers(1)) == {}
    found = workers()
    first = found[min(found)]
    first["samples"][-1] = first["samples"][-1]._replace(lent=5_000, lent_on_host=1_000)
    assert usage.sum_sent_bytes(found) == {"cuda ipc": 5_000.0, "host memory": 1_000.0, "tcp": 10_000.0}
    rows = series.worker_rows(found, 1.0)
    assert [row["sent"] for row in rows] == ["5.0 kB (cuda ipc), 1.0 kB (host memory), 2.0 kB (tcp)", "8.0 kB (tcp)"]


def test_memory_of_gpus_is_drawn_where_there_are_any() -> None:
    gpu = {"a": worker([sample(t, device=10**9 * t, to_host=5) for t in (0, 1, 2)], gpu="H200", device_total=4 * 10**9)}
    titles = [ElementTree.fromstring(p)[0].text for p in series.plots(gpu, 0.0, (0.0, 2.0))]
    assert titles == [
        "rows per second",
        "bytes per second",
        "GPU memory",
        "host memory",
        "cores computing",
        "spilled from GPU to host",
    ]
    titles = [ElementTree.fromstring(p)[0].text for p in series.plots(gpu, 0.0, (0.0, 2.0), few=True)]
    assert titles == ["rows per second", "GPU memory"]
    assert series.worker_rows(gpu, 2.0)[0]["GPU memory"] == "2.0 GB"


def gpu(uuid: str, energy: list[int | None], begin: float = 100.0, **more: Any) -> dict[str, Any]:
    """A worker on a GPU, with a sample every second."""
    samples = [
        sample(begin + t, energy=joules and 1000 * joules, watts=300.0, cpu=t, nvlink_in=2**20 * t, pcie_out=10**6)
        for t, joules in enumerate(energy)
    ]
    return worker(samples, gpu="H200", gpu_uuid=uuid, **more)


@pytest.mark.promise("A GPU or a process that several workers share counts once", "flows/OPERATIONS.md#what-a-run-took")
def test_workers_that_share_a_gpu_or_a_process_count_it_once() -> None:
    two_of_one = {"a": gpu("GPU-0", [10, 20, 30], pid=1), "b": gpu("GPU-0", [10, 21, 29], pid=2)}
    assert usage.measure_resources(two_of_one) == {"core_seconds": 4.0, "gpu_seconds": 2.0, "energy_joules": 20.0}
    of_two = {"a": gpu("GPU-0", [10, 20, 30]), "b": gpu("GPU-1", [10, 20, 34])}
    assert usage.measure_resources(of_two) == {"core_seconds": 2.0, "gpu_seconds": 4.0, "energy_joules": 44.0}


@pytest.mark.promise("the requests to storages, by kind", "flows/OPERATIONS.md#what-a-run-took")
def test_requests_and_bytes_of_storages_are_summed_over_processes() -> None:
    def reading(pid: int) -> dict[str, Any]:
        counts = [sample(100.0 + t, storage_gets=10 * t, storage_lists=1, storage_bytes_read=10**9 * t) for t in (1, 3)]
        return worker(counts, pid=pid)

    found = {"a": reading(1), "b": reading(1), "c": reading(2)}
    price = StoragePrice(gb=0.02, thousand_requests=0.5)
    assert usage.measure_resources(found, storage_price=price) == {
        "core_seconds": 0.0, "storage_gets": 40, "storage_bytes_read": 4 * 10**9, "storage_cost": 0.1,
    }  # fmt: skip
    titles = [ElementTree.fromstring(p)[0].text for p in series.plots(found, 100.0, (0.0, 3.0))]
    assert "read from storages, bytes per second" in titles
    assert "written to storages, bytes per second" not in titles
    assert resources_text({"storage_gets": 40, "storage_bytes_read": 4 * 10**9, "storage_cost": 0.1}, 8.0) == (
        "4.0 GB from storages (500.0 MB/s), requests: 40 get, storage cost 0.1"
    )


def test_the_energy_of_a_lost_worker_and_of_that_in_its_place_is_of_one_gpu() -> None:
    both = {"a": gpu("GPU-0", [10, 20, 30], pid=1), "b": gpu("GPU-0", [70, 90], begin=105.0, pid=2)}
    assert usage.measure_resources(both) == {"core_seconds": 3.0, "gpu_seconds": 6.0, "energy_joules": 80.0}


def test_a_counter_that_starts_again_with_its_driver_counts_from_zero() -> None:
    cases = {17: [1000, 1010, 2, 7], 80: [100, 150, 0, 30], 50: [100, 130, 125, 150], 5: [None, 10, None, 15]}
    for joules, readings in cases.items():
        assert usage.measure_resources({"a": gpu("GPU-0", readings)})["energy_joules"] == joules


def test_energy_that_one_gpu_does_not_offer_is_not_known_of_all() -> None:
    mixed = {"a": gpu("GPU-0", [10, 20]), "b": gpu("GPU-1", [None, None])}
    assert usage.measure_resources(mixed) == {"core_seconds": 1.0, "gpu_seconds": 2.0}
    assert [row["energy"] for row in series.gpu_rows(mixed)] == ["10.0 J", ""]


def test_workers_without_gpus_have_core_seconds_and_nobody_seen_has_nothing() -> None:
    assert usage.measure_resources(workers()) == {"core_seconds": 4.0}
    assert usage.measure_resources({}) == usage.measure_resources({"a": worker([])}) == {}
    assert usage.measure_resources(workers(), price_per_hour=36.0) == {"core_seconds": 4.0, "cost": 0.04}


def test_a_sum_is_of_all_stages_that_take_something_and_of_none_where_one_does_not_know() -> None:
    def total(*stages: dict[str, float]) -> dict[str, float]:
        return total_resources([transformed(resources=taken) for taken in stages])

    cpu, gpu = {"core_seconds": 2.0}, {"core_seconds": 1.0, "gpu_seconds": 1.0, "energy_joules": 300.0}
    assert total(cpu, gpu) == {"core_seconds": 3.0, "gpu_seconds": 1.0, "energy_joules": 300.0}
    read = {**cpu, "storage_gets": 3, "storage_bytes_read": 7}
    assert total(cpu, read, read) == {"core_seconds": 6.0, "storage_gets": 6, "storage_bytes_read": 14}
    assert total(gpu, {"core_seconds": 1.0, "gpu_seconds": 1.0}) == {"core_seconds": 2.0, "gpu_seconds": 2.0}
    assert total(gpu, {}) == {}
    text = "4,321.0 core seconds, 12.0 GPU seconds, 7,200.0 J (2.00 Wh), cost 0.0125"
    taken = {"core_seconds": 4321.0, "gpu_seconds": 12.0, "energy_joules": 7200.0, "cost": 0.0125}
    assert resources_text(taken) == text


@pytest.mark.promise("power, PCIe and NVLink traffic of each GPU")
def test_each_gpu_has_its_row_and_pictures_of_power_and_traffic() -> None:
    gpus = {"a": gpu("GPU-0", [10, 310, 610]), "b": gpu("GPU-1", [0, 0, 0])}
    assert series.gpu_rows(gpus)[0] == {
        "GPU": "GPU 0", "seconds": "2.0", "energy": "600.0 J", "power, peak": "300 W",
        "NVLink in": "2.1 MB", "NVLink out": "", "PCIe in per second, peak": "", "PCIe out per second, peak": "1.0 MB",
    }  # fmt: skip
    pictures = series.plots(gpus, 100.0, (0.0, 2.0))
    titles = [ElementTree.fromstring(picture)[0].text for picture in pictures]
    assert titles[-3:] == [
        "GPU power, W", "received over NVLink, bytes per second", "sent over PCIe, bytes per second",
    ]  # fmt: skip
    assert "GPU 1" in pictures[-1]
    assert "| GPU 0 | 2.0 | 600.0 J | 300 W |" in stage_markdown(transformed(), "", gpus)


def test_pictures_are_whole_xml_whatever_a_name_holds() -> None:
    for picture in (
        svg.lines('<a> & "b"', {"<c>": [(0.0, 1.0), (1.0, 2.0)], "d": [(0.5, 1.0)]}, str, bands=[("<e>", 0.0, 1.0)]),
        svg.lines("nothing", {}, str),
        svg.draw_stages([("<f>", 0.0, 1.0, "1 s"), ("g", 1.0, 1.0, "0 s")]),
        svg.bars([1, 0, 5]),
        svg.bars([]),
        graph({"a": ("source", "<h>"), "b": ("output", "i")}, {"a": 0, "b": 1}, [("a", "b", "learns")], "& more"),
    ):
        assert ElementTree.fromstring(picture).tag == "{http://www.w3.org/2000/svg}svg"


MOMENTS: dict[str, Any] = {"rows": 24_000, "nbytes": 10**6, "seconds": 4.0, "began": 100.0, "ended": 104.0}


def transformed(**more: Any) -> TransformResult:
    return TransformResult(rows_out=24_000, partitions=2, exchange="memory", because="it fits", **MOMENTS, **more)


def test_the_markdown_of_a_stage_has_its_numbers_its_workers_and_two_plots() -> None:
    text = stage_markdown(transformed(), "<svg/>", workers(), "http://127.0.0.1:8787/status")
    assert "### transform: 24,000 rows in 4.00 s, 6,000 rows/s" in text
    assert "ingest → statistics → **transform** → shuffle_write" in text
    assert "| began | 1970-01-01 00:01:40.0 UTC |" in text
    assert "| worker 1 | 2 | 8,000 | 2,000 | 2.0 s | 100.0 MB | 0 B | 8.0 kB (tcp) |" in text
    assert "Moved between workers: 16.0 kB by tcp" in text
    assert text.count("](data:image/svg+xml;base64,") == 3
    assert "[Dask dashboard](http://127.0.0.1:8787/status)" in text


def test_a_stage_that_was_found_done_shows_no_workers() -> None:
    assert "worker 0" not in stage_markdown(transformed(reused=True), "", workers())


def test_artifacts_stay_small() -> None:
    many = workers(64, seconds=199)
    tables = {f"PCA of x{i}": [{"component": f"pca_{j}", "share": 0.5} for j in range(20)] for i in range(1000)}
    text = stage_markdown(
        StatisticsResult(phases=1, operators=1, learned=1, digest="", tables=tables, **MOMENTS),
        "<svg>" + 3000 * "text " + "</svg>",
        many,
    )
    assert len(text) < 100_000
    assert text.count("data:image/svg+xml") == 3
    parts = [{"path": f"part-{i:05d}.parquet", "rows": 10, "bytes": 100, "xxh3_128": "0" * 32} for i in range(5000)]
    text = stage_markdown(WriteResult(files=5000, rows_in=1, rows_out=1, parts=parts, **MOMENTS))
    assert len(text) < 100_000
    assert text.splitlines()[-1] == "| and 4,700 more | 47,000 | 470,000 |  |"
