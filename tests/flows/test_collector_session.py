"""Collectors that answer too much, or send on: what a run reads of their answers, and whom it gives its key."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("requests", reason="needs openlineage-python: pip install '.[lineage]'")

from flows.published.collector_session import MOST_ANSWER, CollectorSession

pytestmark = pytest.mark.system


@contextmanager
def answering(status: int, body: bytes, **headers: str) -> Iterator[tuple[str, list[str]]]:
    """The address of a server that gives every request the same answer, and the keys that it was given."""
    keys: list[str] = []

    class Server(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            keys.append(str(self.headers.get("Authorization")))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                for _ in range(1000):
                    self.wfile.write(body)
            except OSError:  # nobody reads on
                pass

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", keys
        server.shutdown()


@pytest.mark.promise("An answer is read up", "flows/OPERATIONS.md#lineage-and-metrics")
def test_an_answer_is_read_up_to_64_kib() -> None:
    with answering(200, b"x" * 100_000) as (address, keys), CollectorSession() as session:
        answer = session.post(address, data=b"{}", headers={"Authorization": "Bearer word"}, timeout=10)
    assert (len(answer.content), answer.ok, keys) == (MOST_ANSWER, True, ["Bearer word"])


def test_a_bomb_in_an_answer_is_not_unpacked() -> None:
    import gzip

    bomb = gzip.compress(b"0" * 50_000_000)
    with answering(500, bomb, **{"Content-Encoding": "gzip"}) as (address, _), CollectorSession() as session:
        answer = session.post(address, data=b"{}", timeout=10)
    assert len(answer.content) <= MOST_ANSWER


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(status: int) -> None:
    with (
        answering(200, b"") as (elsewhere, stolen),
        answering(status, b"", Location=elsewhere) as (address, keys),
        CollectorSession() as session,
        pytest.raises(OSError, match=f"{status}, a redirect"),
    ):
        session.post(address, data=b"{}", headers={"Authorization": "Bearer word"}, timeout=10)
    assert (keys, stolen) == (["Bearer word"], [])
