"""The Prefect server that a run reports to: the configured one, else one on the loopback, started when needed."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil

from infra.environment import ENVIRONMENT
from infra.orchestration.proxies import bypass_proxies
from tasks.errors import GiveUpError, JobError

HOST = "127.0.0.1"
START_SECONDS = 120
MOST_LETTERS = 2000  # of a text of Prefect
RETRIES = "PREFECT_CLIENT_MAX_RETRIES"
ROOT = 0  # the user
SOCKETS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
# columns of these tables, see proc(5)
LOCAL = 1
STATE = 3
USER = 7
LISTENING = "0A"
_chosen: dict[str, str] = {}  # the number of retries as the user set it, while `expect_answers(False)` holds


class ServerInfo(NamedTuple):
    """The addresses of a server for programs and for people, and whether this call started it."""

    api_url: str
    ui_url: str
    started: bool


class RunningServer(NamedTuple):
    """The addresses of a server that answers, and its process if rowmill has started it on this host."""

    api_url: str
    ui_url: str
    pid: int | None


def ensure_server(on_wait: Callable[[str], None] | None = None) -> ServerInfo:
    """Return a healthy Prefect server for this process and its children, which find it in PREFECT_API_URL.

    In this order: the server of PREFECT_API_URL or of the active Prefect profile, which must answer; the one that an
    earlier run left; a Prefect server of this version on Prefect's port (4200); a new one in the background, on a free
    port if that one is taken. Calls `on_wait` with a line for each thing that
    takes seconds. GiveUpError if no server can be had.
    """
    _use(ENVIRONMENT, only_missing=True)
    configured = str(_settings().api.url or "")
    bypass_proxies(configured)
    if configured:
        return _check_configured_server(configured)
    home = prefect_home()
    with _one_at_a_time(home / "rowmill-server.lock"):
        port = _running_port(home)
        started = port is None
        if port is None:
            if on_wait:
                on_wait("starting a Prefect server (the first start takes about ten seconds)")
                if _settings().server.api.auth_string is None:
                    on_wait("without a password: every user of this host can open it (infra/README.md: Ports)")
            port = _start(home)
    api_url = f"http://{HOST}:{port}/api"
    _use({"PREFECT_API_URL": api_url})
    return ServerInfo(api_url, f"http://{HOST}:{port}", started)


def use_running_server() -> bool:
    """Let this process use the server that `ensure_server` would use, but start none; return whether there is one."""
    _use(ENVIRONMENT, only_missing=True)
    configured = str(_settings().api.url or "")
    bypass_proxies(configured)
    if configured:
        return True
    port = _running_port(prefect_home())
    if port is not None:
        _use({"PREFECT_API_URL": f"http://{HOST}:{port}/api"})
    return port is not None


def running_server() -> RunningServer | None:
    """Return the server that `ensure_server` would use, which this process uses from now on; None if none runs.

    GiveUpError if a server is configured that does not answer.
    """
    if not use_running_server():
        return None
    api_url = str(_settings().api.url)
    own = own_server()
    if own is not None and own.api_url == api_url:
        return own
    _check_configured_server(api_url)
    return RunningServer(api_url, ui_url(), None)


def own_server() -> RunningServer | None:
    """Return the server that an `ensure_server` with this PREFECT_HOME has started, if its process still runs."""
    note = _note(prefect_home())
    process = _process(note)
    if note is None or process is None:
        return None
    return RunningServer(f"http://{HOST}:{note['port']}/api", f"http://{HOST}:{note['port']}", process.pid)


def use_server(server: RunningServer) -> None:
    """Let this process and its children use a server."""
    bypass_proxies(server.api_url)
    _use({"PREFECT_API_URL": server.api_url})


def stop_server() -> bool:
    """Stop the server that an `ensure_server` with this PREFECT_HOME started; False when there is none."""
    home = prefect_home()
    with _one_at_a_time(home / "rowmill-server.lock"):
        note = _note(home)
        process = _process(note)
        if process is not None:
            process.terminate()
            try:
                process.wait(15)
            except psutil.TimeoutExpired:
                process.kill()
                process.wait(15)
        (home / "rowmill-server.json").unlink(missing_ok=True)
    if note and os.environ.get("PREFECT_API_URL") == f"http://{HOST}:{note['port']}/api":
        del os.environ["PREFECT_API_URL"]
        _refresh()
    return process is not None


def expect_answers(answers: bool) -> None:
    """Set whether this process tries a server that is away again (True), or calls it only once (False)."""
    if answers:
        _use({RETRIES: _chosen.pop(RETRIES, ENVIRONMENT[RETRIES])})
    elif RETRIES not in _chosen:
        _chosen[RETRIES] = os.environ.get(RETRIES, ENVIRONMENT[RETRIES])
        _use({RETRIES: "0"})


def refusal(error: BaseException | None) -> str:
    """Prefect's own text of a request that the server refuses, its beginning; empty for other errors.

    The whole text repeats the request and the schema of the form, 25 kB.
    """
    from prefect.exceptions import PrefectHTTPStatusError

    while error is not None and not isinstance(error, PrefectHTTPStatusError):
        error = error.__cause__
    return str(error)[:MOST_LETTERS] if error else ""


@contextmanager
def refusals(what: str, where: str) -> Iterator[None]:
    """A JobError where the server refuses a request in this block."""
    try:
        yield
    except Exception as error:
        if not (why := refusal(error)):
            raise
        raise JobError(what, where=where, why=why, do="fix it and give the command again") from None


def ui_url() -> str:
    """Return the address at which people see the configured server."""
    settings = _settings()
    return str(settings.ui_url or str(settings.api.url or "").removesuffix("/api")).rstrip("/")


def flow_run_url(ui_url: str, flow_run_id: object) -> str:
    """Return the page of a flow run.

    >>> flow_run_url("http://127.0.0.1:4200/", "d0c1")
    'http://127.0.0.1:4200/runs/flow-run/d0c1'
    """
    return f"{ui_url.rstrip('/')}/runs/flow-run/{flow_run_id}"


def _check_configured_server(api_url: str) -> ServerInfo:
    """The server that the environment or the profile names, if it answers; credentials come from the same settings."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True, httpx_settings={"timeout": 10}) as client:
        problem = client.api_healthcheck()
    if problem is not None:
        raise GiveUpError(
            "the configured Prefect server does not answer",
            where=f"PREFECT_API_URL = {api_url}",
            why=str(problem),
            do="start it; or, to have one started here, remove the setting: `unset PREFECT_API_URL` if it is an "
            "environment variable, `prefect config unset PREFECT_API_URL` if it is in the profile",
        )
    return ServerInfo(api_url, ui_url(), False)


