"""The GPUs of this host by NVML or `nvidia-smi`: no CUDA context is made here, contexts belong to workers."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType


@dataclass(frozen=True)
class Gpu:
    """One GPU: its index as `nvidia-smi` counts, its UUID, name and memory in bytes."""

    index: int
    uuid: str
    name: str
    memory: int

    def is_called(self, device: str) -> bool:
        """True if an entry of CUDA_VISIBLE_DEVICES (an index, a UUID or its beginning) means this GPU."""
        return device == str(self.index) or (device.startswith("GPU-") and self.uuid.startswith(device))


def list_all_gpus() -> list[Gpu]:
    """List every GPU of the host, whatever CUDA_VISIBLE_DEVICES says; an empty list without a driver."""
    gpus = _by_nvml()
    return _by_nvidia_smi() if gpus is None else gpus


def visible(gpus: list[Gpu] | None = None, devices: str | None = None) -> list[Gpu]:
    """The GPUs a process may use, in CUDA's order: all, or those in CUDA_VISIBLE_DEVICES up to its first unknown entry.

    >>> two = [Gpu(0, "GPU-aa", "T4", 16), Gpu(1, "GPU-bb", "T4", 16)]
    >>> [gpu.index for gpu in visible(two, "1,0")], visible(two, ""), visible(two, "-1")
    ([1, 0], [], [])
    """
    gpus = list_all_gpus() if gpus is None else gpus
    devices = os.environ.get("CUDA_VISIBLE_DEVICES") if devices is None else devices
    if devices is None:
        return gpus
    chosen: list[Gpu] = []
    for device in (entry.strip() for entry in devices.split(",")):
        named = [gpu for gpu in gpus if gpu.is_called(device)]
        if not named:
            break
        chosen += named[:1]
    return chosen


def packages_missing() -> list[str]:
    """Return the Python packages of the cuda extra that this installation lacks."""
    return [name for name in ("cudf", "dask_cuda", "rmm", "cupy") if find_spec(name) is None]


def is_usable() -> bool:
    """Return whether this process has cuDF and sees a GPU: a CPU worker may have the packages, too."""
    return find_spec("cudf") is not None and bool(visible())


def _by_nvml() -> list[Gpu] | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [_read_gpu(pynvml, index, handle) for index, handle in enumerate(handles)]
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _read_gpu(nvml: ModuleType, index: int, handle: object) -> Gpu:
    uuid = nvml.nvmlDeviceGetUUID(handle)
    name = nvml.nvmlDeviceGetName(handle)
    return Gpu(index, str(uuid), str(name), nvml.nvmlDeviceGetMemoryInfo(handle).total)


def _by_nvidia_smi() -> list[Gpu]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.split(", ") for line in answer.splitlines() if line.count(", ") == 3]
    return [Gpu(int(index), uuid, name, int(mebibytes) * 2**20) for index, uuid, name, mebibytes in rows]
