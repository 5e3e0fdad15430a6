"""Dask's settings and the variables of worker processes, for every kind of cluster."""

from __future__ import annotations

import importlib.machinery
import ipaddress
import logging
import os
import stat
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dask
import dask.config
from rich.console import Console

from tasks.errors import JobError

BEFORE_START = "distributed.nanny.pre-spawn-environ"
METHOD = "distributed.worker.multiprocessing-method"
INTERNAL_LEVEL = "PREFECT_INTERNAL_LOGGING_LEVEL"  # from which on Prefect prints lines about its own machinery
ROOT = Path(__file__).resolve().parent.parent
PUBLIC = ROOT / "flows" / "public"  # has `import rowmill` in a clone; a wheel has it beside the other packages
PACKAGES = {"flows": ROOT, "tasks": ROOT, "infra": ROOT, "rowmill": PUBLIC if PUBLIC.is_dir() else ROOT}

DASK_SETTINGS: dict[str, Any] = {
    # A lost worker fails its tasks at once: the flow runs the stage again, Dask must not do so behind Prefect's back.
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.worker-saturation": 1.1,
    "distributed.scheduler.work-stealing": True,
    # p2p takes cuDF frames through host Arrow and disk.
    "dataframe.shuffle.method": "tasks",
    # A paused worker would wait for memory that its own stage holds: no pause, better an honest end at 95 %.
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": 0.95,
    # A lost worker is started again by its nanny. Dask would close that for good if, 15 seconds after a first loss, it
    # happened to be starting the worker after a second one.
    "distributed.deploy.lost-worker-timeout": "10 minutes",
    # A hundred looks a second at what every thread does take the interpreter from those that compute.
    "distributed.worker.profile.interval": "100ms",
    "distributed.comm.timeouts.connect": "30s",
    "distributed.admin.large-graph-warning-threshold": "100MB",
    METHOD: "spawn",  # but see infra/workers/forkserver.py
}

# Dask has workers give every freed block back to the system, so that each step of a partition pays for new pages: more
# than half as long again as the work itself. These keep what was freed for the next step.
MALLOC: dict[str, str] = {
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TOP_PAD_": str(2**26),
}

# A stream per thread. Files are written by those threads themselves; KvikIO only reads, in its own small tasks.
GPU_ENVIRONMENT: dict[str, str] = {
    "CUDF_PER_THREAD_STREAM": "1",
    "CUPY_CUDA_PER_THREAD_DEFAULT_STREAM": "1",
    # CuPy's CUB kernels are compiled for tens of seconds when a host first uses them; its own reductions are not.
    "CUPY_ACCELERATORS": "",
    "CUDA_MODULE_LOADING": "LAZY",
    "RAPIDS_NO_INITIALIZE": "True",
}


def use_settings(preloads: Mapping[str, Sequence[str]], starts_workers: bool = True) -> None:
    """Set them in this process, from which they reach the workers, and `preloads`: for each setting of Dask's the
    modules that a process loads first, after the user's own. This process' own lines go quiet.

    A process that connects to workers of others goes on to start its own as it did.
    """
    scratch = own_folder(dask.config.get("temporary-directory", None) or tempfile.gettempdir())
    loaded = {name: _preloads(name, ours) for name, ours in preloads.items()}
    settings = {name: value for name, value in DASK_SETTINGS.items() if starts_workers or name != METHOD}
    dask.config.set({"temporary-directory": scratch, **settings, **loaded})
    logging.getLogger("distributed").setLevel(str(dask.config.get("logging.distributed", "error")).upper())
    _put_own_packages_first()


def keep_on_without_reader() -> None:
    """Let this process go on when nobody reads its output any more (`| head`, a worker of Prefect that is killed).

    Prefect logs with rich, whose default is to leave the process by SystemExit in whatever thread has a line to print.
    """
    setattr(Console, "on_broken_pipe", _be_quiet)  # noqa: B010  # which rich lets others choose


def _be_quiet(console: Console) -> None:
    console.quiet = True