def _running_port(home: Path) -> int | None:
    """Return the port of a local server that may be used: the one that an earlier run noted, else Prefect's own.

    A server of another user does not count: that user decides which deployments start runs there.
    """
    note = _note(home)
    ports = [note["port"]] if note else []
    users = (os.getuid(), ROOT)
    candidates = [*ports, _settings().server.api.port]
    return next((port for port in candidates if _is_ours(port) and listener(port) in users), None)


def listener(port: int) -> int | None:
    """Return the user whose process listens on a port of the loopback, or of all addresses; None where no process does.

    >>> listener(1) is None
    True
    """
    places = tuple(f"{address}:{port:04X}" for address in ("0100007F", "00000000"))  # 127.0.0.1 and 0.0.0.0
    for table in SOCKETS:
        with suppress(OSError):
            for row in (line.split() for line in table.read_text().splitlines()[1:]):
                if row[STATE] == LISTENING and row[LOCAL].endswith(places):
                    return int(row[USER])
    return None


def _is_ours(port: int) -> bool:
    """True if a healthy Prefect server with the API of this version answers on a port of the loopback."""
    import prefect

    secret = _settings().api.auth_string
    user, _, password = secret.get_secret_value().partition(":") if secret else ("", "", "")
    known: dict[str, Any] = {"auth": (user, password)} if secret else {}
    # Plain HTTP on the loopback has no certificates: without `verify` those of all authorities are loaded for nothing.
    options: dict[str, Any] = {
        "base_url": f"http://{HOST}:{port}/api/",
        "timeout": 5,
        "trust_env": False,
        "verify": False,
    }
    try:
        with httpx.Client(**options) as client:
            health = client.get("health")
            version = client.get("admin/version", **known)
        return health.json() is True and _release(version.json()) == _release(prefect.__version__)
    except (httpx.HTTPError, ValueError):
        return False


