"""Another user of the host: every port of a run refuses him, and so do its folders; what belongs to the run still
goes past TLS."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from distributed import Client

from infra.clusters import encryption, kinds
from infra.clusters.model import Cluster
from infra.environment import own_folder
from tasks.cluster.dask_pool import workers_at
from tests.clusters import make_cluster
from tests.conftest import python_path
from tests.infra.elsewhere import make_certificates

NOBODY = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
pytestmark = [pytest.mark.system, pytest.mark.xdist_group("clusters")]

# Loads all that it needs, then becomes another user and tries one port after the other in every way.
STRANGER = """
import asyncio, http.client, json, os, sys
from distributed import Client
from distributed.comm import connect
from distributed.security import Security

TLS = {"ca": sys.argv[1], "cert": sys.argv[2], "key": sys.argv[3]}
MADE = Security(require_encryption=True, tls_ca_file=TLS["ca"], tls_client_cert=TLS["cert"], tls_client_key=TLS["key"])
CERTIFICATES = MADE.get_connection_args("client")
PATHS = ("/", "/status", "/sitemap.json", "/health", "/metrics", "/json/index.html", "/info/main/workers.html")

def asked(address, **options):
    async def ask():
        comm = await connect(address, timeout=1, **options)
        try:
            await comm.write({"op": "identity", "reply": True})
            return await asyncio.wait_for(comm.read(), 1)
        finally:
            comm.abort()
    return asyncio.run(asyncio.wait_for(ask(), 3))

def page(port, path):
    web = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    web.request("GET", path)
    answer = web.getresponse()
    return answer.read() if answer.status < 400 else None

def speaks_http(port):
    web = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    web.request("GET", "/")
    return web.getresponse().status

def run(address, **options):
    with Client(address, timeout=2, set_as_default=False, **options) as client:
        return client.run_on_scheduler(os.getuid)

def opens(attempt, *arguments, **options):
    try:
        return attempt(*arguments, **options) is not None
    except BaseException:
        return False

if __name__ == "__main__":
    opens(asked, "tcp://127.0.0.1:1"), opens(page, 1, "/")
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
    scheduler, ports = int(sys.argv[4]), [int(port) for port in sys.argv[5].split(",")]
    found = []
    for port in ports:
        if opens(speaks_http, port):
            found += [f"page {port}{path}" for path in PATHS if opens(page, port, path)]
            continue
        found += [f"plain {port}"] * opens(asked, f"tcp://127.0.0.1:{port}")
        found += [f"own certificate {port}"] * opens(asked, f"tls://127.0.0.1:{port}", **CERTIFICATES)
    found += ["a client, plain"] * opens(run, f"tcp://127.0.0.1:{scheduler}")
    found += ["a client, own certificate"] * opens(run, f"tls://127.0.0.1:{scheduler}", security=MADE)
    print(json.dumps({"user": os.getuid(), "opened": found}))
