"""Object stores by bucket: one client in a process; a forked process has its clients in a new process of its own.

The client has threads, of which a fork has none: there, each request would wait for ever. Processes that are forked off
one that has read from a store, such as the workers of PyTorch's DataLoader, start a process of their own for it, once,
and talk to it over a socket that nobody else may open.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, BinaryIO, cast

from tasks.core.plan import File
from tasks.errors import RowmillError, TransientError
from tasks.storage.cloud_options import cloud_options
from tasks.storage.object_store import ObjectStore, full_url, is_forked
from tasks.storage.range_file import RangeFile
from tasks.storage.ranges import Range
from tasks.storage.store import Store

CLOUD_VARIABLES = ("AWS_", "GOOGLE_", "AZURE_", "ROWMILL_RETRY_")  # what clients read when they are made
# Not by -m: this would look for a tasks/ in the current folder.
CODE = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from tasks.storage.store_process import serve; serve()"
KEY_BYTES = 32


def open_object_store(path: str, settings: Mapping[str, Any]) -> Store:
    """The store that has a URL; one for each bucket, options and process."""
    return ForkedStore(dict(settings)) if is_forked() else _open(path, settings)


def _open(path: str, settings: Mapping[str, Any]) -> ObjectStore:
    bucket = "/".join(path.split("/", 3)[:3])
    variables = tuple(sorted(pair for pair in os.environ.items() if pair[0].startswith(CLOUD_VARIABLES)))
    return _object_store(bucket, json.dumps(settings, sort_keys=True, default=str), variables)


@lru_cache(maxsize=64)
def _object_store(bucket: str, options: str, variables: tuple[tuple[str, str], ...]) -> ObjectStore:
    settings = json.loads(options)
    return ObjectStore(cloud_options(bucket, settings), settings)


@dataclass(frozen=True)
class ForkedStore:
    """The object stores of some options, by the process that has the client."""

    settings: dict[str, Any] = field(repr=False)
    is_local = False
    publishes = True
    lists_versions = True

    def list_pages(self, path: str) -> Iterator[list[File]]:
        yield from self._call("list_pages", path)

    def list_folder(self, path: str) -> tuple[list[File], list[str]]:
        return cast("tuple[list[File], list[str]]", self._call("list_folder", path))

    def full_path(self, path: str) -> str:
        return full_url(path)

    def open(self, path: str, file: File | None = None) -> BinaryIO:
        return cast("BinaryIO", RangeFile(self, file or self.stat(path)))

    def stat(self, path: str) -> File:
        return cast("File", self._call("stat", path))

    def read(self, path: str) -> tuple[File, bytes]:
        return cast("tuple[File, bytes]", self._call("read", path))

    def read_ranges(self, file: File, ranges: Sequence[Range]) -> list[memoryview]:
        return cast("list[memoryview]", self._call("read_ranges", file.path, file, ranges))

    def put_if_absent(self, path: str, content: bytes) -> File:
        return cast("File", self._call("put_if_absent", path, path, content))

    def put_if_unchanged(self, path: str, content: bytes, version: str) -> File:
        return cast("File", self._call("put_if_unchanged", path, path, content, version))

    def upload(self, source: Path, path: str) -> File:
        return cast("File", self._call("upload", path, source.absolute(), path))

    def copy(self, source: str, path: str) -> File:
        return cast("File", self._call("copy", path, source, path))

    def delete(self, paths: Iterable[str]) -> None:
        if listed := list(paths):
            self._call("delete", listed[0], listed)

    def _call(self, verb: str, path: str, *arguments: Any) -> Any:
        """Have the process do a verb; `path` alone is the argument where there are no others."""
        try:
            connection = _process_of_fork.connect()
            connection.send((verb, path, self.settings, arguments or (path,)))
            is_error, answer, parts = connection.recv()
            if parts:
                answer = [memoryview(connection.recv_bytes()) for _ in range(parts)]
        except (EOFError, OSError) as error:
            _process_of_fork.forget()  # the next request starts another one
            raise TransientError(
                "the process that reads the storage has ended",
                where=path,
                why=f"{type(error).__name__}: {error}",
                do="run the same again; look for a process that was killed, as for want of memory",
            ) from None
        if is_error:
            raise answer
        return answer


class _ProcessOfFork:
    """The process that has the clients of this forked process: started for its first request, it ends with it."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget the process of the parent; what this one needs is started anew."""
        self._lock = threading.Lock()
        self._connections = threading.local()  # one for each thread: their requests do not wait for each other
        self._child: subprocess.Popen[bytes] | None = None
        self._address = ""
        self._key = b""

    def connect(self) -> Connection:
        with self._lock:
            if self._child is None:
                self._start()
        if not hasattr(self._connections, "own"):
            self._connections.own = Client(self._address, authkey=self._key)
        return cast("Connection", self._connections.own)

    def _start(self) -> None:
        command = [sys.executable, "-P", "-c", CODE, json.dumps(sys.path)]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdin is not None
        assert child.stdout is not None
        self._key = os.urandom(KEY_BYTES)
        child.stdin.write(self._key)
        child.stdin.flush()  # it stays open: its end tells the process that this one has ended
        self._address = child.stdout.readline().decode().rstrip("\n")
        if not self._address:
            raise EOFError("it did not start")
        self._child = child


_process_of_fork = _ProcessOfFork()
os.register_at_fork(after_in_child=_process_of_fork.forget)
os.register_at_fork(after_in_child=_object_store.cache_clear)


def serve() -> None:
    """Answer the requests of the process that started this one, until that ends."""
    key = sys.stdin.buffer.read(KEY_BYTES)
    with Listener(None, "AF_UNIX", backlog=64, authkey=key) as listener:
        sys.stdout.write(f"{listener.address}\n")
        sys.stdout.flush()
        threading.Thread(target=_accept, args=(listener,), daemon=True).start()
        sys.stdin.buffer.read()


def _accept(listener: Listener) -> None:
    while True:
        with suppress(Exception):  # of a client that has no key, or is gone
            threading.Thread(target=_answer, args=(listener.accept(),), daemon=True).start()


def _answer(connection: Any) -> None:
    with suppress(EOFError, OSError):
        while True:
            verb, path, settings, arguments = connection.recv()
            try:
                answer = getattr(_open(path, settings), verb)(*arguments)
            except RowmillError as error:
                connection.send((True, error, 0))
            except Exception as error:
                connection.send((True, _make_portable(error), 0))
            else:
                parts = answer if verb == "read_ranges" else []  # which are sent as they are, without a copy
                plain = list(answer) if verb == "list_pages" else answer
                connection.send((False, [] if parts else plain, len(parts)))
                for part in parts:
                    connection.send_bytes(part)


def _make_portable(error: Exception) -> Exception:
    """The error, or its text where it cannot travel."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  # what was written just now
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
