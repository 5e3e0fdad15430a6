"""Fixtures of every room: the engine, its array module, a Prefect server of the session's own, clusters."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import logging
import os
import random
import shutil
import signal
import socket
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

# Before anything imports Prefect, which reads its settings once: the user's server and database stay untouched.
# Under xdist the workers inherit the folder of the session that started them.
if "ROWMILL_TEST_HOME" not in os.environ:
    os.environ["ROWMILL_TEST_HOME"] = tempfile.mkdtemp(prefix="rowmill-tests-")
    os.environ["ROWMILL_TEST_OWNER"] = str(os.getpid())
SESSION = Path(os.environ["ROWMILL_TEST_HOME"])
EMPTY = SESSION / "empty.db"  # of a Prefect server

# Hundreds of processes of tests import rowmill: what one has compiled, the others read, though an image forbids it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A shell starts what runs in its background with SIGINT ignored, and children inherit that: a worker of Prefect, which
# sends SIGINT to itself when it is told to end, would never end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def free_port() -> int:
    """A port of the loopback that nothing listens on, of those that Linux gives to nobody who asks for any port: no
    worker of another test has it before the process of this test listens there, seconds later."""
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def python_path() -> str:
    """PYTHONPATH of a process elsewhere: this repository with `import rowmill`, and the folders in which this process
    was told to look."""
    root = Path(__file__).resolve().parents[1]
    told = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if Path(folder).is_absolute()]
    return os.pathsep.join(dict.fromkeys([str(root), str(root / "flows" / "public"), *told]))


for name in [name for name in os.environ if name.startswith("PREFECT_")]:
    del os.environ[name]
os.environ |= {
    "HOME": str(SESSION / "home"),
    "PREFECT_HOME": str(SESSION / "prefect"),
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_SERVER_EVENTS_PROACTIVE_GRANULARITY": "PT1S",  # between two looks at automations that wait for silence
    "DO_NOT_TRACK": "1",
}
(SESSION / "home").mkdir(exist_ok=True)
os.environ.setdefault("ROWMILL_TEST_PORT", str(free_port()))
os.environ["PREFECT_SERVER_API_PORT"] = os.environ["ROWMILL_TEST_PORT"]

import pytest  # noqa: E402

from tests import cost, examples, tiers  # noqa: E402


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--engine", choices=["pandas", "cudf"], default="pandas", help="where the same tests run")
    tiers.add_options(parser)
    cost.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(tiers)
    examples.load_profile("nightly" if tiers.is_nightly(config) else "ci")
    tiers.choose_seed(config)
    owner = os.environ.get("ROWMILL_TEST_OWNER") == str(os.getpid())
    cost.measure(config, owner)
    if owner:  # the session goes on in a child of this process
        os.environ["ROWMILL_TEST_OWNER"] = str(os.getpid())


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """As many as cores, and two more with tests that wait for most of their time, those of servers; at most four, since
    each collects all tests. One where a GPU's memory is given to whoever starts first."""
    if config.getoption("--engine") == "cudf":
        return 0
    waiting = 2 if config.getoption("-m") else 0
    return min(4, (os.cpu_count() or 1) + waiting)


# The groups of tests that take a minute or more, in the order in which workers begin them: those that wait for most of
# their minutes run beside those that compute, and all other tests fill the rest. Clusters come first: their tests need
# a fork server with the variables of the session, and the first cluster of a process begins it.
GROUPS = ("clusters", "deployments", "browser", "killed-flow", "flows", "faults", "rounds", "cli", "gate", "backfill",
          "server", "postgresql", "determinism")  # fmt: skip