def own_folder(place: str) -> str:
    """Return a folder of this user alone below one that others may write to, as /tmp is; made if it is not there.

    Dask loads pickles from its scratch folder and puts it first into `sys.path`: who can write into it runs code.
    JobError where it cannot be made.
    """
    folder = Path(place)
    if folder.name != (name := f"rowmill-{os.getuid()}"):
        folder = folder / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
            folder.chmod(0o700)
            return str(folder)
        return tempfile.mkdtemp(prefix=f"{name}-", dir=folder.parent)  # another user was there before
    except OSError as error:
        raise JobError(
            "the folder for spilled data cannot be made",
            where=str(folder),
            why=error.strerror or str(error),
            do="set cluster.local_directory, or TMPDIR, to a folder that you can write to",
        ) from None


def cpu_environment(threads: int | None) -> dict[str, str | None]:
    """Variables of a worker on the CPU; without `threads` it takes all cores of a host that is not known here."""
    # OMP_NUM_THREADS is also the size of Arrow's thread pool, which Dask would cut down to one.
    return {"OMP_NUM_THREADS": str(threads) if threads else None, "ARROW_DEFAULT_MEMORY_POOL": "mimalloc", **MALLOC}


def spawn_environment(variables: Mapping[str, str | None]) -> dict[str, Any]:
    """The setting for variables that must stand before a worker's interpreter starts; those of its host's own win."""
    return {BEFORE_START: _merge_variables(variables)}


def local_variables(variables: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the variables of workers that this process starts, whose lines would mix with its own."""
    return _merge_variables({"DASK_LOGGING__DISTRIBUTED": "error", **variables})


def _merge_variables(variables: Mapping[str, str | None]) -> dict[str, Any]:
    return {**(dask.config.get(BEFORE_START, {}) or {}), "PYTHONSAFEPATH": "1", **variables}


_set_here: dict[str, str] = {}  # variables of this process that a cluster's start set


def local_environment(variables: Mapping[str, str | None]) -> dask.config.set:
    """The setting for `local_variables`.

    Dask sets the variables in this process, for good, and variables of the process win over the setting: the next
    cluster would get the threads of the one before. Therefore the variables of an earlier cluster are removed first.
    """
    for name, value in _set_here.items():
        if os.environ.get(name) == value:
            del os.environ[name]
    variables = local_variables(variables)
    _set_here.update({n: str(value) for n, value in variables.items() if value is not None and n not in os.environ})
    return dask.config.set({BEFORE_START: variables})


def _preloads(setting: str, ours: Sequence[str]) -> list[str]:
    """Modules that workers, or the scheduler, load first: the user's own, and ours."""
    modules = dask.config.get(setting, None) or []
    own = [modules] if isinstance(modules, str) else list(modules)
    return list(dict.fromkeys([*own, *ours]))


def _put_own_packages_first() -> None:
    """Make workers, which inherit `sys.path`, import this rowmill, not a flows/ or tasks/ of the current folder."""
    on_path = packages_on(sys.path, tuple(PACKAGES))
    missing = [folder for name, folder in PACKAGES.items() if folder / name not in on_path[name]]
    sys.path[:0] = [str(folder) for folder in dict.fromkeys(missing)]


def packages_on(path: Sequence[str], packages: Sequence[str] = ("flows", "tasks", "infra")) -> dict[str, list[Path]]:
    """The folders that a list of folders has for each of these packages. A folder without `__init__.py`, as a clone
    called rowmill is, does not count: every package on a later folder wins over it."""
    finder = importlib.machinery.PathFinder
    specs = {name: finder.find_spec(name, path) for name in packages}
    places = {n: (spec.submodule_search_locations or []) if spec and spec.origin else [] for n, spec in specs.items()}
    return {name: [Path(place).resolve() for place in locations] for name, locations in places.items()}


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# Nothing leaves the host, no worker starts a server of its own, SQLite waits for its lock instead of warning.
ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
    "PREFECT_SERVER_DATABASE_TIMEOUT": "60",
    "PREFECT_CLI_PROMPT": "false",
    # Half a minute for a server that is started again, not a minute for each of the calls that a run makes in vain.
    "PREFECT_CLIENT_MAX_RETRIES": "4",
}
