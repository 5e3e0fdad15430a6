"""The command `discard`: takes a published version back, or throws away a night of which the gate asks."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.arguments import StorageOptions
from flows.commands.console import terminal
from flows.commands.outputs_on_stores import open_output
from flows.commands.publish import Scratch, Who, discard_batch
from flows.run.announcements import send_waiting
from tasks.errors import JobError

if TYPE_CHECKING:
    from tasks.storage.discarded import DiscardMark
    from tasks.storage.staging import Staging

SHOWN = 5  # versions that a sentence names


def discard(
    out: Annotated[
        str, typer.Argument(metavar="OUT[/v0006]", help="a version, or an output whose run asks", show_default=False)
    ],
    why: Annotated[str, typer.Option(help="of a version: the reason, for those who look at it later")] = "",
    and_later: Annotated[
        bool, typer.Option("--and-later", help="of a version: those that were learned on top of it, too")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="of a version: bring it back")] = False,
    scratch: Scratch = None,
    who: Who = None,
    storage_options: StorageOptions = None,
) -> None:
    """Take a published version back, or throw away the night that waits for an answer of the gate.

    A version (OUT/v0006) is no longer a base of a refit, and its night counts as not published. Nothing is removed: the
    file _discarded.json marks the version, with who, when and why. If it was the newest one, _latest names the newest
    good version before it. Its source files may be learned again: the next night builds on the version before it.
    Versions that were learned on top of it have its ids and counts; they must be taken back with it (--and-later).
    --undo brings a version back, including one that a run set aside as damaged, once it is whole again.

    If the run of an output waits for an answer, the work of that night is removed: nothing of it is published, and the
    run ends as Cancelled.

    [bold]Examples[/bold]

      rowmill discard out/nightly/v0006 --why 'half of the day was missing'
      rowmill discard out/nightly
    """
    from tasks.storage.output_mirror import with_urls

    if not undo:
        with open_output(out, storage_options) as folder:
            if _asks(folder, scratch):
                if and_later:
                    do = "leave it out: a night is discarded alone"
                    raise JobError("--and-later applies to a version", where=out, do=do)
                discard_batch(folder, scratch, who, why)
                return
    console = terminal(soft_wrap=True)
    with open_output(out, storage_options, changes=True) as folder:
        lines = restore_version(folder, who) if undo else discard_version(folder, why, who or "", and_later)
        for line in lines:
            console.print(with_urls(line), markup=False)
        send_waiting([folder.resolve().parent if and_later and not undo else folder])


def _asks(out: Path, scratch: Path | None) -> bool:
    """Tell whether a night of this output is meant: one waits for an answer, or did, or a scratch folder is named."""
    from tasks.gate.question import QUESTION, read_question
    from tasks.storage.staging import Staging

    staging = Staging(out, scratch)
    is_noted = scratch is not None or staging.asks_in is not None
    return is_noted or (out / QUESTION).is_file() or read_question(staging.folder) is not None


def discard_version(out: Path, why: str = "", who: str = "", and_later: bool = False) -> list[str]:
    """Mark a version (or an output without versions) as discarded; what was done, in lines.

    `and_later` marks the versions of the same output that were learned on top of it as well. A JobError if `out` is
    none, and for a version that has such later ones, without `and_later`.
    """
    from tasks.storage.discarded import describe_discard, is_discarded, mark
    from tasks.storage.own_files import MANIFEST, SPLITS, VERSION, find_description, versions_of
    from tasks.storage.staging import Staging

    version = Path(out).resolve()
    if versions_of(version):
        good = _good(version)
        raise JobError(
            "an output of several versions is not discarded as a whole",
            where=str(out),
            why="no night of it waits for an answer",
            do=f"name the version to take back: {_join_version_names(good[::-1])}"
            if good
            else "bring a version back: rowmill discard OUT/VERSION --undo",
        )
    if find_description(version) is None:
        good = [one for one in _good(version.parent) if find_description(one)]
        do = f"there are: {_join_version_names(good[::-1])}" if good else "name the folder of a version, OUT/v0006"
        raise JobError("this is not a version of an output", where=str(out), do=do)
    if version.name in SPLITS and (version.parent / SPLITS[0] / MANIFEST).exists():
        raise JobError("the splits of an output are discarded together", where=str(out), do=f"name {version.parent}")
    later = _on_top_of(version) if and_later or not is_discarded(version) else []
    if later and not and_later:
        raise JobError(
            f"{_join_version_names(later)} {'was' if len(later) == 1 else 'were'} learned on top of {version.name}",
            where=str(out),
            why="they contain its ids and counts: making its night again would count its rows twice",
            do=f"take all of them back: rowmill discard {out} --and-later",
        )
    lines = []
    for one in [*reversed(later), version]:
        shown = out if one == version else one
        if mark(one, why, who):
            lines.append(f"discarded {shown}")
        else:
            lines.append(f"{shown} was discarded before, by {describe_discard(one)}")
    if VERSION.fullmatch(version.name):
        lines += repoint_latest(Staging(version.parent))
        if later := _on_top_of(version):  # of a run that was about to publish
            lines.append(
                f"learned on top of it, and not discarded: {_join_version_names(later)} (--and-later takes them back)"
            )
    return lines


def restore_version(out: Path, who: str | None = None) -> list[str]:
    """Bring a version back that was discarded, or set aside as damaged; what was done, in lines. A DataError for one
    that is damaged. Those who have heard that it was taken back hear of it."""
    from tasks.errors import DataError
    from tasks.job.base_version import find_damage
    from tasks.storage.discarded import is_discarded, read_mark, unmark
    from tasks.storage.output import PublishedOutput, of_other_ids
    from tasks.storage.own_files import VERSION, versions_of
    from tasks.storage.staging import Staging

    version = Path(out).resolve()
    if not is_discarded(version):
        if version in _good(version.parent) and (lines := repoint_latest(Staging(version.parent))):
            return [f"{out} is back already", *lines]  # an earlier command was cut off before it changed _latest
        there = [one for one in versions_of(version) or versions_of(version.parent) if is_discarded(one)]
        do = f"these are discarded: {_join_version_names(there[::-1])}" if there else "none of its output is discarded"
        raise JobError("this is not a discarded version", where=str(out), do=do)
    if what := find_damage(version):
        raise DataError(f"{version.name} is damaged", where=str(out), why=what, do="restore it from a copy first")
    _check_place(version, out)
    with suppress(DataError):  # a damaged mark
        if (known := read_mark(version)) and known.sent:
            _put_restored(version, known, who)
    unmark(version)
    lines = [f"{out} is back"]
    if VERSION.fullmatch(version.name):
        lines += repoint_latest(Staging(version.parent))
        good = _good(version.parent)
        if PublishedOutput(version) in of_other_ids([*map(PublishedOutput, good)]):
            text = f"{good[-1].name} was learned without it: readers of several versions leave it out"
            day = (PublishedOutput(version).manifest.get("dated") or {}).get("date")
            more = f"; run its night again (--date {day}) to have its rows there: a backfill takes it as made"
            lines.append(text + (more if day else ""))
    return lines


def _put_restored(version: Path, known: DiscardMark, who: str | None) -> None:
    """Note the event of a version that is brought back beside its output. Only this imports Prefect."""
    from tasks.core.wings import from_wing
    from tasks.gate.question import name_user

    if note_restored := from_wing("flows/published", "outbox", "note_restored"):
        note_restored(version, known, who or name_user())


def _check_place(version: Path, out: Path) -> None:
    """A JobError for a version whose base is discarded, or with which readers would have the rows of its date twice."""
    from tasks.storage.discarded import is_discarded
    from tasks.storage.output import PublishedOutput, of_other_ids
    from tasks.storage.own_files import versions_of

    output = PublishedOutput(version)
    base = version.parent / output.base.version
    if base != version.parent and is_discarded(base):
        raise JobError(
            f"{base.name} is discarded, and {version.name} was learned on top of it",
            where=str(out),
            do=f"bring that back first: rowmill discard {Path(out).parent / base.name} --undo",
        )
    dated = output.manifest.get("dated")
    good = [one for one in versions_of(version.parent) if one == version or not is_discarded(one)]
    if not dated or output in of_other_ids([*map(PublishedOutput, good)]):  # readers of several versions leave it out
        return
    for other in good:
        if other != version and PublishedOutput(other).manifest.get("dated") == dated:
            raise JobError(
                f"{other.name} has the rows of {dated['date']}, too",
                where=str(out),
                why="readers of all versions would have them twice",
                do=f"take that one back first: rowmill discard {Path(out).parent / other.name}",
            )


def _good(folder: Path) -> list[Path]:
    """Return the versions in a folder that are not discarded, the oldest first."""
    from tasks.storage.discarded import is_discarded
    from tasks.storage.own_files import versions_of

    return [one for one in versions_of(folder) if not is_discarded(one)]


def _join_version_names(versions: list[Path]) -> str:
    """Return the names of versions, for people."""
    shown = ", ".join(version.name for version in versions[:SHOWN])
    return f"{shown} and {len(versions) - SHOWN:,} more" if len(versions) > SHOWN else shown


def _on_top_of(version: Path) -> list[Path]:
    """Return the versions that were learned on top of one and are not discarded."""
    from tasks.job.base_version import find_descendants
    from tasks.storage.discarded import is_discarded

    return [one for one in find_descendants(version) if not is_discarded(one)]


def repoint_latest(staging: Staging) -> list[str]:
    """Let `_latest` of an output name the newest version that is good as far as its JSON says; in lines what it is."""
    from tasks.errors import DataError, HostError
    from tasks.job.base_version import find_newest_good

    lines: list[str] = []
    while True:
        try:
            newest = find_newest_good(staging.target, thorough=False).version
        except (DataError, HostError) as error:
            return [f"_latest stays: {error.what}"]
        if newest is None:
            return ["no good version is left: _latest stays, and the next night is a fit"]
        if not staging.point_to(newest.path):
            return lines
        lines = [f"_latest is {newest.name} now"]