def _release(version: object) -> list[str]:
    return str(version).split(".")[:2]


def _start(home: Path) -> int:
    """Start a server that outlives this process and wait until it is healthy; returns its port."""
    port = _free_port(_settings().server.api.port)
    log_path = home / "rowmill-server.log"
    program = str(Path(__file__).with_name("sqlite_server.py"))
    command = [sys.executable, "-P", program, "server", "start", "--host", HOST, "--port", str(port)]
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    environment |= ENVIRONMENT | {"PREFECT_HOME": str(home), "PYTHONSAFEPATH": "1", "PYTHONWARNINGS": "ignore"}
    environment.setdefault("PREFECT_SERVER_LOGGING_LEVEL", "WARNING")
    with log_path.open("ab") as log:
        # The folder is Prefect's own: a pyproject.toml or a decoy package of the current one is none of its business.
        server = subprocess.Popen(
            command, cwd=home, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    deadline = time.monotonic() + START_SECONDS
    while not _is_ours(port):
        if server.poll() is not None or time.monotonic() > deadline:
            why = "it ended at once" if server.poll() is not None else f"it is not healthy after {START_SECONDS} s"
            server.kill()
            tail = log_path.read_text(errors="replace").strip().splitlines()[-3:]
            raise GiveUpError(
                "the Prefect server did not start",
                where=str(log_path),
                why="; ".join([why, *tail]),
                do="run `prefect server start` by hand, or set PREFECT_API_URL to a running server",
            )
        time.sleep(0.2)
    note = {"port": port, "pid": server.pid, "created": psutil.Process(server.pid).create_time()}
    (home / "rowmill-server.json").write_text(json.dumps(note))
    # The server is meant to outlive this process: without this Popen's destructor would call it a leak.
    server.returncode = 0
    return port


def _free_port(wanted: int) -> int:
    """Return the wanted port of the loopback, else one that the system has free."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
                return int(probe.getsockname()[1])
            except OSError:
                continue
    raise GiveUpError("no free port on the loopback", where=HOST, do="stop servers that are not needed")


def _note(home: Path) -> dict[str, Any] | None:
    """Return the note of an earlier start: port, pid and the time at which the process was created."""
    try:
        return dict(json.loads((home / "rowmill-server.json").read_text()))
    except (OSError, ValueError):
        return None


def _process(note: dict[str, Any] | None) -> psutil.Process | None:
    """Return the noted process if it is still that one: pids are given again, creation times are not."""
    try:
        process = psutil.Process(note["pid"]) if note else None
        return process if process and note and abs(process.create_time() - note["created"]) < 1 else None
    except psutil.NoSuchProcess:
        return None


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    """Hold a lock between processes: of two that start at once the second finds the server of the first."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def prefect_home() -> Path:
    """Prefect's folder, which is made if it is not there; GiveUpError where that cannot be."""
    home = Path(_settings().home)
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = "the home of Prefect cannot be written"
        do = "set PREFECT_HOME to a folder of yours"
        raise GiveUpError(what, where=str(home), why=str(error), do=do) from None
    return home


def _settings() -> Any:
    from prefect.settings import get_current_settings

    return get_current_settings()


def _use(variables: dict[str, str], *, only_missing: bool = False) -> None:
    """Set variables for this process, also where Prefect was imported before and remembers, and for its children."""
    os.environ.update({k: v for k, v in variables.items() if not (only_missing and k in os.environ)})
    _refresh()


def _refresh() -> None:
    from prefect.context import refresh_global_settings_context

    refresh_global_settings_context()
