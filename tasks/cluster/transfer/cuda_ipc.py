"""Shares the GPU memory of a worker with the other workers of its host, and copies results from GPU to GPU that way.

CUDA's asynchronous allocator serves threads with streams of their own side by side, and another process may open its
pool (CUDA IPC). That process copies a buffer over NVLink, or PCIe, by itself; Dask's messages, over TCP or TLS, only
say where it lies. Measured between two H200: 390 GB/s, a millisecond to open a buffer. UCX needs a pool of ordinary
memory instead, moves it in the thread that also serves Dask, and slows down everything else that a worker does.

Source: CUDA driver API, "Stream Ordered Memory Allocator", inter-process pools.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import cupy
import dask.config
import rmm
from cuda.bindings import driver
from rmm.allocators.cupy import rmm_cupy_allocator

from tasks.cluster.transfer import host_memory
from tasks.cluster.transfer.dask_profiler import workers_here
from tasks.cluster.transfer.headers import Context, Header
from tasks.core import lent_bytes
from tasks.errors import GiveUpError, JobError

SETTINGS = "rowmill.gpu-pool"  # of Dask: the arguments of `prepare`, {} over UCX, on workers that rowmill starts
OWN_LIMIT = 0.92  # of a GPU, for workers that a user starts
OFFER = "rowmill-gpu"  # the key under which a worker says, when it connects, which GPUs it can copy from
HANDLE = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
EXPORTED = 64  # bytes of CUDA's description of a pointer for another process
ON_DEVICE = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
PATIENCE = 30.0  # seconds for another process to hand over its pool
_lender: Lender | None = None
_opening = threading.Lock()
_opened: dict[str, Any] = {}


def set_up() -> None:
    """Prepare the Dask workers of this process, if any, with the settings in `rowmill.gpu-pool`."""
    if settings := dask.config.get(SETTINGS, None):
        if not isinstance(settings, Mapping):
            do = 'write it as Python does: DASK_ROWMILL__GPU_POOL=\'{"limit": 0.92, "shared": True}\''
            raise JobError(f"{SETTINGS} is not a mapping", why=str(settings), do=do)
        for worker in workers_here():
            prepare(worker, **settings)


def prepare(worker: object, limit: float, shared: bool) -> None:
    """Let this process allocate up to `limit` asynchronously (bytes or share of the GPU); `shared`: others may read it.

    When the worker connects to others, its handshake says from which GPUs, and from whose host memory, it can copy.
    """
    global _lender
    device = cupy.cuda.runtime.getDevice()
    cupy.cuda.Device(device).use()
    total = cupy.cuda.runtime.memGetInfo()[1]
    shared = shared and _can_share(device)
    pool = _make_pool(device, shared)
    allowed = int(limit if limit > 1 else limit * total) // 256 * 256
    rmm.mr.set_current_device_resource(
        rmm.mr.LimitingResourceAdaptor(rmm.mr.CudaAsyncViewMemoryResource(pool), allocation_limit=allowed)
    )
    host_memory.offer(worker)
    if shared:
        _lender = Lender(pool)
        host_memory.tell(worker, {OFFER: {"host": this_host(), "gpus": reachable(device)}})


def prepare_own(worker: object) -> None:
    """Prepare a worker that a user has started, where rowmill has not and nothing else manages its GPU's memory."""
    if _lender is None and dask.config.get(SETTINGS, None) is None and not (_speaks_ucx() or why_slower()):
        cupy.cuda.set_allocator(rmm_cupy_allocator)
        prepare(worker, OWN_LIMIT, shared=True)


def _speaks_ucx() -> bool:
    return any(worker.address.startswith("ucx") for worker in workers_here())


def why_slower() -> str:
    """Explain why other processes do not copy out of this GPU's memory; "" if they do, or if UCX does."""
    resource = rmm.mr.get_current_device_resource()
    if _lender is not None or _speaks_ucx() or dask.config.get(SETTINGS, None) is not None:
        return ""
    if not isinstance(resource, rmm.mr.CudaMemoryResource):
        return f"the memory of the workers' GPUs is managed by {type(resource).__name__} of RMM"
    return "" if _can_share(cupy.cuda.runtime.getDevice()) else "the GPU does not share memory between processes"


def lend(buffer: cupy.ndarray, owner: object, context: Context) -> Header | None:
    """Return the place of a buffer for the process to which a Dask message goes; None if the buffer must be sent.

    The buffer stays as long as `owner`, the result of a task. Dask keeps that until the other process answers, which
    it does after its copy.
    """
    if _lender is None or not reaches(context):
        return None
    cupy.cuda.Device().use()  # this thread may not have used it yet
    error, data = driver.cuMemPoolExportPointer(buffer.data.ptr)  # type: ignore[attr-defined] # CuPy's alone
    if int(error):
        return None  # this memory cannot be exported
    weakref.finalize(owner, _free_pool, buffer).atexit = False
    lent_bytes.count(buffer.nbytes)
    return {"pool": _lender.name, "pointer": ctypes.string_at(data.getPtr(), EXPORTED), "nbytes": buffer.nbytes}


def reaches(context: Context) -> bool:
    """Return whether the process that a Dask message goes to can copy out of this GPU."""
    offer = host_memory.read_recipient_offer(context, OFFER)
    return bool(_lender and offer and offer["host"] == this_host() and identity() in offer["gpus"])