def place_of(item: pytest.Item) -> int:
    group = item.get_closest_marker("xdist_group")
    return GROUPS.index(group.args[0]) if group and group.args[0] in GROUPS else len(GROUPS)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tiers.leave_out(config, items)
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=place_of)
    if config.getoption("--engine") == "cudf":
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU: pytest --engine cudf"))


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call() -> Any:
    """A cluster that a fixture starts silences every handler of a stream below ERROR until it is closed, those of
    pytest, too: a test sees all lines."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.level == logging.ERROR:
            handler.setLevel(logging.NOTSET)
    return (yield)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What thousands of tests and their imports have left is not looked through at each garbage collection: a fifth of
    the time of tests that make many objects."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    """The session that made the folder stops the server in it, when every worker is done, and removes it."""
    if os.environ.get("ROWMILL_TEST_OWNER") != str(os.getpid()):
        return
    if (SESSION / "prefect" / "rowmill-server.json").exists():
        from infra.orchestration.server import stop_server

        with contextlib.suppress(OSError):
            stop_server()
    shutil.rmtree(SESSION, ignore_errors=True)


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest) -> str:
    """pandas, or cudf with `pytest --engine cudf`: the same test runs on both."""
    return str(request.config.getoption("--engine"))


@pytest.fixture(scope="session")
def xp(engine: str) -> ModuleType:
    """The array module of the engine: numpy or cupy."""
    return importlib.import_module("cupy" if engine == "cudf" else "numpy")


@pytest.fixture(scope="session")
def prefect_server() -> Any:
    """A real Prefect server, one for the session and all its xdist workers; flows of this process report to it."""
    from infra.orchestration.server import ensure_server

    importlib.import_module("prefect.main")  # sets up logging, which drops the handlers of pytest: not within a test
    with (SESSION / "server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        server = ensure_server()
        if server.started:
            copy_database(SESSION / "prefect" / "prefect.db", EMPTY)
    return server


@pytest.fixture(scope="module")
def api(prefect_server: Any) -> Iterator[Any]:
    """A client of the server's API."""
    from prefect import get_client

    with get_client(sync_client=True) as client:
        yield client


def copy_database(source: Path, target: Path) -> None:
    with contextlib.closing(sqlite3.connect(source)) as reads, contextlib.closing(sqlite3.connect(target)) as writes:
        reads.backup(writes)


@pytest.fixture(scope="session")
def new_prefect_home(prefect_server: Any) -> Callable[[Path], Path]:
    """Makes a folder a PREFECT_HOME for a server of a test's own. It has the tables that the session's server had when
    it was new: making them is the longer half of a server's first start."""

    def made(folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        if EMPTY.exists():  # not where a command of another test started the session's server
            copy_database(EMPTY, folder / "prefect.db")
        return folder

    return made


@pytest.fixture(scope="session")
def cluster(engine: str) -> Iterator[Any]:
    """A running cluster of one worker process with two threads, or of a GPU; no default client is left behind."""
    from infra.clusters.model import Cluster
    from tests.clusters import make_cluster

    asked = Cluster(kind="cuda", workers=1) if engine == "cudf" else Cluster(kind="cpu", threads_per_worker=2)
    with make_cluster(asked) as running:
        yield running


@pytest.fixture
def client(cluster: Any) -> Iterator[Any]:
    """A client of the session's cluster, the current one while the test runs."""
    from distributed import Client

    with Client(cluster, set_as_default=False) as connected, connected.as_current():
        yield connected


@pytest.fixture(scope="session")
def object_store() -> Iterator[Any]:
    """An S3 server on the loopback behind a proxy that counts and fails requests; it has the bucket `shop`."""
    for name in ("moto", "obstore"):
        pytest.importorskip(name, reason=f"needs {name}: pip install '.[test]'")
    from tests.object_store import ObjectStore

    store = ObjectStore()
    yield store
    store.close()


@pytest.fixture(scope="session")
def azure_store() -> Iterator[Any]:
    """Azurite behind such a proxy; it has the container `shop`."""
    pytest.importorskip("obstore", reason="needs obstore: pip install '.[test]'")
    from tests.azure_store import COMMAND, AzureStore, is_installed

    if not is_installed():
        pytest.skip(f"needs {COMMAND}: npm install -g azurite")
    store = AzureStore()
    yield store
    store.close()


@pytest.fixture(scope="session")
def gcs_double() -> Iterator[Any]:
    """A double of Google Cloud Storage behind such a proxy; it has the bucket `shop`."""
    pytest.importorskip("obstore", reason="needs obstore: pip install '.[test]'")
    from tests.gcs_double import GcsDouble

    store = GcsDouble()
    yield store
    store.close()


@pytest.fixture(scope="session")
def rounds(prefect_server: Any) -> Iterator[Any]:
    """Functions in forks of one process that has loaded everything and knows the session's server."""
    from tests.faults.rounds import Rounds

    with Rounds() as running:
        yield running
