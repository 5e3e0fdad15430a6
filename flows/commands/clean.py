"""The command `clean`: work in progress that no run will go on with."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.arguments import StorageOptions
from flows.commands.console import terminal
from flows.run.announcements import send_waiting
from tasks.errors import JobError

if TYPE_CHECKING:
    from tasks.storage.output_mirror import OutputMirror
    from tasks.storage.retention import Leftover


def clean(
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="PATH..", help="outputs, folders of outputs, scratch folders; URLs")
    ] = None,
    older_than: Annotated[str, typer.Option(metavar="AGE", help="not touched since: 7d, 12h, 30m; 0: any age")] = "7d",
    runs: Annotated[
        str | None, typer.Option(metavar="AGE", help="also old runs on the Prefect server that ended before: 90d")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only say what would be removed")] = False,
    storage_options: StorageOptions = None,
) -> None:
    """Remove leftovers of interrupted runs and outputs that have been replaced.

    These are the folders .NAME.rowmill next to outputs and in scratch folders, and .NAME.rowmill-old-TIME, once
    run.keep_replaced has passed. Outputs are not touched. It keeps what a run is working on, what is younger than
    --older-than, a night that waits for an answer of the gate (unless the age is 0, and then it says so), and every
    file that rowmill did not write. An interrupted swap is finished first. Old versions of an output are removed by the
    run that writes a new one: output.keep_versions. Events of outputs that the Prefect server has not received are
    sent.

    Of an output on an object store (its URL), these are prefixes that no run has published, and those of replaced
    outputs. Parts of uploads that were cut off are not listed by all stores: infra/README.md has the rule of a bucket
    that removes them.

    --runs removes runs of rowmill that ended longer ago than AGE from the Prefect server, with their task runs, logs
    and artifacts: each run adds 0.3 MB to its database. Outputs stay. Without this option no runs are removed.

    [bold]Examples[/bold]

      rowmill clean out --dry-run

      rowmill clean /data/out /scratch --older-than 12h

      rowmill clean --runs 90d
    """
    import time

    from tasks.core.units import amount
    from tasks.storage.allowed_roots import is_local
    from tasks.storage.credentials import COMMAND, storage
    from tasks.storage.output_mirror import find_mirror, is_mirror
    from tasks.storage.retention import leftovers, remove, seconds_of

    console = terminal()
    least = seconds_of(older_than)
    freed = 0
    age = seconds_of(runs) if runs is not None else None
    if not paths and age is None:
        raise JobError("nothing to clean was named", do="give an output, a folder of outputs, or --runs 90d")

    def say(verb: str, text: str) -> None:
        console.print(f"{verb:<8} {text}", soft_wrap=True, markup=False)

    options = storage(storage_options, COMMAND)
    mirrors = [find_mirror(url, options) for url in paths or [] if not is_local(url)]
    for mirror in filter(None, mirrors):
        freed += _clean_store(mirror, least, older_than, dry_run, say)
    folders = [Path(path.removeprefix("file://")) for path in paths or [] if is_local(path)]
    folders += [mirror.folder for mirror in mirrors if mirror and mirror.around.is_dir()]
    work = leftovers([folder for folder in folders if folder.exists() or not is_mirror(folder)])
    for line in send_waiting(folders, dry_run):
        console.print(line, soft_wrap=True, markup=False)
    for leftover in work:
        what = f"{leftover.folders[0]}, {amount(leftover.nbytes)}, {_age(leftover.seconds)} old"
        if leftover.until is not None:
            what = f"{leftover.folders[0]}, {amount(leftover.nbytes)}, an output that was replaced"
            if least and leftover.until > time.time():
                say("kept", f"{what}: readers may use it for another {_age(leftover.until - time.time())}")
                continue
        elif leftover.seconds < least:
            say("kept", f"{what}: younger than {older_than}{waits(leftover, '; ')}")
            continue
        elif least and waits(leftover):
            say("kept", f"{what}: {waits(leftover)}")
            continue
        what += waits(leftover, "; ")
        if dry_run:
            freed += leftover.nbytes
            say("would go", what + (", once the swap that was cut off is finished" if leftover.is_cut_off else ""))
            continue
        done = remove(leftover)
        freed += done.freed
        if done.finished:
            say("finished", f"{leftover.target}: a swap was cut off; {done.finished}")
        if done.why:
            say("kept", f"{what}: {done.why}")
        elif done.freed or not done.finished:
            say("removed", what)
    if paths:
        say("would free" if dry_run else "freed", amount(freed))
    if age is not None:
        say(*_remove_old_runs(age, str(runs), dry_run))


def _clean_store(mirror: OutputMirror, least: float, age: str, dry_run: bool, say: Callable[[str, str], None]) -> int:
    """Remove what runs have left of an output on an object store; return how many bytes are free now, or would be."""
    import time

    from tasks.core.units import amount
    from tasks.storage.staging import Staging

    removed = {}
    for leftover in mirror.list_leftovers():
        what = f"{mirror.url}/{leftover.prefix}, {amount(leftover.nbytes)}, {_age(leftover.seconds)} old"
        if leftover.until is not None and least and leftover.until > time.time():
            say("kept", f"{what}: readers may use it for another {_age(leftover.until - time.time())}")
        elif leftover.until is None and leftover.seconds < least:
            say("kept", f"{what}: younger than {age}")
        else:
            removed[leftover.prefix] = leftover.nbytes, what
    try:
        with Staging(mirror.folder).hold_lock() if removed and not dry_run else nullcontext():
            mirror.remove_leftovers([] if dry_run else [*removed])
    except JobError as error:
        say("kept", f"what lies below {mirror.url}: {error.what}, {error.why}")
        return 0
    for _, what in removed.values():
        say("would go" if dry_run else "removed", what)
    return sum(nbytes for nbytes, _ in removed.values())


def _remove_old_runs(seconds: float, age: str, dry_run: bool) -> tuple[str, str]:
    """What became of old runs on the Prefect server."""
    from infra.orchestration.server import ensure_server

    server = ensure_server()
    from flows.commands.old_runs import prune_runs

    done = prune_runs(seconds, dry_run)
    between = f", which ended from {done.first:%Y-%m-%d} to {done.last:%Y-%m-%d}" if done.first and done.last else ""
    what = f"{done.runs:,} run(s) older than {age} with {done.artifacts:,} artifact(s){between}"
    return "would go" if dry_run else "removed", f"{what}, from {server.ui_url}"


def waits(leftover: Leftover, before: str = "") -> str:
    """What a night of which the gate asked, in a leftover, waits for; "" without one."""
    from tasks.gate.question import read_question
    from tasks.storage.staging import Staging

    staging = Staging(leftover.target)
    elsewhere = staging.asks_in if staging.beside in leftover.folders else None
    for folder in filter(None, (*leftover.folders, elsewhere)):
        question = read_question(folder)
        if question is not None and question.pending:
            return f"{before}{question.pending}"
    return ""


def _age(seconds: float) -> str:
    """In the largest unit of which there are two at least.

    >>> _age(5), _age(7200), _age(200_000)
    ('5 s', '2 h', '2 d')
    """
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
