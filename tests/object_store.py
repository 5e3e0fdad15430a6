"""A real S3 server of the tests (moto's) behind a proxy that delays, counts, and fails requests.

The proxy speaks HTTP/1.1 and knows nothing of S3 but how to name a request. It can stand in front of any server.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

KEYS = {"key": "testing", "secret": "testing"}
BLOCK = 2**16  # bytes that pass at a time
SLOW_DOWN = (
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)

# What happens to a request instead of its answer: a status; "cut": the connection ends before the server sees the
# request; "lost": it ends when the server has done it; "half": it ends within the body of the answer.
Fault = int | Literal["cut", "lost", "half"]


@dataclass
class Request:
    """A request that passed the proxy."""

    kind: str
    path: str
    headers: dict[str, str]
    sent: int = 0
    received: int = 0
    status: int = 0


@dataclass
class Traffic:
    """Requests since a moment. Bytes are those of bodies."""

    requests: list[Request] = field(default_factory=list)

    @property
    def by_kind(self) -> dict[str, int]:
        return dict(sorted(Counter(request.kind for request in self.requests).items()))

    @property
    def fetched(self) -> int:
        """Bytes of answers to reads of objects; listings do not count."""
        return sum(request.received for request in self.requests if request.kind == "get")

    @property
    def sent(self) -> int:
        return sum(request.sent for request in self.requests)

    def count(self, kind: str) -> int:
        return sum(request.kind == kind for request in self.requests)


class Proxy:
    """A server on the loopback that hands requests on to another one.

    `latency` delays each answer by seconds; all connections share `bandwidth`, bytes a second. `choose_fault` names a
    fault for a request, or None.
    """

    def __init__(self, port: int) -> None:
        self.upstream = port
        self.latency = 0.0
        self.bandwidth: float | None = None
        self.choose_fault: Callable[[Request], Fault | None] = lambda request: None
        self.requests: list[Request] = []
        self._free_at = 0.0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._tasks = set[asyncio.Task[Any]]()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self.port: int = self._server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextlib.contextmanager
    def counting(self) -> Iterator[Traffic]:
        """The traffic of the block."""
        before = len(self.requests)
        traffic = Traffic()
        try:
            yield traffic
        finally:
            traffic.requests = self.requests[before:]

    @contextlib.contextmanager
    def failing(self, choose: Callable[[Request], Fault | None]) -> Iterator[None]:
        """Fail requests of the block."""
        self.choose_fault = choose
        try:
            yield
        finally:
            self.choose_fault = lambda request: None

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        upstream = None
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if upstream is None:
                    upstream = await asyncio.open_connection("127.0.0.1", self.upstream)
                if not await self._pass(head, reader, writer, *upstream):
                    upstream[1].close()
                    upstream = None
        except (asyncio.IncompleteReadError, ConnectionError, _CutError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()
            if upstream:
                upstream[1].close()

    async def _pass(
        self,
        head: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
    ) -> bool:
        """Pass one request and its answer; whether the server keeps its connection."""
        line, headers = _parse(head)
        method, target, _ = line.split(" ", 2)
        request = Request(_kind(method, target, headers), unquote(urlsplit(target).path), headers)
        self.requests.append(request)
        fault = self.choose_fault(request)
        if fault == "cut":
            raise _CutError
        if headers.pop("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = b"\r\n".join(part for part in head.split(b"\r\n") if not part.lower().startswith(b"expect:"))
        if isinstance(fault, int):
            async for _ in _body(reader, headers, False):
                pass
            await asyncio.sleep(self.latency)
            request.status = fault
            retry_after = b"Retry-After: 0\r\n" if fault == 429 else b""
            writer.write(b"HTTP/1.1 %d Fault\r\nContent-Type: application/xml\r\n%s" % (fault, retry_after))
            body = b"" if method == "HEAD" else SLOW_DOWN
            writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
            return True
        up_writer.write(head)
        async for part in _body(reader, headers, False):
            request.sent += len(part.content)
            await self._wait_for(len(part.content))
            up_writer.write(part.wire)
            await up_writer.drain()
        answer = await up_reader.readuntil(b"\r\n\r\n")
        status_line, answer_headers = _parse(answer)
        request.status = int(status_line.split(" ")[1])
        await asyncio.sleep(self.latency)
        if fault == "lost":
            raise _CutError
        writer.write(answer)
        empty = method == "HEAD" or request.status in (204, 304)
        length = int(answer_headers.get("content-length", 0))
        if not empty:
            async for part in _body(up_reader, answer_headers, True):
                await self._wait_for(len(part.content))
                if fault == "half" and request.received + len(part.content) >= length // 2:
                    writer.write(part.wire[: max(0, length // 2 - request.received)])
                    await writer.drain()
                    raise _CutError
                request.received += len(part.content)
                writer.write(part.wire)
                await writer.drain()
        await writer.drain()
        closes = answer_headers.get("connection", "").lower() == "close" or status_line.startswith("HTTP/1.0")
        if closes and not empty and "content-length" not in answer_headers:
            raise _CutError  # the end of the connection is the end of the body
        return not closes

    async def _wait_for(self, nbytes: int) -> None:
        if self.bandwidth:
            now = time.monotonic()
            self._free_at = max(now, self._free_at) + nbytes / self.bandwidth
            if self._free_at - now > 0.001:
                await asyncio.sleep(self._free_at - now)


class _CutError(Exception):
    pass


@dataclass(frozen=True)
class _Part:
    """A part of a body: its content, and the bytes that carry it."""

    content: bytes
    wire: bytes


def _parse(head: bytes) -> tuple[str, dict[str, str]]:
    line, *rest = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = [header.partition(":") for header in rest]
    return line, {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _body(reader: asyncio.StreamReader, headers: dict[str, str], to_end: bool) -> Any:
    if "chunked" in headers.get("transfer-encoding", "").lower():
        while True:
            size_line = await reader.readuntil(b"\r\n")
            size = int(size_line.split(b";")[0], 16)
            content = await reader.readexactly(size)
            end = await reader.readuntil(b"\r\n")
            yield _Part(content, size_line + content + end)
            if not size:
                return
    elif "content-length" in headers:
        left = int(headers["content-length"])
        while left:
            content = await reader.read(min(left, BLOCK))
            if not content:
                raise _CutError
            left -= len(content)
            yield _Part(content, content)
    elif to_end:
        while content := await reader.read(BLOCK):
            yield _Part(content, content)


def _kind(method: str, target: str, headers: dict[str, str]) -> str:
    """What a request of S3 does, in a word."""
    parts = urlsplit(target)
    query = parse_qs(parts.query, keep_blank_values=True)
    if method == "GET":
        is_object = parts.path.strip("/").count("/") > 0
        return "get" if is_object and not query.keys() & {"uploads", "uploadId", "list-type"} else "list"
    if method == "PUT":
        if "partNumber" in query:
            return "part"
        if "x-amz-copy-source" in headers:
            return "copy"
        return "put if" if headers.keys() & {"if-match", "if-none-match"} else "put"
    if method == "POST":
        return "delete" if "delete" in query else "multipart"
    return method.lower()


def fail_share(share: float, seed: int, *faults: Fault) -> Callable[[Request], Fault | None]:
    """Choose faults for a share of all requests."""
    draws = random.Random(seed)
    return lambda request: draws.choice(faults) if draws.random() < share else None


def fail_next(kind: str, *faults: Fault) -> Callable[[Request], Fault | None]:
    """Choose these faults, in order, for the next requests of a kind."""
    waiting = list(faults)
    return lambda request: waiting.pop(0) if waiting and request.kind == kind else None


class ObjectStore:
    """moto's server in this process, behind a proxy; it has the bucket `shop`."""

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Handler(WSGIRequestHandler):
            protocol_version = "HTTP/1.1"

            def log(self, type: str, message: str, *args: Any) -> None:
                """Requests are counted by the proxy."""

        application = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.proxy = Proxy(self._server.server_port)
        self.backend.create_bucket("shop", "us-east-1")

    @property
    def backend(self) -> Any:
        """What moto's server keeps, for tests that fill it without a request for each object."""
        from moto.s3.models import s3_backends

        return s3_backends["123456789012"]["aws"]

    @property
    def options(self) -> dict[str, Any]:
        """Options of the storage, as jobs write them."""
        return {**KEYS, "client_kwargs": {"endpoint_url": self.proxy.url, "region_name": "us-east-1"}}

    def put(self, key: str, content: bytes) -> None:
        self.backend.put_object("shop", key, content)

    def get(self, key: str) -> bytes:
        content: bytes = self.backend.get_object("shop", key).value
        return content

    def list_keys(self, prefix: str) -> list[str]:
        return sorted(key for key in list(self.backend.get_bucket("shop").keys) if key.startswith(prefix))

    def close(self) -> None:
        self.proxy.close()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
