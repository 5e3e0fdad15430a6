"""What one GPU says of itself by NVML: memory, use, power, energy and traffic. No CUDA context is made here."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

ALL_LINKS = 2**32 - 1  # the scope of NVML's fields that means the sum of all NVLinks


class GpuReading(NamedTuple):
    """A GPU at one moment; None stands for each value that the device does not offer, or not to this user."""

    device: int | None = None  # bytes used on it, whoever uses them
    own: int | None = None  # bytes of these that belong to this process
    busy: int | None = None  # per cent of the last moments in which a kernel ran
    watts: float | None = None
    energy: int | None = None  # millijoules since the driver was loaded
    nvlink_in: int | None = None  # bytes received over all NVLinks since the driver was loaded
    nvlink_out: int | None = None


class GpuCounters:
    """The first GPU that this process may use; an error where there is none."""

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

    def read(self) -> GpuReading:
        """Read all values but those of `pcie`, which take their time."""
        power, busy = self._offered("nvmlDeviceGetPowerUsage"), self._offered("nvmlDeviceGetUtilizationRates")
        processes = self._offered("nvmlDeviceGetComputeRunningProcesses") or ()
        return GpuReading(
            int(self.nvml.nvmlDeviceGetMemoryInfo(self.handle).used),
            next((int(p.usedGpuMemory) for p in processes if p.pid == os.getpid() and p.usedGpuMemory), None),
            None if busy is None else int(busy.gpu),
            None if power is None else power / 1000,
            self._offered("nvmlDeviceGetTotalEnergyConsumption"),
            self._nvlink(self.nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX),
            self._nvlink(self.nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX),
        )

    def pcie(self) -> dict[str, int | None]:
        """Measure bytes per second received and sent over PCIe: for a thread that may wait, since each takes 20 ms."""
        ways = {"pcie_in": self.nvml.NVML_PCIE_UTIL_RX_BYTES, "pcie_out": self.nvml.NVML_PCIE_UTIL_TX_BYTES}
        kilobytes = {name: self._offered("nvmlDeviceGetPcieThroughput", way) for name, way in ways.items()}
        return {name: None if value is None else value * 1000 for name, value in kilobytes.items()}

    def _nvlink(self, field: int) -> int | None:
        (answer,) = self._offered("nvmlDeviceGetFieldValues", [(field, ALL_LINKS)]) or (None,)
        return answer.value.ullVal * 1024 if answer and answer.nvmlReturn == self.nvml.NVML_SUCCESS else None

    def _offered(self, ask: str, *of: Any) -> Any:
        try:
            return getattr(self.nvml, ask)(self.handle, *of)
        except self.nvml.NVMLError:
            return None


def first_gpu() -> GpuCounters | None:
    """The counters of this process's GPU; None where there is no GPU, driver or NVML."""
    try:
        return GpuCounters()
    except Exception:
        return None
