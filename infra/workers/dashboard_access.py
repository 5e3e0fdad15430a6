"""Dask's dashboard, and all else that its servers tell over HTTP, for the user of the run alone.

They show the names of columns and files, logs and profiles to whoever opens their port, and on the loopback that is
every user of the host. HTTP has no certificates of the cluster, and a browser has none to show; but the kernel knows
whose connection it is (proc(5), /proc/net/tcp).
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tornado.httputil import HTTPServerRequest
from tornado.routing import Matcher, Rule
from tornado.web import Application, HTTPError, RequestHandler

WHEN_OPENED = "rowmill.dashboard-when-opened"  # setting of Dask: load the dashboard with its first page

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
LOCAL, REMOTE, STATE, USER = 1, 2, 3, 7  # columns: addresses of this and of the other end, state, user of this end
LISTENING = "0A"
ROOT = 0


def dask_setup(server: Any) -> None:
    """Refuse other users all pages of a scheduler or worker (a preload of Dask); its dashboard is loaded when somebody
    opens it, with the setting `WHEN_OPENED`."""
    import dask.config

    application = getattr(server, "http_application", None)
    if application is not None:
        application.default_router.rules.insert(0, Rule(_Stranger(), _Refused))
        if dask.config.get(WHEN_OPENED, False) and not application.applications:
            application.add_application(_Dashboard(server))


class _Dashboard(Application):
    """Stands among the applications of a server for its dashboard, and loads it for the first page that no other has.

    To import Bokeh takes half a second, in the process of the scheduler and again in each worker, before the first task
    can begin. Most runs end before anybody looks.
    """

    def __init__(self, server: Any) -> None:
        super().__init__()
        self.server, self.loaded = server, False

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> Any:
        """Nothing; the dashboard, which is the next application from now on, is asked next."""
        from distributed import Scheduler

        if self.loaded:
            return None
        self.loaded = True
        with contextlib.suppress(ImportError):  # an installation without Bokeh has no dashboard
            if isinstance(self.server, Scheduler):
                from distributed.dashboard.scheduler import connect
            else:
                from distributed.dashboard.worker import connect
            connect(self.server.http_application, self.server.http_server, self.server)
        return None


def user_of(connection: socket.socket) -> int | None:
    """The user whose process is at the other end of a connection within this host; None where the kernel knows none."""
    theirs, ours = (_hexadecimal(*name[:2]) for name in (connection.getpeername(), connection.getsockname()))
    this = (row for row in _sockets() if row[LOCAL].endswith(theirs) and row[REMOTE].endswith(ours))
    return next((int(row[USER]) for row in this), None)


def listener(port: int) -> int | None:
    """The user whose process listens on a port of the loopback, or of all addresses; None where no process does.

    >>> listener(1) is None
    True
    """
    places = tuple(_hexadecimal(address, port) for address in ("127.0.0.1", "0.0.0.0"))
    of_listeners = (row for row in _sockets() if row[STATE] == LISTENING)
    return next((int(row[USER]) for row in of_listeners if row[LOCAL].endswith(places)), None)


def _sockets() -> Iterator[list[str]]:
    """The columns of each TCP socket of the host."""
    for table in TABLES:
        with contextlib.suppress(OSError):
            yield from (line.split() for line in table.read_text().splitlines()[1:])


class _Stranger(Matcher):
    """Matches requests of another user, root excepted, and those whose user is unknown."""

    def match(self, request: HTTPServerRequest) -> dict[str, Any] | None:
        stream = getattr(request.connection, "stream", None)
        try:
            user = user_of(stream.socket) if stream is not None else None
        except (OSError, AttributeError):  # it has gone
            user = None
        return None if user in (os.getuid(), ROOT) else {}


class _Refused(RequestHandler):
    def prepare(self) -> None:
        raise HTTPError(403, reason="this dashboard belongs to another user of the host")


def _hexadecimal(address: str, port: int) -> str:
    """An IPv4 address and port as the kernel writes them, which is also the end of an IPv6 address that stands for it.

    >>> _hexadecimal("127.0.0.1", 8787)
    '0100007F:2253'
    """
    number = int.from_bytes(socket.inet_aton(address.removeprefix("::ffff:")), "little")
    return f"{number:08X}:{port:04X}"
