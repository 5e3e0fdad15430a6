"""The manifest of an output: rows, parts with checksums, schema, settings."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pydantic import Field

from tasks.core.dtypes import is_list, leaf_type
from tasks.core.merlin import merlin_text
from tasks.core.schema import Schema
from tasks.core.strict_json import JsonObject
from tasks.errors import DataError, JobError, near
from tasks.storage.allowed_roots import check_path
from tasks.storage.atomic import read_json
from tasks.storage.discarded import is_discarded
from tasks.storage.documents import (
    DIGEST,
    RESTORE,
    ColumnForm,
    Count,
    DatedForm,
    Form,
    Inside,
    Names,
    Number,
    check_columns,
    parse_document,
    seal,
)
from tasks.storage.files import local_folder
from tasks.storage.output import PublishedOutput, of_begun_ids, of_other_ids
from tasks.storage.own_files import MANIFEST, SPLITS, current, versions_of
from tasks.storage.published_copy import PublishedCopy, open_published

FORMAT = 1
ORIGINS = {  # where the date of a run comes from; `at` is its time
    "run.date": "of run.date",
    "scheduled": "of the run's schedule, {at}",
    "started": "of the run's start, {at}, since run.date is empty",
    "begun": "of an earlier run, which was begun and not published",
}
LEFT_OUT = "%s: left out, since some versions lack it or have it in another type or with other ids: %s"
log = logging.getLogger("rowmill")


class PartForm(Form):
    path: Inside
    rows: Count
    bytes: Count
    xxh3_128: str


class FooterForm(Form):
    path: Inside
    bytes: Count
    xxh3_128: str


class RowsForm(Form):
    in_: Count = Field(alias="in")
    other_splits: Count = 0
    dropped: Count
    added: Count
    out: Count


class ResourcesForm(Form):
    core_seconds: float = 0.0
    gpu_seconds: float = 0.0
    energy_joules: float = 0.0
    cost: float = 0.0
    storage_gets: Count = 0
    storage_lists: Count = 0
    storage_heads: Count = 0
    storage_puts: Count = 0
    storage_deletes: Count = 0
    storage_bytes_read: Count = 0
    storage_bytes_written: Count = 0
    storage_cost: float = 0.0


class StageForm(ResourcesForm):
    seconds: float
    rows: Count
    bytes: Count
    retries: Count = 0
    halved: Count = 0


class ChosenForm(Form):
    rows: Count
    row_bytes: Count


class OutputForm(Form):
    shuffle: str
    files: Count
    files_chosen: ChosenForm | None = None
    format: Literal["parquet", "arrow", "csv", "orc"]
    partition_on: Names = []


class BaseForm(Form):
    version: str
    path: str = ""
    state: str = ""
    rows: Count = 0


class ManifestForm(ResourcesForm):
    format: Number
    rowmill: str = ""
    run: str = ""
    created: str = ""
    rows: RowsForm
    parts: list[PartForm]
    footers: list[FooterForm] = []
    profile: list[FooterForm] = []
    schema_: list[ColumnForm] = Field(alias="schema")
    labels: Names = []
    left_out: Names = []
    dated: DatedForm | None = None
    checks: JsonObject = {}
    contract: JsonObject = {}
    base: BaseForm | Literal["none"] | None = None
    output: OutputForm
    seed: int = 0
    permutation: int = 0
    versions: dict[str, str] = {}
    engine: str = ""
    fingerprints: dict[str, str] = {}
    exchange: str = ""
    seconds: float
    stages: dict[str, StageForm]
    gate: Literal["pass", "warn", "published by hand"] | None = None
    digest: str = ""


@dataclass(frozen=True)
class Manifest:
    """What an output folder says of itself: rows, parts with their digests, schema, settings, versions and times.

    `Manifest.load(folder)` reads it, `Transformed.to_parquet` returns it. `path` is the folder of the parts, `data` the
    content of `_manifest.json`.
    """

    path: str
    data: JsonObject = field(repr=False)

    @property
    def rows(self) -> dict[str, int]:
        """Numbers of rows: in of the source, other_splits of them (only if it is divided), dropped or added, out."""
        return dict(self.data["rows"])

    @property
    def parts(self) -> list[JsonObject]:
        """The files of the output in their order: path in the folder, rows, bytes and digest of each."""
        return list(self.data["parts"])

    @property
    def empty_files(self) -> str:
        """A sentence about files without rows; "" if every file has rows. More files than rows leave some empty."""
        empty = sum(not part["rows"] for part in self.parts)
        if not empty:
            return ""
        return (
            f"{empty:,} of the {len(self.parts):,} files are empty: {self.rows['out']:,} rows came out; "
            "output.files sets how many files are written"
        )

    @property
    def partitioning(self) -> pa.dataset.Partitioning | None:
        """The folders of `partition_on` with their exact types, for `pandas.read_parquet(out, partitioning=..)`.

        Without it pandas and pyarrow guess the types from the folders' names. None for an output without such folders.
        """
        import pyarrow.dataset as ds

        names = self.data["output"].get("partition_on")
        if not names:
            return None
        return ds.partitioning(Schema(self.schema[name] for name in names).to_arrow(), flavor="hive")

    def to_merlin(self) -> str:
        """The columns as the text of Merlin's `schema.pbtxt`: types, tags, ranges of ids, list lengths, embeddings.

        Path("schema.pbtxt").write_text(Manifest.load("out/toy").to_merlin())
        """
        return merlin_text(self.schema)

    @property
    def schema(self) -> Schema:
        """The columns with types, tags, ranges of ids and embedding sizes; `schema.with_tag(Tags.TARGET)` selects by
        tag."""
        return Schema.from_json(self.data["schema"])

    @property
    def seconds(self) -> float:
        """How long the run took."""
        return float(self.data["seconds"])

    @staticmethod
    def load(folder: str | Path, storage_options: str | Mapping[str, Any] | None = None) -> Manifest:
        """The manifest of an output folder, or of its latest version; also of a URL, whose `path` is a URL, too.

        `storage_options` are those of the storage of a URL, or their name (`ROWMILL_STORAGE_<NAME>`). A DataError for a
        folder that is not an output, and for a manifest that was changed or is of a newer format.
        """
        with open_published(folder, storage_options, "the output", "path") as copy:
            path = current(copy.folder)
            manifest = Manifest.read(path, copy.folder)
            if manifest.is_changed:
                raise DataError(
                    f"{MANIFEST} was changed since it was written",
                    where=str(path / MANIFEST),
                    why="its digest is not that of its content",
                    do=RESTORE,
                )
            return replace(manifest, path=copy.place_of(manifest.path))

    @property
    def is_changed(self) -> bool:
        """Whether the manifest was changed after it was written; manifests without a digest count as unchanged."""
        known = self.data.get(DIGEST)
        return known is not None and known != seal(self.data)[DIGEST]

    @staticmethod
    def read(path: Path, folder: str | Path) -> Manifest:
        """The manifest in the folder `path`, every field checked, also if it was changed; errors name `folder`."""
        data = read_json(path / MANIFEST)
        if not isinstance(data, dict) or "parts" not in data:
            splits = [path / split for split in SPLITS if (path / split / MANIFEST).exists()]
            if splits:
                raise DataError(
                    "this output has splits",
                    where=str(folder),
                    why="each is an output of its own",
                    do=f"name one of {', '.join(map(str, splits))}",
                )
            raise no_output(folder)
        if isinstance(data.get("format"), int) and data["format"] > FORMAT:
            raise DataError(
                f"the manifest has format {data['format']}, this version reads up to {FORMAT}",
                where=str(path),
                do="upgrade rowmill",
            )
        parse_document(ManifestForm, data, path / MANIFEST)
        check_columns(data["schema"], path / MANIFEST, "schema")
        return Manifest(str(path), data)


def describe_run_date(dated: JsonObject) -> list[str]:
    """The date of a run as manifests and fitted workflows have it (`dated`), where it comes from, and what each pattern
    of its job became.

    >>> became = {"source.path": {"pattern": "in/{date}", "text": "in/2026-11-22"}}
    >>> describe_run_date({"date": "2026-11-22", "timezone": "UTC", "origin": "run.date", "became": became})
    ['2026-11-22, of run.date (UTC)', 'source.path: in/{date} is in/2026-11-22']
    """
    origin = str(dated.get("origin", ""))
    at = str(dated.get("run_date", "")).replace("T", " ")
    source = ORIGINS.get(origin, f"of {origin}").format(at=at)
    lines = [f"{dated['date']}, {source} ({dated.get('timezone', '')})"]
    became = dated.get("became") or {}
    return lines + [f"{place}: {one['pattern']} is {one['text']}" for place, one in became.items()]


def choose_versions(folder: Path, text: str, origin: PublishedCopy | None = None) -> list[Path]:
    """The versions of an output that `versions` names, the oldest first: `all`, `v0003`, `v0003..v0007`, `v0003..`.

    For a split of versions (`out/train`) those of the split. Discarded versions are left out, with a warning, and so
    are those that have other ids than the newest one that is named. A JobError for a text that names none, for a
    version at an end of the range that is not there or has other ids, and for an output without versions. `origin` is
    what the folder is a copy of.
    """
    origin = origin or PublishedCopy(folder)
    split = ""
    versions = versions_of(folder)
    if not versions and not folder.exists():
        split = folder.name
        versions = versions_of(folder.parent)
    if not versions:
        raise JobError(
            "this output has no versions",
            where=str(folder),
            why=f"versions is {text!r}" if folder.exists() else "the folder does not exist",
            do="correct the path, leave versions out, or give an output of output.on_existing: version",
        )
    names = [version.name for version in versions]
    first, last = _ends(text, names, folder)
    chosen = []
    for version in versions[first : last + 1]:
        if not origin.is_copy:  # a link may lead elsewhere
            check_path(version, "version")
        if is_discarded(version):
            log.warning("%s was discarded: it is left out", origin.name(version))
        elif split and not (version / split).is_dir():
            raise JobError(f"{version.name} has no {split}", where=str(folder), do=f"give {folder.parent}")
        elif not outputs(version):
            raise JobError(
                f"{version.name} is not a finished version of an output",
                where=str(folder),
                why=f"it has no {MANIFEST}",
                do="remove that folder, or name the others",
            )
        else:
            chosen.append(PublishedOutput(version))
    if not chosen:
        do = "name other versions, or bring one back: rowmill discard OUT/VERSION --undo"
        raise JobError("all of these versions were discarded", where=str(folder), why=f"versions is {text!r}", do=do)
    other = of_other_ids(chosen)
    newest = chosen[-1].name
    alike = [one for one in chosen if one not in other]
    for left_out in other:
        if left_out.name in text.split(".."):
            raise JobError(
                f"{left_out.name} has other ids than {newest}",
                where=str(folder),
                why=f"{newest} was not learned on top of it: the same id means another value in each",
                do=f"read it alone, versions={left_out.name!r}, or what goes together, "
                f"versions='{alike[0].name}..{newest}'",
            )
        text = "%s has other ids than %s, which was not learned on top of it: it is left out"
        log.warning(text, origin.name(left_out.path), newest)
    return [one.path / split if split else one.path for one in alike]


def common_columns(manifests: Sequence[Manifest], folders: Sequence[Path]) -> Schema:
    """The columns that all versions have in one type, integers or floats of any size, and with the same ids, as the
    last one has them; a warning names the others. `folders` are those of the versions, or of their copies."""
    *before, newest = [manifest.schema for manifest in manifests]
    begun = of_begun_ids([PublishedOutput.around(folder) for folder in folders])
    common = [
        c
        for c in newest.columns
        if c.name not in begun and all(c.name in old and alike(old[c.name].dtype, c.dtype) for old in before)
    ]
    every = dict.fromkeys(name for schema in (newest, *before) for name in schema)
    names = {c.name for c in common}
    if apart := [name for name in every if name not in names]:
        log.warning(LEFT_OUT, manifests[-1].path.rpartition("/")[0], ", ".join(apart))
    return Schema(common)


def alike(a: pa.DataType, b: pa.DataType) -> bool:
    """Whether values of two types can be read as those of the second, whatever their size."""
    both = leaf_type(a), leaf_type(b)
    sizes = any(all(map(of, both)) for of in (pa.types.is_integer, pa.types.is_floating))
    return a == b or (is_list(a) == is_list(b) and sizes)


def _ends(text: str, names: list[str], folder: Path) -> tuple[int, int]:
    """The places of the first and the last version that a text names."""
    if not isinstance(text, str):
        raise JobError(
            f"versions is not text, but {text!r:.60}",
            where="versions",
            do="write 'all', 'v0003', 'v0003..v0007' or 'v0003..'",
        )
    if text == "all":
        return 0, len(names) - 1
    match = re.fullmatch(r"(v\d+)(\.\.(v\d+)?)?", text)
    if match is None:
        raise JobError(f"{text!r} names no versions", where="versions", do="write all, v0003, v0003..v0007 or v0003..")
    wanted = match[1], match[1] if match[2] is None else match[3] or names[-1]
    for name in wanted:
        if name not in names:
            raise JobError(f"there is no version {name}", where=str(folder), do=near(name, names))
    first, last = (names.index(name) for name in wanted)
    if first > last:
        raise JobError(f"{text!r} ends before it begins", where="versions", do=f"write {wanted[1]}..{wanted[0]}")
    return first, last


def outputs(folder: Path) -> list[Path]:
    """The output folders behind a path: itself, or `train`, `valid` and `test` in it."""
    folder = current(folder)
    if (folder / MANIFEST).exists():
        return [folder]
    return [folder / name for name in SPLITS if (folder / name / MANIFEST).exists()]


def folders_of(out: Path) -> list[Path]:
    """The output folders behind a path; a DataError if there are none."""
    folders = outputs(out) if out.exists() else []
    if not folders:
        raise no_output(out)
    return folders


def no_output(folder: str | Path) -> DataError:
    """The error for a folder that no run has written."""
    local_folder(folder, "the output", "path")  # a JobError for a URL, of which nothing here knows whether it exists
    why = f"it has no readable {MANIFEST}" if Path(folder).exists() else "it does not exist"
    do = "give the folder that a finished run wrote (output.path of the job)"
    return DataError("this is not an output of rowmill", where=str(folder), why=why, do=do)
