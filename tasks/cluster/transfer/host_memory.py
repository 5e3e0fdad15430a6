"""Lets the other workers of a host copy results out of a worker's host memory.

Between two workers Dask's TCP moves about a gigabyte a second, in the thread that also serves Dask. The kernel copies
between processes of one user, whose threads then move as much as the memory allows: 35 GB/s between two processes of a
host with 32 cores. Dask's messages only say where the bytes lie.

Source: process_vm_readv(2). A worker offers to read where the kernel lets it; elsewhere all goes over TCP.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from errno import EFAULT, ESRCH
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
from distributed.protocol.serialize import dask_deserialize, dask_serialize

from tasks.cluster.transfer.headers import Context, Header
from tasks.core import lent_bytes
from tasks.engines.task_result import TaskResult

OFFER = "rowmill-host"  # the key under which a worker says, when it connects, whose host memory it can read
LEAST = 1 << 20  # bytes of a message's buffers from which on they are copied, not sent
STEP = 4 << 20  # bytes that a thread copies at a time
THREADS = 8  # that copy at once in a process
ALIGNED = 64  # bytes, as Arrow wants its buffers


class _Span(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


class Place(NamedTuple):
    """Bytes in the memory of a process."""

    start: int
    nbytes: int


def dask_setup(worker: object) -> None:
    """Offer to read from the workers of this host, and lend to them (a preload of Dask)."""
    offer(worker)
    register()


def offer(worker: object) -> None:
    """Have a worker say, to each worker that it connects to, that it can read memory of this host."""
    if where := this_host():
        tell(worker, {OFFER: where})


def tell(worker: Any, offers: Mapping[str, Any]) -> None:
    """Add offers to the handshake by which a worker connects to others."""
    for arguments in (worker.connection_args, worker.rpc.connection_args):
        arguments["handshake_overrides"] = {**arguments.get("handshake_overrides", {}), **offers}


def read_recipient_offer(context: Context, name: str) -> Any:
    """Read the offer `name` in the handshake of the worker to which a Dask message goes; None without one."""
    return ((context or {}).get("recipient") or {}).get(name)


class Transport(NamedTuple):
    """How results go to another worker: `dump(result, context)` makes a header and frames, `load` the result again."""

    dump: Callable[[TaskResult, Context], tuple[Header, list[Any]]]
    load: Callable[[Header, list[Any]], Any]


_of_gpu: Transport | None = None


def register(of_gpu: Transport | None = None) -> None:
    """Have Dask's serializer `dask` take results of tasks by `dump` and `load`, or by a GPU's transport.

    A GPU's transport uses `dump` and `load` itself, so the order of the two registrations (by the worker's preload and
    by `gpu_worker`) does not matter.
    """
    global _of_gpu
    _of_gpu = of_gpu or _of_gpu
    dask_serialize.register(TaskResult)(_dump)
    dask_deserialize.register(TaskResult)(_load)


def _dump(result: TaskResult, context: Context = None) -> tuple[Header, list[Any]]:
    """Dask caches the serializer of a class: this function, which chooses the transport at each call."""
    return _of_gpu.dump(result, context) if _of_gpu else dump(result, context)


def _load(header: Header, frames: list[Any]) -> object:
    return _of_gpu.load(header, frames) if _of_gpu else load(header, frames)


def dump(value: object, context: Context = None) -> tuple[Header, list[Any]]:
    """Header of a task's result that a worker of this host reads. Raises NotImplementedError, so that Dask pickles the
    result, where reading is not possible or the result is small.

    Dask keeps the result until the other worker answers, which it does after reading.
    """
    if not this_host() or read_recipient_offer(context, OFFER) != this_host():
        raise NotImplementedError
    buffers: list[pickle.PickleBuffer] = []
    head = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    places = [_locate_buffer(buffer) for buffer in buffers]
    nbytes = sum(place.nbytes for place in places)
    if nbytes < LEAST:
        raise NotImplementedError
    weakref.finalize(value, buffers.clear).atexit = False
    lent_bytes.count(nbytes, on_host=True)
    return {"head": head, "process": os.getpid(), "started": _read_start_time(os.getpid()), "places": places}, []


def load(header: Header, frames: Sequence[Any]) -> object:
    """Copy the result. ConnectionResetError if the process that lends it is gone."""
    process = int(header["process"])
    places = [Place(*place) for place in header["places"]]
    starts = list(accumulate((-(-p.nbytes // ALIGNED) * ALIGNED for p in places), initial=0))
    copy = np.empty(starts[-1], np.uint8)
    parts = [copy[start : start + place.nbytes] for start, place in zip(starts, places, strict=False)]
    steps = [
        (part[at : at + STEP], place.start + at)
        for part, place in zip(parts, places, strict=True)
        for at in range(0, place.nbytes, STEP)
    ]
    list(_threads().map(lambda step: _copy_from_process(process, *step), steps))
    if _read_start_time(process) != header["started"]:
        raise ConnectionResetError(f"process {process}, whose memory was read, is gone")
    return pickle.loads(header["head"], buffers=parts)  # noqa: S301  as Dask sends everything else


@cache
def this_host() -> str:
    """Name this host, its process namespace and the user, if memory of other processes can be read; else "".

    Address 0 of the process that has started this one is a bad address where reading is allowed, else forbidden.
    """
    if _copy_chunk(os.getppid(), np.empty(1, np.uint8), 0) != -EFAULT:
        return ""
    return (
        f"{read_boot_id()} {Path('/proc/self/ns/pid').readlink()} {Path('/proc/self/ns/user').readlink()} {os.getuid()}"
    )


def read_boot_id() -> str:
    """Read the id of this boot of this host."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _locate_buffer(buffer: pickle.PickleBuffer) -> Place:
    view = np.frombuffer(buffer.raw(), np.uint8)
    return Place(view.ctypes.data, view.nbytes)


def _copy_from_process(process: int, into: np.ndarray, start: int) -> None:
    """Copy bytes of another process. ConnectionResetError if it, or its memory, is gone."""
    done = 0
    while done < len(into):
        copied = _copy_chunk(process, into[done:], start + done)
        if copied <= 0:
            what = f"memory of process {process} cannot be read"
            raise (ConnectionResetError if -copied in (ESRCH, EFAULT) else OSError)(-copied, what)
        done += copied


def _copy_chunk(process: int, into: np.ndarray, start: int) -> int:
    """Copy a chunk; return how many bytes the kernel copied, or the negative number of its error."""
    here = _Span(into.ctypes.data, len(into))
    there = _Span(start, len(into))
    copied = int(_libc().process_vm_readv(process, ctypes.byref(here), 1, ctypes.byref(there), 1, 0))
    return -ctypes.get_errno() if copied < 0 else copied


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.process_vm_readv.restype = ctypes.c_ssize_t
    return libc


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(THREADS, len(os.sched_getaffinity(0))), thread_name_prefix="rowmill-copy")


def _read_start_time(process: int) -> int:
    """When a process started, in the kernel's ticks: its number may be another's by now. 0 if it is gone."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0
