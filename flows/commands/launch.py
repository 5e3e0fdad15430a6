"""A job from the terminal: a server, the flow in this process, live progress, and a summary a person can act on."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from flows.commands.console import is_debugging
from infra.workers.garbage import loading
from tasks.core.strict_json import JsonObject
from tasks.errors import GiveUpError, JobError, RowmillError

if TYPE_CHECKING:
    from flows.commands.progress_view import ProgressView
    from flows.job.refit_job import AnyJob
    from tasks.storage.staging import Staging

MOST_TEXT = 1_000_000  # bytes of a job file that is looked at before it is read
SOURCES = {"started": "the start of the run: no --date", "begun": "begun earlier and not published"}


@contextmanager
def begin(
    console: Console, what: str, module: str, job: str | None = None, changes: Sequence[str] = ()
) -> Iterator[None]:
    """Say what is being started before anything heavy is imported, and begin to load what its workers need.

    Loading takes as long as all the imports of this process, and goes on in parallel. It ends if the block, which makes
    the job and launches it, fails before there are workers. The workers are those of this host unless the job says
    otherwise: if its file, its recipe or a change has the word cluster, loading waits until the job is known.

    Args:
        console: Where the line goes.
        what: The job as typed.
        module: The module of the flow, such as flows.fit.
        job: The file of the job, or the name of its recipe; None where it has neither.
        changes: The changes of the job as typed.
    """
    line = f"starting {what}: loading Prefect, looking for its server, starting workers"
    console.print(line, soft_wrap=True, markup=False)
    text = "" if job is None else _job_text(job)
    begun = False
    if text is not None and not any("cluster" in words for words in (text, *changes)):
        _quiet_children(is_debugging())
        with loading():
            from flows.run.worker_imports import worker_imports
            from infra import gpus
            from infra.workers import forkserver

            begun = not gpus.visible() and forkserver.start((*worker_imports(module).tasks, "rowmill.cli"))
    try:
        yield
    except BaseException:
        if begun and not _running:
            forkserver.stop()
        raise


def _job_text(job: str) -> str | None:
    """Read the text of a job file or a recipe; None where there is none, or more than a job has."""
    import flows

    for path in (Path(job), Path(flows.__file__).parent / "recipes" / f"{job}.yaml"):
        try:
            if path.is_file() and path.stat().st_size < MOST_TEXT:
                return path.read_text(errors="replace")
        except OSError:
            return None
    return None


def job_of(source: str, changes: Sequence[str], sample: bool = False, date: str | None = None) -> JsonObject:
    """Read a job file or recipe, with changes and the date of `--date`.

    Modules next to the file and in the current folder become importable.
    """
    from flows.job.job import load_job

    make_importable(Path(source).resolve().parent if Path(source).exists() else Path.cwd(), Path.cwd())
    data = load_job(source, [*changes, *_date_change(date)], sample).as_written()
    return {key: value for key, value in data.items() if value is not None}


def make_importable(*folders: Path) -> None:
    """Append folders of a user's own modules to `sys.path`; workers that this process starts inherit it."""
    for folder in folders:
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


def _date_change(date: str | None) -> list[str]:
    return [] if date is None else [f"run.date={json.dumps(date)}"]


def application_of(
    fitted: str, source: Sequence[str], output: str | None, changes: Sequence[str], date: str | None = None
) -> JsonObject:
    """Make the parameters of `apply` from what was typed; modules in the current folder become importable."""
    from flows.job.job import Application, set_key

    make_importable(Path.cwd())
    data: JsonObject = {"fitted": fitted}
    if source:
        data["source"] = {"path": source[0] if len(source) == 1 else list(source)}
    if output:
        data["output"] = {"path": output}
    for change in [*changes, *_date_change(date)]:
        set_key(data, change, Application)
    return data


def refit_of(
    base: str, source: Sequence[str], output: str | None, changes: Sequence[str], date: str | None = None
) -> JsonObject:
    """Make the parameters of `refit` from what was typed; modules in the current folder become importable."""
    from flows.job.job import set_key
    from flows.job.refit_job import Refit

    make_importable(Path.cwd())
    data: JsonObject = {"base": base}
    if source:
        data["source"] = {"path": source[0] if len(source) == 1 else list(source)}
    if output:
        data["output"] = {"path": output}
    for change in [*changes, *_date_change(date)]:
        set_key(data, change, Refit)
    return data


