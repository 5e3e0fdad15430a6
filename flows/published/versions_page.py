"""The versions of an output side by side: date, rows, ids, verdict, size, what was sent to whom, and who listens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flows.published.unsent import box_of, read_box
from tasks.core.markdown import escape_markdown, markdown_table
from tasks.core.units import amount
from tasks.errors import DataError
from tasks.gate.notes import is_stopped, read_note
from tasks.gate.question import read_question
from tasks.job.publication import read_publication, version_name
from tasks.manifest import Manifest, no_output, outputs
from tasks.storage.discarded import describe_discard, is_discarded, read_mark
from tasks.storage.output import PublishedOutput
from tasks.storage.own_files import find_description, read_latest, versions_of
from tasks.storage.published_copy import PublishedCopy, open_published
from tasks.storage.staging import Staging


def versions_text(out: str | Path, storage_options: str | None = None) -> str:
    """Return the page of an output, by path or URL, as Markdown, the newest version first. A DataError if there is no
    output."""
    with open_published(out, storage_options, "the output", "OUT", every_version=True) as origin:
        if not origin.is_copy:
            origin = PublishedCopy(origin.folder.resolve())
        return origin.with_urls(_versions_text(origin))


def _versions_text(origin: PublishedCopy) -> str:
    """The page; next to a copy lie neither work in progress nor outputs that were made of it."""
    out = origin.folder
    folders = [path for path in (versions_of(out) or [out]) if find_description(path)]
    if not folders:
        raise no_output(out)
    latest = read_latest(out)
    lines = [
        f"# {escape_markdown(str(out))}",
        markdown_table([_row(folder, latest, origin) for folder in reversed(folders)]),
    ]
    if not origin.is_copy:
        lines += _describe_work(out)
    newest = next((one for one in reversed(folders) if not is_discarded(one)), folders[-1])
    if (publication := read_publication(newest)) is not None:
        lines.append(f"{newest.name} is made of: {escape_markdown(', '.join(publication.upstream))}")
    if not origin.is_copy and (below := list(downstream_of(out))):
        lines.append(f"Read by: {escape_markdown(', '.join(map(str, below)))}")
    return "\n\n".join(lines)


def _describe_work(out: Path) -> list[str]:
    """Lines on the work in progress next to an output: what was stopped, what waits."""
    lines: list[str] = []
    staging = Staging(out)
    if is_stopped(staging.folder):
        verdicts = read_note(staging.folder).verdicts.values()
        findings = [one.text for verdict in verdicts for one in verdict.findings if one.level == "stop"]
        lines.append(f"**The gate stopped a night, which is not published**: {escape_markdown('; '.join(findings))}")
    question = read_question(staging.asks_in or staging.folder)
    if question is not None and question.is_open:
        batch = escape_markdown(question.batch_text)
        lines.append(f"**{batch} waits for an answer** until {question.until}: {question.commands}")
    elif question is not None and question.pending:
        lines.append(f"**{escape_markdown(question.batch_text)}**: {question.pending}")
    if waiting := read_box(box_of(out)):
        lines.append(f"Not sent yet: {', '.join(str(event.get('event')) for event in waiting)}")
    return lines


def downstream_of(out: Path) -> Iterator[Path]:
    """Yield the outputs in the same folder whose newest version was made of an output, or of a version of it."""
    for other in sorted(path for path in out.parent.iterdir() if path != out and path.is_dir()):
        try:
            publication = read_publication((versions_of(other) or [other])[-1])
        except (DataError, OSError):  # damaged, or closed to this user
            continue
        if publication is not None and any(out in (Path(one), *Path(one).parents) for one in publication.upstream):
            yield other


def describe_announcement(folder: Path) -> str:
    """Return when a Prefect server heard last of an output, and which; "" for one that was never announced."""
    if is_discarded(folder):
        mark = read_mark(folder)
        return mark.sent or "not yet" if mark and mark.sent is not None else ""
    publication = read_publication(folder)
    if publication is None:
        return ""
    return f"{publication.sent} to {publication.server}" if publication.sent else "not yet"


def _row(folder: Path, latest: str | None, origin: PublishedCopy) -> dict[str, str]:
    name = version_name(folder) or origin.label(folder)
    manifest = PublishedOutput(folder).manifest
    publication = read_publication(folder)
    manifests = [Manifest.read(one, one) for one in outputs(folder)]
    return {
        "version": f"{name} (_latest)" if name == latest else name,
        "date": str((manifest.get("dated") or {}).get("date", "")),
        "rows": f"{sum(one.rows['out'] for one in manifests):,}",
        "ids added": f"{publication.ids_added:,}" if publication and publication.ids_added is not None else "",
        "verdict": str(manifest.get("gate", "")),
        "size": amount(sum(part["bytes"] for one in manifests for part in one.parts)),
        "state": f"discarded by {describe_discard(folder)}" if is_discarded(folder) else "published",
        "sent": describe_announcement(folder),
    }
