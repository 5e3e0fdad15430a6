"""How busy workers are: small samples, taken in every worker process while a stage asks for them.

A thread samples a worker twice a second (counters of the process, of Dask and of NVML). It ends when samples have not
been requested for `LEASE` seconds, so that nothing of ours stays on somebody else's cluster. Values that cannot be read
are None; no failure here fails a stage.

Dask's own samples (`worker.monitor.range_query`) do not replace the thread. They have neither rows and bytes of
partitions, nor bytes by which way they were sent, nor what is spilled, nor the process's own part of the GPU's memory;
the processor's load is a percentage of the moment instead of seconds since the start; the network is the host's. And
without a Dask worker (`LocalPool`) there are none.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

from tasks.cluster.dask_pool import workers_at
from tasks.core import lent_bytes, storage_traffic
from tasks.errors import RowmillError
from tasks.storage.atomic import write_text

if TYPE_CHECKING:
    from distributed import Client, Worker

# seconds
INTERVAL = 0.5
POLL = 10.0
LEASE = 45.0
PATIENCE = 3.0  # seconds that a stage waits for the samples of its workers when its work is done
ALL_LINKS = 2**32 - 1  # the scope of NVML's fields that means the sum of all NVLinks
KEPT = 400  # most samples of a worker and stage; longer series keep every second, fourth .. sample
log = logging.getLogger("rowmill")


class UsageSample(NamedTuple):
    """A worker at one moment; `cpu`, `sent`, `rows` and `bytes` count from the start of the process."""

    at: float  # seconds since 1970
    cpu: float  # seconds that its threads computed
    rss: int  # bytes of host memory
    device: int | None  # bytes used on its GPU, by all processes
    own: int | None  # bytes of these that belong to its process, where the driver says
    busy: int | None  # per cent of the last moments in which a kernel ran on its GPU
    to_host: int  # bytes of results that are spilled from the GPU to the host
    to_disk: int  # bytes of results that are spilled to disk
    sent: int  # bytes sent to other workers
    rows: int
    bytes: int
    lent: int = 0  # bytes of those sent that other processes copied out of its GPU (CUDA IPC)
    lent_on_host: int = 0  # bytes of those sent that other processes copied out of its host memory
    watts: float | None = None  # of its GPU, for all processes, as are the counters below
    energy: int | None = None  # millijoules since the driver was loaded
    nvlink_in: int | None = None  # bytes since the driver was loaded
    nvlink_out: int | None = None
    pcie_in: int | None = None  # bytes per second, in the last moments
    pcie_out: int | None = None
    storage_gets: int = 0  # requests to storages, by kind, and bytes of files: of its process
    storage_lists: int = 0
    storage_heads: int = 0
    storage_puts: int = 0
    storage_deletes: int = 0
    storage_bytes_read: int = 0
    storage_bytes_written: int = 0


class _WorkDone:
    """Rows and bytes that the tasks of this process have worked through."""

    def __init__(self) -> None:
        self.rows = self.bytes = 0
        self.lock = threading.Lock()


_work = _WorkDone()
_samplers: dict[str, Sampler] = {}
_making = threading.Lock()


def count(rows: int, nbytes: int) -> None:
    """Count rows and bytes that a task of this process has processed; called once for each partition or file."""
    with _work.lock:
        _work.rows += rows
        _work.bytes += nbytes


class Sampler:
    """The samples of one worker of this process, and the thread that takes them."""

    def __init__(self, worker: Worker) -> None:
        self.worker = weakref.ref(worker)
        self.process = psutil.Process()
        self.device = _open_device()
        self.samples: deque[UsageSample] = deque(maxlen=1200)
        self.last_request = time.monotonic()
        self.thread: threading.Thread | None = None

    def sample(self, wait: bool = False) -> None:
        """Take one sample now; with `wait` of PCIe traffic, too, which blocks for some 40 ms."""
        worker = self.worker()
        if worker is None:
            return
        gpu = self.device.read(wait) if self.device else dict.fromkeys(("device", "own", "busy"))
        times, (to_host, to_disk) = self.process.cpu_times(), _count_spilled_bytes(worker.data)
        lent, lent_on_host = lent_bytes.totals()
        self.samples.append(
            UsageSample(
                at=time.time(),
                cpu=times.user + times.system,
                rss=self.process.memory_info().rss,
                to_host=to_host,
                to_disk=to_disk,
                sent=worker.transfer_outgoing_bytes_total,
                rows=_work.rows,
                bytes=_work.bytes,
                lent=lent,
                lent_on_host=lent_on_host,
                **gpu,
                **storage_traffic.totals(),
            )
        )

    def since(self, moment: float) -> list[UsageSample]:
        """Return the last sample before a moment and those after it; keeps the thread going for `LEASE` seconds."""
        self.last_request = time.monotonic()
        self.sample()
        with _making:
            if self.thread is None or not self.thread.is_alive():
                self.thread = threading.Thread(target=self._run, name="rowmill-monitor", daemon=True)
                self.thread.start()
        # A sample from long before the moment would also count work outside of the stage.
        before = [s for s in list(self.samples) if moment - 2 * INTERVAL <= s.at <= moment][-1:]
        return [*before, *(s for s in list(self.samples) if s.at > moment)]

    def _run(self) -> None:
        while time.monotonic() - self.last_request < LEASE:
            time.sleep(INTERVAL)
            worker = self.worker()
            if worker is None or worker.status.name in ("closing", "closed"):
                return
            del worker
            try:
                self.sample(wait=True)
            except Exception:
                return


def look(moment: float, dask_worker: Worker) -> dict[str, Any]:
    """Describe a worker, with its samples around and after a moment; `client.run` runs this on every worker."""
    address = str(dask_worker.address)
    with _making:
        if address not in _samplers:
            for gone in [a for a, s in _samplers.items() if s.worker() is None]:
                del _samplers[gone]
            _samplers[address] = Sampler(dask_worker)
    sampler = _samplers[address]
    return {
        "name": str(dask_worker.name),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "threads": dask_worker.state.nthreads,
        "transport": address.partition("://")[0],
        "memory_limit": dask_worker.memory_manager.memory_limit,
        "gpu": getattr(sampler.device, "name", None),
        # Processes of CPU workers may see GPUs, too; cuDF is loaded in those that compute on theirs.
        "gpu_uuid": getattr(sampler.device, "uuid", None) if "cudf" in sys.modules else None,
        "device_total": getattr(sampler.device, "total", None),
        "samples": sampler.since(moment),
    }


def _count_spilled_bytes(data: object) -> tuple[int, int]:
    """Count the bytes of a worker's results that are spilled to the host (from a GPU) and to disk, in either of Dask's
    stores."""
    if hasattr(data, "spilled_total"):
        return 0, int(data.spilled_total.disk)
    host = getattr(data, "host_buffer", None)
    disk = getattr(data, "disk", None)
    return int(getattr(getattr(host, "fast", None), "total_weight", 0)), _sum_weights(disk)


def _sum_weights(disk: object) -> int:
    weights = getattr(disk, "weights", None) or getattr(getattr(disk, "d", None), "weights", None)
    return int(sum(weights.values())) if weights else 0


def _open_device() -> _Device | None:
    """Open the GPU of this process; None without a GPU, driver or NVML."""
    try:
        return _Device()
    except Exception:
        return None


class _Device:
    """The first GPU that this process may use, by NVML: it asks the driver and makes no CUDA context."""

    def __init__(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
        self.nvml = pynvml
        if first.isdigit():
            self.handle = pynvml.nvmlDeviceGetHandleByIndex(int(first))
        else:
            self.handle = pynvml.nvmlDeviceGetHandleByUUID(first)
        self.uuid = str(pynvml.nvmlDeviceGetUUID(self.handle))
        self.name = str(pynvml.nvmlDeviceGetName(self.handle))
        self.total = int(pynvml.nvmlDeviceGetMemoryInfo(self.handle).total)

    def read(self, wait: bool = False) -> dict[str, Any]:
        """Read its fields of a `UsageSample`, None for what the driver does not offer; those of PCIe, which NVML
        watches for 20 ms each, only with `wait`."""
        milliwatts, busy = map(self._query_nvml, ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetUtilizationRates"))
        processes = self._query_nvml("nvmlDeviceGetComputeRunningProcesses") or ()
        return {  # PCIe first: the counters are then those of the moment at which the sample ends
            "pcie_in": self._pcie(self.nvml.NVML_PCIE_UTIL_RX_BYTES) if wait else None,
            "pcie_out": self._pcie(self.nvml.NVML_PCIE_UTIL_TX_BYTES) if wait else None,
            "device": int(self.nvml.nvmlDeviceGetMemoryInfo(self.handle).used),
            "own": next((int(p.usedGpuMemory) for p in processes if p.pid == os.getpid() and p.usedGpuMemory), None),
            "busy": None if busy is None else int(busy.gpu),
            "watts": None if milliwatts is None else milliwatts / 1000,
            "energy": self._query_nvml("nvmlDeviceGetTotalEnergyConsumption"),
            "nvlink_in": self._nvlink(self.nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX),
            "nvlink_out": self._nvlink(self.nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX),
        }

    def _nvlink(self, field: int) -> int | None:
        (answer,) = self._query_nvml("nvmlDeviceGetFieldValues", [(field, ALL_LINKS)]) or (None,)
        return answer.value.ullVal * 1024 if answer and answer.nvmlReturn == self.nvml.NVML_SUCCESS else None

    def _pcie(self, way: int) -> int | None:
        kilobytes = self._query_nvml("nvmlDeviceGetPcieThroughput", way)
        return None if kilobytes is None else kilobytes * 1000

    def _query_nvml(self, ask: str, *of: Any) -> Any:
        try:
            return getattr(self.nvml, ask)(self.handle, *of)
        except self.nvml.NVMLError:
            return None


class Watch:
    """The workers of a stage, sampled from its beginning to its end; `workers` by address, each as `look` tells it."""

    def __init__(self, client: Client, addresses: Sequence[str]) -> None:
        self.client = client
        self.addresses = list(addresses)
        self.began = time.time()
        self.here = _find_this_worker()
        self.workers: dict[str, dict[str, Any]] = {}
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._follow, name="rowmill-watch", daemon=True)

    def _follow(self) -> None:
        """Read the samples now, and every `POLL` seconds, so that few are lost with a worker that dies."""
        self.read()
        while not self.done.wait(POLL):
            self.addresses = list(workers_at(self.client))
            self.read()

    def read(self) -> None:
        """Copy the samples that the workers have taken since the last call."""
        try:
            known = (w["samples"][-1].at for w in self.workers.values() if w["samples"])
            for address, record in self._ask(max(known, default=self.began)).items():
                before = self.workers.get(address, {"samples": []})["samples"]
                last = before[-1].at if before else 0.0
                # The counters of a worker at the end of the stage before are the start of this stage.
                samples = (UsageSample(max(s[0], self.began), *s[1:]) for s in record["samples"] if s[0] > last)
                self.workers[address] = {**record, "samples": thin_samples([*before, *samples])}
        except Exception as error:
            log.debug("workers could not be sampled: %s: %s", type(error).__name__, error)

    def _ask(self, moment: float) -> dict[str, Any]:
        if self.here is not None and self.addresses == [self.here.address]:
            return {self.here.address: look(moment, self.here)}
        answers = self.client.sync(self.client._run, look, moment, on_error="ignore", callback_timeout=PATIENCE)
        return {address: worker for address, worker in answers.items() if worker}

    def close(self) -> None:
        """Stop, and take the last sample of every worker."""
        self.done.set()
        self.thread.join(PATIENCE)
        if not self.thread.is_alive():
            self.read()


def _find_this_worker() -> Worker | None:
    """Return the worker that runs this very task, or None."""
    from distributed import get_worker

    try:
        return get_worker()
    except ValueError:
        return None


@contextmanager
def watch_workers(client: Client, addresses: Sequence[str], wanted: bool = True) -> Iterator[Watch]:
    """Sample the workers of a client while the block runs; `wanted` False: not at all. A failure is not held up."""
    watch = Watch(client, addresses)
    if wanted:
        watch.thread.start()
    try:
        yield watch
    except BaseException:
        watch.done.set()
        raise
    if wanted:
        watch.close()


def thin_samples(samples: list[UsageSample]) -> list[UsageSample]:
    """At most `KEPT` samples, evenly taken, the first and the last among them."""
    if len(samples) <= KEPT:
        return samples
    step = -(-len(samples) // (KEPT // 2))
    return [*samples[:-1:step], samples[-1]]


def samples_path(staging: Path, title: str) -> Path:
    """Return the path where the samples of the workers of a stage wait for the report."""
    return staging / "samples" / f"{title.replace(' ', '-')}.json"


def save(path: Path, workers: dict[str, dict[str, Any]]) -> None:
    """Write the samples; a failure is only logged."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(workers))
    except (OSError, TypeError, ValueError, RowmillError) as error:
        log.debug("samples could not be kept: %s", error)


def load(path: Path) -> dict[str, dict[str, Any]]:
    """Read the samples that `save` wrote; {} if the file is missing or damaged."""
    try:
        workers = json.loads(path.read_text())
        return {a: {**w, "samples": [UsageSample(*s) for s in w["samples"]]} for a, w in workers.items()}
    except (OSError, TypeError, ValueError, KeyError, AttributeError):
        return {}