def launch(
    data: JsonObject, module: str, load_flow: Callable[[], Any], console: Console, debug: bool = False
) -> list[str]:
    """Run a flow (preprocess, fit, apply) in this process, under a Prefect server; show its progress.

    Args:
        data: The parameters of the flow.
        module: The module of the flow, such as flows.fit. Workers that are started early import it, too.
        load_flow: Imports the flow and returns it; called when the server answers, since importing takes a second.
        console: Where the lines of the run go.
        debug: Keep the lines of Prefect and Dask on the screen.

    Returns:
        The output folders.

    Raises:
        JobError: The job cannot be right; nothing is started.
        typer.Exit: The run failed. The server has it as a Failed run, and the cause is on the screen.
    """
    began = time.monotonic()
    name = module.rpartition(".")[2]
    from flows.commands.progress_view import ProgressView, show_progress
    from infra.workers.failed_starts import check_address_space

    check_address_space()
    _quiet(debug)
    with loading():
        job, server, flow = _ready(data, console, module, load_flow)
    from prefect import tags
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    from flows.commands.stop_command import stoppable
    from tasks.manifest import Manifest

    splits: tuple[str, ...] = () if name == "fit" else job.source.splits
    watch = ProgressView(_staging(job).folder / "progress.json", splits, console, learns=name != "apply")
    pages: list[str] = []
    _running.append(True)
    _started.append(partial(_at_start, watch, pages, server.ui_url))
    # The thread of Prefect's heartbeats sleeps a second at a time, and the end of a run would wait for it. The run has
    # signs of life of its own, every ten seconds (flows/run/signs_of_life.py).
    silent = temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None})
    try:
        with (
            ends_without_memory(),
            stoppable(_started),
            tags("rowmill"),
            _warnings_to(console),
            show_progress(watch),
            silent,
        ):
            output = flow(**data)
            manifests = [] if name == "fit" else [Manifest.load(folder) for folder in output]
            if output:
                watch.finish(dict(zip(splits, manifests[-len(splits) :], strict=False)) if splits else {})
    except Exception as error:
        raise typer.Exit(_say_failure(error, pages, name, server.api_url)) from None
    finally:
        _started.clear()
    if not output:
        console.print("skipped  nothing was written: there are no data", soft_wrap=True)
        for page in pages:
            console.print(f"run      {page}", soft_wrap=True)
        return []
    if name == "fit":
        _print_next(console, "fitted  ", Path(output), pages)
        return [output]
    _print_summary(console, manifests, pages, time.monotonic() - began)
    return output


@contextmanager
def ends_without_memory() -> Iterator[None]:
    """End this process if one of its threads dies for want of memory, since the others would wait for it for ever.

    The process ends in order, unless that takes longer than half a minute.
    """
    from flows.commands.console import FAILED, say_error

    before = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if not isinstance(args.exc_value, MemoryError):
            before(args)
            return
        say_error(
            "there is no memory left for this process\n  do: look at `ulimit -v`, the container's limit, and `free`"
        )
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)
        os._exit(FAILED)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = before


def _ready(data: JsonObject, console: Console, module: str, load_flow: Callable[[], Any]) -> tuple[Any, Any, Any]:
    """Prepare the job, the server and the flow on the job's cluster, with all that they import."""
    from flows.run.worker_imports import worker_imports

    with console.status("looking at the job"):
        job = _job(data, module)
    from infra.orchestration.server import ensure_server

    with console.status("looking for a Prefect server") as status:
        server = ensure_server(lambda text: status.update(text) if console.is_terminal else console.print(text))
        say_dead_runs(console, _staging(job).target)
    with console.status("loading the flow"):
        from infra.orchestration.task_runner import runner

        # Prefect's own types know its thread and process runners only.
        on_cluster: Any = runner(job.cluster, worker_imports(module))
        flow = load_flow().with_options(task_runner=on_cluster, on_running=[tell_started])
    return job, server, flow


