"""What a run reuses of an earlier start of the same job: pieces that wait in an exchange, and files that are whole."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, replace
from pathlib import Path

from tasks.cluster.pool import Pool
from tasks.core.plan import Plan
from tasks.core.row_sizes import row_bytes
from tasks.core.schema import ROW
from tasks.graph.partition_work import StateFolder, Work
from tasks.job import profiles
from tasks.job.request import Request, SavedPlans
from tasks.job.split_work import work_of
from tasks.shuffle.choice import Choice, Exchange, make_exchange
from tasks.shuffle.parts import Part, read_part_records
from tasks.shuffle.pieces import CutSummary
from tasks.shuffle.row_order import list_output_places
from tasks.shuffle.rows_to_files import RowsToFiles, rows_to_files
from tasks.stages.cache_policy import taking_key
from tasks.storage.atomic import read_json, read_record, write_json
from tasks.storage.checksum import is_whole
from tasks.storage.documents import DIGEST, seal
from tasks.storage.staging import Staging

log = logging.getLogger("rowmill")


@dataclass(frozen=True)
class Prepared:
    """What transform and shuffle_write of one split both need.

    The fingerprint covers everything that the bytes of the split's files depend on; `name` is that of the pieces on a
    scheduler.
    """

    shuffle: RowsToFiles
    fingerprint: str
    name: str

    @property
    def plan(self) -> Plan:
        return self.shuffle.plan

    @property
    def work(self) -> Work:
        return self.shuffle.cutting.work


def prepare_split(request: Request, split: str) -> Prepared:
    """Read the plan and the state of a split, and bind the graph to the columns."""
    plans = SavedPlans(request)
    work = work_of(request, plans, split)
    plan: Plan = work.source
    folder = request.staging.folder / "state"
    state = StateFolder(str(folder), read_record(folder / "manifest.json")["digest"])
    training = split in ("", "train") and not request.fitted
    work = replace(work, state=state, training=training)
    if training:
        work = replace(work, cache=taking_key(request, plan), first_row=request.first_row)
    if request.run.profile:
        names = _list_read_columns(request, work, plan)
        known = profiles.load_profile(request, profiles.STATISTICS) if training else None
        unprofiled = tuple(name for name in names if not (known and name in known.columns))
        work = replace(work, profile=unprofiled, compared=names)
    shuffle = rows_to_files(work, plan, request.output, plans.files(split), request.run.min_partition_size)
    fingerprint = request.parts_fingerprint(plan.fingerprint, state.digest, shuffle.files, split)
    profiled = "" if request.run.profile else "-plain"
    return Prepared(shuffle, fingerprint, f"{exchange_prefix(request.staging)}{fingerprint[:16]}{profiled}")


def _list_read_columns(request: Request, work: Work, plan: Plan) -> tuple[str, ...]:
    """List the source columns that transform reads."""
    return tuple(name for name in work.reads(list_output_places(work, request.output, plan)) if name != ROW)


def exchange_prefix(staging: Staging) -> str:
    """Return the beginning of the names of a target's pieces on a scheduler; pieces of other runs have other names."""
    return f"rowmill-{hashlib.sha256(str(staging.folder).encode()).hexdigest()[:12]}-"


def exchange_of(request: Request, ready: Prepared, pool: Pool, kind: str) -> Exchange:
    """Open the exchange to which the pieces of a split go, or in which they wait already."""
    need = ready.plan.rows * row_bytes(ready.shuffle.schema)
    return make_exchange(kind, pool, ready.name, request.staging.folder / "exchange", need)


@dataclass(frozen=True)
class PiecesNote:
    """What transform notes of the pieces of a split in `exchange{split}.json` of the staging folder."""

    fingerprint: str
    choice: Choice
    summary: CutSummary

    def write(self, request: Request, split: str) -> None:
        kind, because, on_host = self.choice
        content = {
            **self.summary.to_json(),
            "fingerprint": self.fingerprint,
            "exchange": kind,
            "because": because,
            "on_host": on_host,
        }
        write_json(_path_of_pieces_note(request, split), seal(content))


def _path_of_pieces_note(request: Request, split: str) -> Path:
    return request.staging.folder / f"exchange{split}.json"


def read_pieces_note(request: Request, split: str, ready: Prepared) -> PiecesNote | None:
    """Read the note of exactly this work; None if it is missing or damaged."""
    content = read_json(_path_of_pieces_note(request, split))
    if not isinstance(content, dict) or content.get("fingerprint") != ready.fingerprint:
        return None
    if content.get(DIGEST) != seal(content)[DIGEST]:
        return None
    choice = Choice(content["exchange"], content["because"], content["on_host"])
    return PiecesNote(ready.fingerprint, choice, CutSummary.from_json(content))


def missing_parts(request: Request, split: str, ready: Prepared, note: PiecesNote) -> tuple[list[Part], list[Part]]:
    """List (all parts of a split, those that are not written yet)."""
    parts = ready.shuffle.parts(note.summary.counts)
    notes = request.staging.notes / split
    folder = request.staging.new / split
    names = {part: part.name(request.output.format) for part in parts}
    return parts, [
        p for p, name in names.items() if read_part_records(notes / f"{name}.json", folder, ready.fingerprint) is None
    ]


def drop_damaged(folder: Path, notes: Path, pool: Pool) -> list[str]:
    """Remove the notes of files in `folder` whose size or digest has changed, so that they are written again; return
    their names.

    The workers read every byte: only files that are whole may go on to the output.
    """
    every = [str(note) for note in sorted(notes.glob("*.json"))]
    whole = pool.map(is_whole, str(folder), every)
    damaged = [Path(note) for note, is_whole in zip(every, whole, strict=True) if not is_whole]
    for note in damaged:
        note.unlink(missing_ok=True)
    names = [note.stem for note in damaged]
    if names:
        log.warning("written again, since damaged or gone: %s", ", ".join(names))
    return names


def halvings(notes: Path) -> int:
    """Count how often the writing of the noted files was divided because memory was short."""
    return sum(int(read_record(note).get("halved", 0)) for note in notes.glob("*.json"))
