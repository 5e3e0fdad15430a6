"""Workers of this host as forks of one process that has loaded what they need.

A worker with an interpreter of its own imports for three seconds what every other one imports as well. Python's fork
server does so once, beside what this process does meanwhile; its forks have it at once and share the memory.

Only for workers without a GPU: what CUDA has begun, no fork can go on with.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import dask.config
import psutil
import yaml

from infra.environment import BEFORE_START, ENVIRONMENT, METHOD, ROOT, cpu_environment, local_variables, packages_on
from infra.workers.forked import FORKED, IMPORTS_VARIABLE

# Variables that an interpreter, the C library or a library reads once, at its start. A fork gets the others later.
FIXED = (
    "PYTHON",
    "LD_",
    "MALLOC_",
    "GLIBC_",
    "ARROW_",
    "OMP_",
    "OPENBLAS_",
    "MKL_",
    "BLIS_",
    "LC_",
    "LANG",
    "TZ",
    "TMPDIR",
    "HOME",
    "PREFECT_HOME",
    "PREFECT_PROFILES_PATH",
    "VIRTUAL_ENV",
)
TOLD = ("DASK_", "ROWMILL_", "PREFECT_")  # settings, of which the server itself has none

_server: dict[str, str] = {}  # the variables of this process' server; none before it is started


def start(modules: Sequence[str] = ()) -> bool:
    """Begin to load what workers need, `modules` among it; False if that has begun before. Returns at once."""
    if _server or sys.platform != "linux" or _finds_others():
        return False
    _load_settings_of_workers()
    multiprocessing.get_context("forkserver").set_forkserver_preload(["infra.workers.preimport"])
    with _variables({**_of_server(), IMPORTS_VARIABLE: repr(list(modules))}):
        _server.update(os.environ)
        forkserver.ensure_running()
    return True


def stop() -> None:
    """End the server of this process before it has forks: whoever reads this process' output would wait for it."""
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if any("multiprocessing.forkserver" in word for word in child.cmdline()):
                child.kill()
    _server.clear()


def use(modules: Sequence[str] = (), forks: bool = True) -> dict[str, Any]:
    """Have Dask fork the next workers of this process where `forks` allows it and the server can stand for them, else
    give each an interpreter of its own; the arguments of the cluster for it."""
    if forks:
        start(modules)
    wanted = {**os.environ, **_before_start(dask.config.get(BEFORE_START, None) or {})}
    forks = forks and bool(_server) and _select_fixed_variables(wanted) == _select_fixed_variables(_server)
    dask.config.set({METHOD: "forkserver" if forks else "spawn"})
    if not forks:
        return {}
    left = [name for name in _server if name not in wanted]
    return {"env": {**wanted, FORKED: " ".join(left)}}


def _load_settings_of_workers() -> None:
    """Have Dask's own settings for what stands before a worker's start, where distributed is not imported yet: with its
    import, which takes a third of a second, they come too late for a server that starts before it."""
    spec = None if "distributed" in sys.modules else importlib.util.find_spec("distributed")
    if spec is not None and spec.origin is not None:
        text = Path(spec.origin).with_name("distributed.yaml").read_text()
        dask.config.update_defaults(yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))  # noqa: S506


def _finds_others() -> bool:
    """True if the server, which does not have the `sys.path` of this process, would load another flows/ or tasks/."""
    folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    return any(places and ROOT / name not in places for name, places in packages_on(folders).items())


def _of_server() -> dict[str, str | None]:
    """Variables that the server has, or (None) has not, whatever this process has."""
    settings = dict.fromkeys(name for name in os.environ if name.startswith(TOLD) and not name.startswith(FIXED))
    return {**settings, **_before_start(local_variables(cpu_environment(1))), "OMP_NUM_THREADS": "1", **ENVIRONMENT}


def _before_start(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of these settings as Dask sets them in this process before it starts a worker."""
    variables = {name: os.environ.get(name, str(value)) for name, value in settings.items() if value is not None}
    if variables.get("PYTHONHASHSEED", "0") == "0":
        variables["PYTHONHASHSEED"] = "6640"  # workers find equal hashes
    return variables


def _select_fixed_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Select the variables that must be equal in the server and its forks; the number of threads need not be."""
    return {n: v for n, v in variables.items() if n.startswith(FIXED) and n != "OMP_NUM_THREADS"}


@contextmanager
def _variables(changes: Mapping[str, str | None]) -> Iterator[None]:
    """These variables in this process while the block runs."""
    before = {name: os.environ.get(name) for name in changes}

    def put(values: Mapping[str, str | None]) -> None:
        for name, value in values.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    put(changes)
    try:
        yield
    finally:
        put(before)