def say_dead_runs(console: Console, output: Path | None = None) -> None:
    """Mark runs of this host that were killed as crashed, all or those to one output, and name them."""
    from flows.commands.dead_runs import mark_dead_runs

    for name in mark_dead_runs(None if output is None else str(output)):
        console.print(f"crashed  the run {name}: its process was killed", soft_wrap=True, markup=False)


def _job(data: JsonObject, module: str) -> AnyJob:
    """Make the job, and begin the slow part of the start of its workers."""
    from flows.job.refit_job import maker_of
    from flows.run.worker_imports import worker_imports
    from infra.clusters.local import prepare

    job = maker_of(module.rpartition(".")[2])(data)
    prepare(job.cluster, worker_imports(module))
    return job


_running: list[bool] = []  # whether a flow has begun to run in this process
# A hook travels with its flow to the workers, so it must be a function of a module; what it tells stays here.
_started: list[Callable[[Any], None]] = []


def tell_started(flow: object, flow_run: Any, state: object) -> None:
    for listener in _started:
        listener(flow_run.id)


def _at_start(watch: ProgressView, pages: list[str], ui_url: str, flow_run_id: object) -> None:
    """Print the page of the run as soon as it has one."""
    from infra.orchestration.server import flow_run_url

    if not pages:
        pages.append(flow_run_url(ui_url, flow_run_id))
        watch.console.print(f"run      {pages[0]}", soft_wrap=True)
    watch.start()


def _staging(job: AnyJob) -> Staging:
    from tasks.storage.staging import Staging

    return Staging.of(job.output, job.run)


def _say_failure(error: Exception, pages: Sequence[str], name: str, api_url: str) -> int:
    """Say why a run failed, and where its page is; return the exit status."""
    from flows.commands.console import UNRECORDED, say_failure
    from flows.run.run_plugins import COMMITTED
    from infra.orchestration.server import expect_answers, refusal

    page = f"\n  run: {pages[0]}" if pages else ""
    if not _is_foreseen(error) and (lost := _find_connection_error(error)):
        expect_answers(False)  # what Prefect would still tell it as this process ends
        status = say_failure(_make_server_gone_error(lost, api_url, COMMITTED), f"the flow {name}", page)
        return UNRECORDED if COMMITTED else status
    if not _is_foreseen(error) and (why := refusal(error)):
        do = "fix it and give the command again"
        error = JobError("the Prefect server refuses the run", where=api_url, why=why, do=do)
    return say_failure(error, f"the flow {name}", page)


def _is_foreseen(error: BaseException | None) -> bool:
    """Tell whether an error, or a cause of it, is rowmill's own."""
    while error is not None and not isinstance(error, RowmillError):
        error = error.__cause__
    return error is not None


def _find_connection_error(error: BaseException | None) -> BaseException | None:
    """Find the error of a connection to the Prefect server in a chain of errors; None where there is none."""
    import httpx

    while error is not None and not isinstance(error, httpx.TransportError):
        error = error.__cause__ or error.__context__
    return error


def _make_server_gone_error(error: BaseException, api_url: str, committed: Sequence[str]) -> RowmillError:
    """Make the error for a server that went away during a run."""
    if committed:
        done = f"the output is committed and whole: {', '.join(committed)}; only the run's page does not say so"
        do = "use the output; start the server again: the run's page shows Running until its state is set by hand"
    else:
        done = "nothing was committed"
        do = "start the server again, or let the next command start its own; the same command goes on"
    why = f"{type(error).__name__}: {error}; {done}"
    return GiveUpError("the Prefect server went away during the run", where=api_url, why=why, do=do)


