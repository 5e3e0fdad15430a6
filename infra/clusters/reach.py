"""Checks that workers elsewhere share a job's folders, reach the Prefect server and offer its resources."""

from __future__ import annotations

import glob
import hashlib
import socket
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from infra import gpus
from infra.clusters.model import Engine
from tasks.errors import GiveUpError, JobError

if TYPE_CHECKING:
    from distributed import Client

LOOK_SECONDS = 8.0  # until a scheduler must have answered
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 60.0  # as there
Seen = dict[str, Any]


def workers_at(client: Any) -> dict[str, Any]:
    """The workers of a client's cluster by their addresses, as the scheduler knows them now; {} if it does not answer
    within `ANSWER_SECONDS`.

    Not `Client.scheduler_info`, for the reason that tasks/cluster/dask_pool.py gives.
    """
    with suppress(OSError):
        scheduler = client.sync(client.scheduler.identity, n_workers=-1, callback_timeout=ANSWER_SECONDS)
        return dict(scheduler["workers"])
    return {}


def offering(workers: Mapping[str, Any], resources: Mapping[str, float]) -> set[str]:
    """Return the addresses of the workers that offer all of the resources."""
    offers = {worker: spec.get("resources") or {} for worker, spec in workers.items()}
    return {w for w, offer in offers.items() if all(offer.get(name, 0) >= n for name, n in resources.items())}


def answers_of(client: Client, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """What the function returns on each worker, by the worker's address; without workers that go away meanwhile."""
    answers = client.run(function, *arguments, on_error="return")
    there = {worker: answer for worker, answer in answers.items() if not isinstance(answer, OSError)}
    for answer in there.values():
        if isinstance(answer, Exception):
            raise answer
    return there


def engine_of(client: Client) -> Engine:
    """Return the engine that every worker can use; GiveUpError for workers without rowmill."""
    return "cudf" if all(_usable(client).values()) else "pandas"


def on_gpus(client: Client) -> set[str]:
    """Return the workers that can use a GPU; GiveUpError for workers without rowmill."""
    return {worker for worker, usable in _usable(client).items() if usable}


def _usable(client: Client) -> dict[str, bool]:
    strangers = [worker for worker, spec in answers_of(client, find_spec, "infra").items() if spec is None]
    if strangers:
        raise GiveUpError(
            "workers without rowmill",
            where=", ".join(strangers[:3]),
            do="install this rowmill where they run",
        )
    return answers_of(client, gpus.is_usable)


def check_shared(client: Client, folder: Path, sources: Sequence[str], api_url: str | None = None) -> None:
    """Every worker reads what this process writes to `folder` and the other way round, and all see the same sources.

    Sources with a scheme (s3://..) are not looked at. JobError names host, worker and path of the first that differs;
    GiveUpError the worker that cannot reach `api_url`.
    """
    local = [path for path in sources if "://" not in path]
    probe = folder / f".probe-{uuid.uuid4().hex}"
    probe.write_text(probe.name)
    try:
        answers: dict[str, Seen] = answers_of(client, look, str(probe), local, api_url)
        for worker, seen in answers.items():
            _judge_folder(f"{seen['host']} ({worker}): {folder}", seen, probe)
    finally:
        for left in folder.glob(f"{probe.name}*"):
            left.unlink(missing_ok=True)
    for path in local:
        _judge_source(path, answers)
    for worker, seen in answers.items():
        if seen["api"]:
            raise GiveUpError(
                "a worker cannot reach the Prefect server",
                where=f"{seen['host']} ({worker}): {api_url}",
                why=seen["api"],
                do="set PREFECT_API_URL to a server that every host reaches: prefect server start --host ADDRESS",
            )


def look(probe: str, sources: Sequence[str], api_url: str | None) -> Seen:
    """The view of a worker: the probe's content, its answer beside the probe, its sources, and the server."""
    answer = f"{probe}.{uuid.uuid4().hex}"
    read = None
    wrote = ""
    with suppress(OSError):
        read = Path(probe).read_text()
    try:
        Path(answer).write_text("seen")
    except OSError as error:
        wrote = error.strerror or str(error)
    return {
        "host": socket.gethostname(),
        "read": read,
        "answer": answer,
        "wrote": wrote,
        "sources": {path: signature(path) for path in sources},
        "api": _unreachable(api_url),
    }


def signature(path: str) -> str | None:
    """A digest of names and sizes of what is at a path, in a folder or under a glob; None where there is nothing."""
    if Path(path).is_dir():
        paths = [str(p) for p in Path(path).iterdir()]
    else:
        whole = [path] if Path(path).exists() else []
        paths = whole or glob.glob(path, recursive=True)  # noqa: PTH207, a pattern with an absolute path
    if not paths:
        return None
    sizes = [f"{name}:{Path(name).stat().st_size}" for name in sorted(paths) if Path(name).is_file()]
    return hashlib.sha256("\n".join(sizes or sorted(paths)).encode()).hexdigest()


def check_resources(client: Client, needed: Mapping[str, float], stage: str) -> None:
    """At least one worker offers what a stage takes; else GiveUpError with what they offer, since Dask would wait."""
    workers = workers_at(client)
    if not workers or offering(workers, needed):
        return
    offers = [spec.get("resources") or {} for spec in workers.values()]
    amounts = " ".join(f"{name}={amount:g}" for name, amount in needed.items())
    raise GiveUpError(
        f"no worker offers what {stage} takes: {amounts}",
        where=f"cluster.resources.{stage}",
        why=f"the workers offer {_text(offers)}",
        do=f"start workers with --resources '{amounts}', or change cluster.resources",
    )


def _text(offers: Iterable[Mapping[str, float]]) -> str:
    texts = {" ".join(f"{name}={amount:g}" for name, amount in offer.items()) for offer in offers if offer}
    return "; ".join(sorted(texts)) or "none"


def _judge_folder(where: str, seen: Seen, probe: Path) -> None:
    why = ""
    if seen["read"] != probe.name:
        why = "a file that the flow wrote there is not seen by the worker"
    elif seen["wrote"]:
        why = f"the worker may not write there: {seen['wrote']}"
    elif not Path(seen["answer"]).exists():
        why = "a file that the worker wrote there is not seen by the flow"
    if why:
        raise JobError(
            "a worker does not share the folder of the run",
            where=where,
            why=why,
            do="put output.path, or run.scratch, on storage that all hosts mount at the same path",
        )


def _judge_source(path: str, answers: Mapping[str, Seen]) -> None:
    """Refuse a source that only some workers see, or see differently; ingest refuses a source that no worker sees."""
    views = {worker: seen["sources"][path] for worker, seen in answers.items()} | {"": signature(path)}
    wanted = views[""] or next((view for view in views.values() if view), None)
    for worker, view in views.items():
        if worker and view != wanted:
            raise JobError(
                "a worker does not see the same source",
                where=f"{answers[worker]['host']} ({worker}): {path}",
                why="other files are there" if view else "nothing is there",
                do="put the source on storage that all hosts mount at the same path, or give a URL",
            )


def _unreachable(url: str | None) -> str:
    """Why the server of a URL cannot be reached from here; empty if it can."""
    parts = urlsplit(url or "")
    if not parts.hostname:
        return ""
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname, port), CONNECT_SECONDS).close()
        return ""
    except OSError as error:
        return str(error) or type(error).__name__