def fetch(place: Header) -> cupy.ndarray:
    """Copy a buffer that another process of the host lends into this GPU's memory. OSError if that process is gone."""
    try:
        return _copy_from_lender(place)
    except GiveUpError as error:
        if _is_gone(place["pool"]):
            raise ConnectionResetError(f"the process that lent GPU memory is gone: {error.why}") from error
        raise


def _copy_from_lender(place: Header) -> cupy.ndarray:
    data = driver.CUmemPoolPtrExportData()
    stream = cupy.cuda.get_current_stream()
    ctypes.memmove(data.getPtr(), place["pointer"], EXPORTED)
    copy = cupy.empty(place["nbytes"], cupy.uint8)
    there = _check_driver_result(driver.cuMemPoolImportPointer(_open_pool(place["pool"]), data))
    try:
        _check_driver_result(driver.cuMemcpyDtoDAsync(copy.data.ptr, there, copy.nbytes, stream.ptr))
        stream.synchronize()
    finally:
        driver.cuMemFreeAsync(there, stream.ptr)
    return copy


class Lender:
    """The pool of this process, and the socket from which processes of the same user and host receive it."""

    def __init__(self, pool: driver.CUmemoryPool) -> None:
        self.name = f"rowmill-{uuid4().hex}"
        self._shared = int(_check_driver_result(driver.cuMemPoolExportToShareableHandle(pool, HANDLE, 0)))
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind("\0" + self.name)
        self._socket.listen()
        threading.Thread(target=self._serve, name="rowmill-gpu-pool", daemon=True).start()

    def _serve(self) -> None:
        while True:
            other, _ = self._socket.accept()
            with other, suppress(OSError):
                if _read_user(other) == os.getuid():
                    socket.send_fds(other, [b"\0"], [self._shared])


@cache
def this_host() -> str:
    """Name this host, its network namespace (the sockets do not reach beyond it) and the user."""
    return f"{host_memory.read_boot_id()} {Path('/proc/self/ns/net').readlink()} {os.getuid()}"


@cache
def identity(device: int | None = None) -> str:
    """Return the UUID of a GPU in hexadecimal digits; by default of the GPU of this process."""
    device = cupy.cuda.runtime.getDevice() if device is None else device
    return bytes(cupy.cuda.runtime.getDeviceProperties(device)["uuid"]).hex()


def reachable(device: int) -> list[str]:
    """List the GPUs from whose memory this one can copy, itself among them."""
    runtime = cupy.cuda.runtime
    every = range(runtime.getDeviceCount())
    return [identity(d) for d in every if d == device or runtime.deviceCanAccessPeer(device, d)]


def _can_share(device: int) -> bool:
    handle_types = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES
    return bool(int(_check_driver_result(driver.cuDeviceGetAttribute(handle_types, device))) & int(HANDLE))


def _make_pool(device: int, shared: bool) -> driver.CUmemoryPool:
    """Make a pool on a GPU, which never gives memory back to the driver."""
    wanted = driver.CUmemPoolProps()
    wanted.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.handleTypes = HANDLE if shared else driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
    wanted.location = _make_location(device)
    pool = _check_driver_result(driver.cuMemPoolCreate(wanted))
    release_threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    _check_driver_result(driver.cuMemPoolSetAttribute(pool, release_threshold, driver.cuuint64_t(2**64 - 1)))
    return pool


def _make_location(device: int) -> driver.CUmemLocation:
    place = driver.CUmemLocation()
    place.id = device
    place.type = ON_DEVICE
    return place


def _open_pool(name: str) -> driver.CUmemoryPool:
    """Return the pool of another process; the first call opens it."""
    with _opening:
        if name not in _opened:
            _opened[name] = _receive_pool(name)
        return _opened[name]


def _is_gone(name: str) -> bool:
    """Return whether the process whose pool has this name has ended."""
    try:
        with _connect_to_lender(name):
            return False
    except OSError:
        return True


def _connect_to_lender(name: str) -> socket.socket:
    lender = socket.socket(socket.AF_UNIX)
    lender.settimeout(PATIENCE)
    try:
        lender.connect("\0" + name)
    except OSError:
        lender.close()
        raise
    return lender


def _receive_pool(name: str) -> driver.CUmemoryPool:
    with _connect_to_lender(name) as lender:
        if _read_user(lender) != os.getuid():
            raise OSError(f"{name} belongs to another user")
        _, descriptors, _, _ = socket.recv_fds(lender, 1, 1)
    if not descriptors:
        raise ConnectionResetError(f"{name} ended before it handed over its pool")
    (shared,) = descriptors
    access = driver.CUmemAccessDesc()
    access.location = _make_location(cupy.cuda.runtime.getDevice())
    access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    try:
        pool = _check_driver_result(driver.cuMemPoolImportFromShareableHandle(shared, HANDLE, 0))
        _check_driver_result(driver.cuMemPoolSetAccess(pool, [access], 1))
    finally:
        os.close(shared)
    return pool


def _read_user(other: socket.socket) -> int:
    """Return the user that the process at the other end of a socket belongs to."""
    credentials = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def _check_driver_result(result: tuple[Any, ...]) -> Any:
    error, *values = result
    if int(error) == int(driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY):
        raise MemoryError("the GPU's memory is full")
    if int(error):
        raise GiveUpError(
            "memory cannot be shared between GPUs",
            where=f"GPU {os.environ.get('CUDA_VISIBLE_DEVICES', '0')}",
            why=error.name,
            do="set cluster.cuda_ipc to false: pieces then go through the host",
        )
    return values[0] if values else None


def _free_pool(buffer: cupy.ndarray) -> None:
    """End a loan: does nothing, but the finalizer's reference to the buffer goes."""