def _print_summary(console: Console, manifests: Sequence[Any], pages: Sequence[str], seconds: float) -> None:
    """Print rows, files, bytes, seconds per stage and of the whole command, and where to look next."""
    from tasks.core.units import amount
    from tasks.storage.sample_data import describe_sample_data

    root = Path(os.path.commonpath([m.path for m in manifests]))
    for manifest in manifests:
        split = f"{Path(manifest.path).name}: " if len(manifests) > 1 else ""
        nbytes = sum(part["bytes"] for part in manifest.parts)
        dropped = f" ({manifest.rows['dropped']:,} dropped)" if manifest.rows["dropped"] else ""
        stages = ", ".join(f"{name} {numbers['seconds']:.1f}" for name, numbers in manifest.data["stages"].items())
        rows = f"{split}{manifest.rows['out']:,} rows{dropped}"
        text = (
            f"written  {rows} in {len(manifest.parts)} files, {amount(nbytes)}, in {manifest.seconds:.1f} s ({stages})"
        )
        console.print(text, soft_wrap=True, markup=False)
        if dated := manifest.data.get("dated"):
            text = f"date     {dated['date']} ({SOURCES.get(dated['origin'], dated['origin'])}, {dated['timezone']})"
            console.print(text, soft_wrap=True, markup=False)
        if manifest.data.get("left_out"):
            names = ", ".join(manifest.data["left_out"])
            console.print(f"left out {names}: the source lacks what they need", soft_wrap=True, markup=False)
        if manifest.data.get("made_up"):
            console.print(f"made up  {describe_sample_data(manifest.data['made_up'])}", soft_wrap=True, markup=False)
        for line in manifest.data.get("differs_from_fit", ()):
            console.print(f"differs  {line}", soft_wrap=True, markup=False)
    text = f"took     {seconds:.1f} s, with the start of the cluster and the end of the run"
    console.print(text, soft_wrap=True, markup=False)
    report = next((p / "_report.html" for p in (root, Path(manifests[0].path)) if (p / "_report.html").exists()), None)
    _print_next(console, "output  ", root, pages, report)


def _print_next(console: Console, what: str, root: Path, pages: Sequence[str], report: Path | None = None) -> None:
    """Print the place of the output or workflow, and what to look at next."""
    from tasks.storage.output_mirror import address_of, mirror_of

    console.print(f"{what} {address_of(root)}", soft_wrap=True, markup=False)
    if report:
        console.print(f"report   {report}", soft_wrap=True, markup=False)
    for page in pages:
        console.print(f"run      {page}", soft_wrap=True)
    address = address_of(root)
    shorter = os.path.relpath(root) if address == str(root) else address
    mirror = mirror_of(root)
    options = f" --storage-options {mirror.options_name}" if mirror and mirror.options_name else ""
    text = f"next     rowmill inspect {min(shorter, address, key=len)}{options}"
    console.print(text, soft_wrap=True, markup=False)


def _quiet(debug: bool) -> None:
    """Send Prefect's and Dask's own lines to the server, not to the screen; in the workers, too, by the environment."""
    if debug:
        return
    _quiet_children(debug)
    logging.raiseExceptions = False  # of a server that takes no logs a warning tells
    import dask.config
    import distributed  # noqa: F401  # it sets its loggers when it is imported

    dask.config.set({"logging.distributed": "critical"})  # imported before the environment was set, as a rule
    for name in ("distributed", "distributed.client", "tornado.application", "prefect._internal"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _quiet_children(debug: bool) -> None:
    """Set the variables for that, which processes have from their start, or with which Prefect is imported."""
    if debug:
        return
    from infra.environment import INTERNAL_LEVEL

    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault(INTERNAL_LEVEL, "CRITICAL")  # of events that it could not send, say
    os.environ.setdefault("DASK_LOGGING__DISTRIBUTED", "critical")
    os.environ.setdefault("PYTHONWARNINGS", "ignore")


class _Warnings(logging.Handler):
    """Warnings of the run (a lost worker, say) as lines above the progress."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING:
            text = record.getMessage().partition("\n")[0]
            self.console.print(f"warning: {text}", style="yellow", markup=False, soft_wrap=True)


@contextmanager
def _warnings_to(console: Console) -> Iterator[None]:
    from prefect.logging.configuration import setup_logging

    setup_logging()
    handler = _Warnings(console)
    loggers = [logging.getLogger(name) for name in ("prefect.flow_runs", "rowmill")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
