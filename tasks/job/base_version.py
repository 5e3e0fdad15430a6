"""The base of a refit: the newest good version of an output or of a fitted workflow.

A good version was published, agrees with its manifest and digests, and was not taken back (`rowmill discard`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tasks.core.strict_json import JsonObject, decode_floats
from tasks.errors import DataError, HostError, JobError
from tasks.graph.refit_history import check_history, count_learned_rows
from tasks.graph.saved_workflow import find_fitted_folder, read_fitted
from tasks.graph.state import check_saved
from tasks.job.output_check import list_damages
from tasks.job.request import Request
from tasks.manifest import Manifest, outputs
from tasks.storage.allowed_roots import check_path
from tasks.storage.atomic import no_space
from tasks.storage.checksum import digest
from tasks.storage.discarded import describe_discard, find_marked_folder, mark
from tasks.storage.output import PublishedOutput
from tasks.storage.output_mirror import address_of, is_copied, is_mirror, list_objects, refresh_mirror
from tasks.storage.own_files import FITTED, MANIFEST, SPLITS, WORKFLOW, find_description, lacking, splits_of
from tasks.storage.staging import Staging


@dataclass(frozen=True)
class BaseVersion:
    """A good version (v0006; for an output without versions its folder), the folder of its fitted workflow, and the
    checked content of `workflow.json`."""

    output: PublishedOutput
    workflow: Path
    data: JsonObject

    @property
    def name(self) -> str:
        return self.output.name

    @property
    def path(self) -> Path:
        return self.output.path

    @property
    def rows(self) -> int:
        """The rows of all batches that were learned.

        Versions that were written before refits existed have no history: of an output, the manifest has the rows that
        were read; a fitted workflow does not say, and counts as 0.
        """
        history = self.data.get("history")
        if history:
            return int(history["rows"])
        manifest = self.output.manifest
        return int(manifest["rows"]["in"]) if manifest else 0

    @property
    def learned_rows(self) -> int:
        """The rows from which all batches were learned, without those of other splits or left out by rules."""
        history = self.data.get("history")
        return count_learned_rows(history) if history else self.rows

    @property
    def settings(self) -> dict[str, JsonObject]:
        """What the job that wrote it said of its `output` (without the path), `checks` and `contract`, as far as it is
        noted: in the manifest, or in the `workflow.json` of a fit, which has none."""
        noted = {**self.data, **self.output.manifest}
        return {
            name: decode_floats(noted[name])
            for name in ("output", "checks", "contract")
            if isinstance(noted.get(name), dict)
        }

    @property
    def day(self) -> str:
        """The run date of its last batch, `2026-11-22`; the day on which it was written if it names no batch."""
        batches = (self.data.get("history") or {}).get("nights", [])
        if batches:
            return str(batches[-1]["day"])
        return datetime.fromtimestamp((self.workflow / FITTED).stat().st_mtime, UTC).date().isoformat()


@dataclass(frozen=True)
class BaseChoice:
    """The choice of a base.

    version: the base; None if nothing was published yet.
    damaged: sentences on newer versions that are damaged, by their folders.
    discarded: the names of newer versions that were taken back.
    on_discarded: a sentence on the base if the version that it was learned on top of was taken back.
    """

    version: BaseVersion | None
    damaged: Mapping[Path, str] = field(default_factory=dict)
    discarded: tuple[str, ...] = ()
    on_discarded: str = ""

    def all_discarded(self, root: Path) -> str:
        """Describe a base whose versions are all discarded; "" if one is good, or if there is none."""
        if self.version is not None or not self.discarded:
            return ""
        names = ", ".join(self.discarded)
        return (
            f"every version at {address_of(root)} is discarded ({names}): this run is a fit, and all values get new ids"
        )


def explain_no_base(root: Path) -> str:
    """Explain why no version at a path, which is not damaged, can be a base."""
    is_there = root.is_dir() and any(root.iterdir())
    return "every version is discarded" if is_there else "the folder does not exist, or is empty"


def find_newest_good(root: Path, thorough: bool = True) -> BaseChoice:
    """Find the newest good version at a path: a folder of versions, or an output or fitted workflow without versions.

    `thorough` reads every byte, as `rowmill verify` does; else manifests, `workflow.json` and the sizes of files are
    looked at. A JobError for a folder that is something else, a DataError if no version is good and one of them is
    damaged. A HostError for a version that cannot be read, or has no manifest: whether it is damaged is not known.
    """
    refresh_mirror(root)
    versions = PublishedOutput(root).versions
    if not versions:
        if not root.exists() or (root.is_dir() and not any(root.iterdir())):
            return BaseChoice(None)
        if not find_description(root):
            raise JobError(
                "the base is not an output of rowmill",
                where=f"base: {address_of(root)}",
                why=f"it has no {MANIFEST}, no {FITTED} and no versions",
                do="give the output.path of earlier runs; or, in a job for rowmill run, base: none",
            )
        versions = (PublishedOutput(root),)
    damaged: dict[Path, str] = {}
    discarded: list[str] = []
    for version in reversed(versions):
        check_path(address_of(version.path), "base")
        if version.is_discarded:
            discarded.append(version.name)
            continue
        try:
            good = _check_version(version, thorough)
            return BaseChoice(good, damaged, tuple(discarded), _describe_discarded_base(version, root))
        except HostError:
            raise
        except OSError as error:
            raise _make_unknown_error(version.path, error.strerror or str(error)) from error
        except DataError as error:
            if thorough:
                check_readable(version.path)
            damaged[version.path] = f"{version.name}: {error.what}" + (f" ({error.why})" if error.why else "")
    if damaged:
        raise DataError(
            "no version of the base is good",
            where=address_of(root),
            why="; ".join(damaged.values()),
            do="restore one from a copy; or start over with rowmill run and base: none, which gives all values new ids",
        )
    return BaseChoice(None, {}, tuple(discarded))


def _make_unknown_error(version: Path, why: str) -> HostError:
    return HostError(
        f"it is not known whether {version.name} is whole",
        where=address_of(version),
        why=why,
        do="give this user read access, or mount its disk, and run the same job again; if it is lost: rowmill discard "
        f"{address_of(version)}, or, if that is refused, remove the folder or link",
    )


def check_readable(version: Path) -> None:
    """Raise a HostError if a file of a version cannot be read: this does not prove that the version is damaged."""
    try:
        for folder, _, files in os.walk(version, onerror=_raise):
            for file in files:
                digest(Path(folder, file))
    except OSError as error:
        raise _make_unknown_error(version, f"{error.filename or version}: {error.strerror or error}") from error


def _raise(error: OSError) -> None:
    raise error


def discard_damaged(choice: BaseChoice, stops: bool) -> list[str]:
    """Discard damaged versions that are newer than the base, as `rowmill discard` does, so that they are not read.

    Returns sentences on what was done. With `stops`, and for an output that was copied to a storage, a DataError is
    raised instead.
    """
    lines = list[str]()
    for version, what in choice.damaged.items():
        run_date = _run_date_of(version)
        place = address_of(version)
        do = ""
        if choice.version and is_copied(version):
            older = address_of(choice.version.path)
            do = f"copy it again; or learn on top of the version before it: base: {older}"
        elif stops:
            discard = f"rowmill discard {place}"
            do = f"restore it from a copy; or take it back ({discard}), and run its night, {run_date}, again"
        if do:
            raise DataError("the newest version is damaged", where=place, why=what, do=do)
        with no_space(version):
            mark(version, f"damaged: {what}", "rowmill")
        lines.append(
            f"{what}: it is set aside like a discarded version, and its night is to be run again: {run_date}. "
            f"Once it is restored, this brings it back: rowmill discard {place} --undo"
        )
    if lines and choice.version:
        Staging(choice.version.path.parent).point_to(choice.version.path)
    return lines


def _run_date_of(version: Path) -> str:
    """Return the run date of a version: by its manifest or its workflow, or its last change if both are damaged."""
    output = PublishedOutput(version)
    dated = output.manifest.get("dated")
    if isinstance(dated, dict):
        return str(dated.get("date"))
    return (
        str(output.batches[-1]["day"])
        if output.batches
        else datetime.fromtimestamp(version.stat().st_mtime, UTC).date().isoformat()
    )


def _describe_discarded_base(version: PublishedOutput, root: Path) -> str:
    """Describe a version that was published while the one below it was taken back; "" for all others."""
    name = version.base.version
    below = PublishedOutput(root / name)
    if version.path == root or not name or not below.is_discarded or not version.base.means(below.state):
        return ""
    return (
        f"{version.name} was learned on top of {name}, which is discarded: the ids and counts of {name} go on. "
        f"To take {version.name} back as well: rowmill discard {version.path}"
    )


def describe_other_ids(request: Request) -> str:
    """Describe a run without a base that writes a version next to others, which have other ids; "" if it does not."""
    versions = PublishedOutput(request.staging.target).versions if request.output.on_existing == "version" else ()
    earlier = [version.name for version in versions if not version.is_discarded and version.has_ids]
    if not earlier:
        return ""
    names = f"{earlier[0]} to {earlier[-1]}" if len(earlier) > 1 else earlier[0]
    return (
        f"this run has no base and gives all values new ids: the earlier versions ({names}) have other ids, and "
        "readers of several versions leave them out from now on"
    )


def check_not_discarded(request: Request) -> None:
    """Raise a JobError if the version that a run learns on top of or applies was discarded since the run began."""
    known = request.origin
    if known is None or known.discarded:
        return
    version = find_marked_folder(Path(known.path))
    if version is None:
        return
    what = "fitted workflow"
    do = "it applies the newest good version, where you name the output"
    if request.base:
        what = "base"
        do = "it learns on top of the newest good version"
    raise JobError(
        f"the {what} of this run was discarded: {version.name}",
        where=str(version),
        why=f"by {describe_discard(version)}, while the run worked; nothing is published",
        do=f"run the same job again: {do}",
    )


def find_descendants(version: Path) -> list[Path]:
    """Find the versions of the same output that were learned on top of a version, directly or not, the oldest first.

    Their manifests say so; those without one, of fitted workflows, in their changes.json, by the name alone. A version
    whose state cannot be read is identified by its name.
    """
    chain: list[Path] = []
    states = {version.name: PublishedOutput(version).state}
    for one in PublishedOutput(version.parent).versions:
        if one.base.version in states and one.base.means(states[one.base.version]):
            chain.append(one.path)
            states[one.name] = one.state
    return chain


def find_damage(version: Path) -> str:
    """Read a version completely and describe its damage; "" for a good one."""
    try:
        _check_version(PublishedOutput(version), thorough=True)
    except DataError as error:
        return f"{error.what} ({error.why})" if error.why else error.what
    return ""


def describe_batches(data: JsonObject) -> str:
    """Describe the batches that a `workflow.json` has learned, for people: `30 nights until 2026-11-22`."""
    batches = (data.get("history") or {}).get("nights", [])
    if not batches:
        return "nights that it does not name"
    return f"{len(batches):,} night{'s' if len(batches) > 1 else ''} until {batches[-1]['day']}"


def _check_version(output: PublishedOutput, thorough: bool) -> BaseVersion:
    """Check a version and read its fitted workflow; a DataError says what is damaged."""
    version = output.path
    if not find_description(version):
        raise _make_unknown_error(version, f"it has neither {MANIFEST} nor {FITTED}")
    for folder in outputs(version):
        Manifest.load(folder)
        # the parts in an object store are checked by their sizes, below
        if thorough and not is_mirror(version) and (lines := list_damages(folder)):
            raise DataError(lines[0], where=str(folder))
    if lacks := lacking(version, list_objects(version)):
        raise DataError(f"{lacks[0]} is missing or cut off", where=str(version))
    if (version / SPLITS[0]).is_dir() and not (version / FITTED).exists():
        for split in splits_of(version):
            if not (version / split / MANIFEST).exists():
                raise DataError(f"{split}/{MANIFEST} is missing", where=str(version))
    folder = find_fitted_folder(version)
    if folder != version and folder.name != WORKFLOW:
        raise DataError(f"{WORKFLOW} is missing", where=str(version))
    data = read_fitted(folder)
    if thorough:
        check_saved(folder, data.get("state"))
        check_history(folder, data)
    return BaseVersion(output, folder, data)