"""


def list_ports() -> set[int]:
    """All that this process and its children listen on."""
    listening = set()
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        listening |= {c.laddr.port for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    return listening


def port(address: str) -> int:
    return int(address.rpartition(":")[2].partition("/")[0])


def as_nobody(folder: Path, scheduler: int, ports: list[int]) -> dict[str, Any]:
    """What another user of this host opened of some ports."""
    tls = make_certificates(folder / "own")
    (folder / "stranger.py").write_text(STRANGER)
    command = [sys.executable, "-W", "ignore", str(folder / "stranger.py"), tls["ca"], tls["cert"], tls["key"]]
    done = subprocess.run(
        [*command, str(scheduler), ",".join(map(str, ports))], cwd="/", capture_output=True, text=True, timeout=240,
        env=os.environ | {"PYTHONPATH": python_path(), "DASK_LOGGING__DISTRIBUTED": "critical"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def http_port(dask_worker: Any) -> int:
    return int(dask_worker.http_server.port)


@pytest.mark.promise("A client that shows no certificate of that authority is refused")
@pytest.mark.promise("Dask's dashboard is off")
@as_root
def test_no_port_of_a_run_opens_for_another_user_of_the_host(tmp_path: Path, engine: str, prefect_server: Any) -> None:
    """The servers of the session, which the tests before have started, are open, and are none of the run."""
    before = list_ports()
    form = Cluster(kind="cuda", workers=1) if engine == "cudf" else Cluster(kind="cpu", threads_per_worker=1)
    with make_cluster(form) as cluster, Client(cluster, set_as_default=False) as client:
        nannies = [port(nanny.address) for nanny in cluster.workers.values()]
        workers = [port(address) for address in workers_at(client)]
        assert client.dashboard_link == ""
        known = {port(cluster.scheduler_address), *nannies, *workers}
        ports = list_ports() - before
        assert len(known) == 1 + 2 * len(workers)
        assert known <= ports
        assert as_nobody(tmp_path, port(cluster.scheduler_address), sorted(ports)) == {"user": NOBODY, "opened": []}
        assert client.submit(sum, [1, 2]).result(timeout=120) == 3


@pytest.mark.promise("`unencrypted: true` accepts that, which `protocol: ucx` and `tcp` need")
@as_root
def test_the_same_attempts_open_a_run_that_is_not_encrypted(tmp_path: Path, engine: str) -> None:
    form = {"kind": "cuda" if engine == "cudf" else "cpu", "unencrypted": True, "workers": 1}
    with make_cluster(Cluster(**form)) as cluster:
        place = port(cluster.scheduler_address)
        opened = as_nobody(tmp_path, place, [place])["opened"]
    assert opened == [f"plain {place}", "a client, plain"]


@pytest.mark.promise("`cluster.dashboard: true` shows it, and says in the log that every user of the host can read it")
def test_a_dashboard_is_shown_on_request_and_said_to_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(kinds.log, "warning", lines.append)
    asked = Cluster(kind="cpu", threads_per_worker=1, dashboard=True)
    with make_cluster(asked) as cluster, Client(cluster, set_as_default=False) as client:
        links = [client.dashboard_link, *(f"http://127.0.0.1:{p}/status" for p in client.run(http_port).values())]
        assert [httpx.get(link, trust_env=False, timeout=60).status_code for link in links] == [200, 200]
    assert "every user of this host can read Dask's dashboard" in lines[0]


@pytest.mark.promise("Scheduler, workers and their nannies speak TLS, on this host as between hosts")
def test_all_of_a_local_cluster_speaks_tls(cluster: Any, client: Client) -> None:
    workers = workers_at(client)
    places = [cluster.scheduler_address, *workers, *(spec["nanny"] for spec in workers.values())]
    assert {place.partition("://")[0] for place in places} == {"tls"}


def certificate_of(dask_worker: Any) -> str:
    return str(dask_worker.security.tls_worker_cert)


@pytest.mark.promise("a certificate that is made for the run and lives in memory", "infra/README.md#encryption")
def test_each_run_has_certificates_of_its_own_and_nobody_else_can_read_the_key(cluster: Any, client: Client) -> None:
    key = cluster.security.tls_worker_key
    assert key.startswith("-----BEGIN PRIVATE KEY-----")
    assert set(client.run(certificate_of).values()) == {cluster.security.tls_ca_file}
    with make_cluster(Cluster(kind="cpu", threads_per_worker=1)) as other:
        assert other.security.tls_worker_key != key
    secret = key.splitlines()[1]
    lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    assert not [line for line in lines if secret in line]
    folders = [Path(tempfile.gettempdir()), *Path(tempfile.gettempdir()).glob("tmp*")]
    files = [f for folder in folders if os.access(folder, os.R_OK) for f in folder.glob("*.pem") if f.is_file()]
    assert not [file for file in files if secret in file.read_text(errors="replace")]


def scratch_of(dask_worker: Any) -> str:
    return str(dask_worker.local_directory)


@pytest.mark.promise("its scratch folder is closed to others", "infra/README.md#ports")
def test_the_scratch_folders_of_a_run_are_closed_to_others(cluster: Any, client: Client) -> None:
    here = [cluster.scheduler, *cluster.workers.values()]  # whose folders Dask puts on the path of this process
    folders = [*client.run(scratch_of).values(), *(server.local_directory for server in here)]
    for folder in folders:
        (own,) = [place for place in Path(folder).parents if place.name == f"rowmill-{os.getuid()}"]
        assert (stat.S_IMODE(own.stat().st_mode), own.stat().st_uid) == (0o700, os.getuid())


@pytest.mark.promise("its scratch folder is closed to others")
@as_root
def test_a_scratch_folder_that_somebody_else_has_put_there_is_not_used(tmp_path: Path) -> None:
    trap = tmp_path / f"rowmill-{os.getuid()}"
    trap.mkdir(mode=0o777)
    os.chown(trap, NOBODY, NOBODY)
    place = Path(own_folder(str(tmp_path)))
    assert place != trap
    assert place.parent == tmp_path
    assert (stat.S_IMODE(place.stat().st_mode), place.stat().st_uid) == (0o700, os.getuid())
    trap.rmdir()
    trap.symlink_to("/tmp")
    assert Path(own_folder(str(tmp_path))) not in (trap, place)


def test_certificates_cost_less_than_a_tenth_of_a_second() -> None:
    from infra.clusters.encryption import temporary

    temporary()
    began = time.thread_time()
    made = temporary()
    assert time.thread_time() - began < 0.1
    assert made.require_encryption
    assert encryption.security_of(Cluster(kind="cpu", unencrypted=True)) is None


def test_the_kernel_says_whose_server_listens() -> None:
    from infra.orchestration.server import listener

    with socket.create_server(("127.0.0.1", 0)) as server:
        assert listener(server.getsockname()[1]) == os.getuid()
    assert listener(1) is None


SERVER = """
import http.server, json, os, sys
from http.server import BaseHTTPRequestHandler

class Like(BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps(True if self.path.endswith("health") else sys.argv[2]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass

http.server.HTTPServer(("127.0.0.1", 0), Like).server_close()  # has loaded all that another user may not read
os.setuid(int(sys.argv[1]))
server = http.server.HTTPServer(("127.0.0.1", 0), Like)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.mark.promise("A server of another user on Prefect's port is never used unless `PREFECT_API_URL` names it")
@as_root
@pytest.mark.parametrize("user", [0, NOBODY])
def test_a_prefect_server_of_another_user_on_prefects_port_is_not_used(user: int, tmp_path: Path) -> None:
    """Whoever runs a server has runs started by those who serve deployments there."""
    import prefect
    from prefect.settings import PREFECT_SERVER_API_PORT, temporary_settings

    from infra.orchestration import server

    command = [sys.executable, "-c", SERVER, str(user), prefect.__version__]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            place = int(process.stdout.readline())
            with temporary_settings({PREFECT_SERVER_API_PORT: place}):
                assert server._is_ours(place)
                assert server._running_port(tmp_path) == (place if user == 0 else None)
        finally:
            process.kill()
