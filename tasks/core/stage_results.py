"""The results of stages, which the next stages, the flow, the artifacts, the report and the manifest use."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from tasks.core import storage_traffic
from tasks.core.strict_json import JsonObject
from tasks.core.units import amount, rate

FailedCast = Mapping[str, Any]  # entry, expression, rows: see tasks.graph.failed_casts
PartRecord = Mapping[str, Any]  # path, rows, bytes, xxh3_128 of a file of the output
TableRows = Sequence[Mapping[str, Any]]
Message = tuple[int, str]  # a level of `logging`, and a line for people
OF_STORAGES = (*storage_traffic.NAMES, "storage_cost")  # only where there are any
RESOURCES = ("core_seconds", "gpu_seconds", "energy_joules", "cost", *OF_STORAGES)


def _not_shown(**default: Any) -> Any:
    return field(**default, metadata={"shown": False})


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """The result that all stages share.

    The stage processed `rows` and `nbytes` in `seconds`. `reused`: an earlier start of the same job had done all of
    the work. `halved` counts partitions, or files, that were divided because memory was short. `began` and
    `ended` are seconds since 1970, None if unknown; `retries` counts the attempts of Prefect and of the
    flow after the first one. `resources`, by names of `RESOURCES`, are those of the attempt that did the work.
    """

    stage: str
    split: str = ""
    rows: int
    nbytes: int
    seconds: float
    reused: bool = False
    halved: int | None = None
    failed_casts: Sequence[FailedCast] = _not_shown(default=())
    retries: int = 0
    resources: Mapping[str, float] = _not_shown(default_factory=dict)
    began: float | None = _not_shown(default=None)
    ended: float | None = _not_shown(default=None)

    @property
    def title(self) -> str:
        """The stage with its split, if there are several.

        >>> StageResult(stage="transform", split="valid", rows=0, nbytes=0, seconds=0.0).title
        'transform valid'
        """
        return " ".join(filter(None, (self.stage, self.split)))

    @property
    def line(self) -> str:
        """One sentence on the stage."""
        text = f"{self.title}: {self.rows:,} rows in {self.seconds:.2f} s, {rate(self.rows, self.seconds)}"
        if self.halved:
            text += f", halved {self.halved:,} times for lack of memory"
        if self.failed_casts:
            text += f", casts failed in {sum(failed['rows'] for failed in self.failed_casts):,} rows"
        return text + (" (already done, not run again)" if self.reused else "")

    def figures(self) -> JsonObject:
        """Name -> plain value of the figures for people, without empty and long ones and those shown elsewhere."""
        every = {f.name: getattr(self, f.name) for f in fields(self) if f.metadata.get("shown", True)}
        every["bytes"] = every.pop("nbytes")
        every |= self.resources
        return {name: value for name, value in every.items() if value is not None and value not in ("", ())}

    def messages(self, makes_columns: bool, fitted_on: str) -> Iterator[Message]:
        """Yield what people should know of the result: levels of `logging` and lines.

        `makes_columns`: the stage is the one of its run that makes the columns. `fitted_on` names what the rows are
        compared with: the fit, or the base.
        """
        yield from ()


def total_resources(results: Sequence[StageResult]) -> dict[str, float]:
    """The sums of what stages took; without those of which a stage does not know its part."""
    every = [result.resources for result in results]
    on_gpus = [taken for taken in every if "gpu_seconds" in taken]
    parts = {name: on_gpus if name in ("gpu_seconds", "energy_joules") else every for name in RESOURCES}
    parts |= {name: [taken for taken in every if name in taken] for name in OF_STORAGES}
    known = {name: of for name, of in parts.items() if of and all(every) and all(name in taken for taken in of)}
    return {name: round(sum(taken[name] for taken in of), 6) for name, of in known.items()}


TEXTS = {
    "core_seconds": "{:,.1f} core seconds",
    "gpu_seconds": "{:,.1f} GPU seconds",
    "energy_joules": "{:,.1f} J ({:,.2f} Wh)",
    "cost": "cost {:,.4g}",
}


def resources_text(taken: Mapping[str, float], seconds: float | None = None) -> str:
    """What a stage or a run took, in words; `taken` has names of RESOURCES. The rate of a storage is that over
    `seconds`."""
    texts = [text.format(taken[name], taken[name] / 3600) for name, text in TEXTS.items() if name in taken]
    return ", ".join([*texts, *_describe_storages(taken, seconds)])


def _describe_storages(taken: Mapping[str, float], seconds: float | None) -> list[str]:
    """What storages sent and took, in words.

    >>> _describe_storages({"storage_gets": 12, "storage_lists": 1, "storage_bytes_read": 3_000_000}, 2.0)
    ['3.0 MB from storages (1.5 MB/s)', 'requests: 12 get, 1 list']
    """
    texts = []
    for name, way in (("storage_bytes_read", "from"), ("storage_bytes_written", "to")):
        if nbytes := taken.get(name):
            rate_text = f" ({amount(nbytes / seconds)}/s)" if seconds else ""
            texts.append(f"{amount(nbytes)} {way} storages{rate_text}")
    kinds = [
        (name.removeprefix("storage_").removesuffix("s"), taken[name])
        for name in storage_traffic.REQUESTS
        if taken.get(name)
    ]
    if kinds:
        texts.append("requests: " + ", ".join(f"{count:,.0f} {kind}" for kind, count in kinds))
    if "storage_cost" in taken:
        texts.append(f"storage cost {taken['storage_cost']:,.4g}")
    return texts


@dataclass(frozen=True, kw_only=True)
class IngestResult(StageResult):
    """The source as it was planned: numbers of files, skipped files, blocks, partitions, columns in and out.

    `left_out` are labels that the source lacks, `differs_from_fit` is what is read in another way than in the fit,
    `made_up` describes look-alike data, `contract` the columns that the contract took or left out; empty texts where
    there is nothing to say. `united` names columns that some files lack or have in a narrower type, or whose numbers
    stay text. `bad_lines` cannot be read and are left out, `bad_lines_of` says of which files. `again` files were
    learned before. `exploded` says how many rows of the files became how many rows by `source.explode`. `repeated` rows
    are left out by `source.unique`, as text for each split. `divided` says where splits begin and how many rows they
    have, where only a look at all rows tells. `estimate` has the needs of the run as lines of text. `published` is the
    folder of the output where a run that was cut off has published this work already.
    """

    stage: str = "ingest"
    files: int
    skipped: int
    blocks: int
    partitions: int
    columns: int
    output_columns: int
    threads: int
    workers: int
    left_out: str = ""
    differs_from_fit: str = ""
    made_up: str = ""
    contract: str = ""
    united: str = ""
    bad_lines: int | None = None
    bad_lines_of: str = ""
    exploded: str = ""
    repeated: str = ""
    divided: str = ""
    again: int = _not_shown(default=0)
    estimate: Mapping[str, str] = _not_shown(default_factory=dict)
    published: str = _not_shown(default="")

    def figures(self) -> JsonObject:
        return super().figures() | dict(self.estimate)

    def messages(self, makes_columns: bool, fitted_on: str) -> Iterator[Message]:
        if self.made_up:
            yield logging.WARNING, f"made-up data: {self.made_up}"
        if self.left_out:
            yield logging.WARNING, f"left out, since the source lacks their columns: {self.left_out}"
        if self.differs_from_fit:
            yield logging.WARNING, f"different from the {fitted_on}: {self.differs_from_fit}"
        if self.again:
            yield (
                logging.WARNING,
                f"{self.again:,} files are learned once more: their rows count twice (refit.again)",
            )
        if self.contract:
            yield logging.WARNING, f"the contract: {self.contract}"
        if self.united:
            yield logging.WARNING, f"how columns are read: {self.united}"
        if self.bad_lines_of:
            yield logging.WARNING, self.bad_lines_of
        if self.exploded:
            yield logging.INFO, self.exploded
        if self.repeated:
            yield logging.INFO, f"source.unique leaves out {self.repeated}: other rows have the same keys"
        if self.divided:
            yield logging.INFO, f"source.split: {self.divided}"


@dataclass(frozen=True, kw_only=True)
class StatisticsResult(StageResult):
    """What was learned: `digest` of the state, and `tables` of the first learned values by title.

    `phases` passes over the source; `operators` entries of the graph learned something of `learned` units of columns.
    `decoded` bytes of columns stay in memory for transform. `profile` is the file of the staging folder with the
    profile of the columns that were read; "" without one. `downsampled` rows were left out by `source.downsample`,
    `other_splits` belong to valid and test; None without such rules.
    """

    stage: str = "statistics"
    phases: int
    operators: int
    learned: int
    digest: str = _not_shown()
    tables: Mapping[str, TableRows] = _not_shown(default_factory=dict)
    decoded: int = 0
    downsampled: int | None = None
    other_splits: int | None = None
    profile: str = _not_shown(default="")

    def messages(self, makes_columns: bool, fitted_on: str) -> Iterator[Message]:
        if makes_columns and self.downsampled is not None:
            yield logging.INFO, f"source.downsample leaves out {self.downsampled:,} rows"


@dataclass(frozen=True, kw_only=True)
class TransformResult(StageResult):
    """`rows` of the source became `rows_out` rows in pieces, which wait in the `exchange` (memory or disk); `because`
    has the figures of that choice. `bad_lines` of its files are none of the rows. `profile` is the file of the
    staging folder with the profile of the columns that statistics and transform have read; "" without one.
    `downsampled` rows were left out by `source.downsample`, and `other_splits` belong to another split; `null_in_train`
    rows are in train since the column that decides is null. None without such rules."""

    stage: str = "transform"
    rows_out: int
    partitions: int
    exchange: str
    because: str
    bad_lines: int | None = None
    downsampled: int | None = None
    other_splits: int | None = None
    null_in_train: int | None = None
    profile: str = _not_shown(default="")

    def messages(self, makes_columns: bool, fitted_on: str) -> Iterator[Message]:
        if self.other_splits is not None:
            text = f"{self.split}: {self.other_splits:,} rows belong to other splits (source.split)"
            yield logging.INFO, text
        if self.null_in_train:
            text = f"{self.null_in_train:,} rows are in train since the column of source.split is null"
            yield logging.WARNING, text
        if self.downsampled is not None:
            yield logging.INFO, f"source.downsample leaves out {self.downsampled:,} rows"


@dataclass(frozen=True, kw_only=True)
class WriteResult(StageResult):
    """The files of a split: `parts` are the records of all that were written, `files` counts them, `chosen_files` says
    why there are so many where the job does not; with Hive folders `folder_files` files lie in `folders` folders, and
    `advice` says what would be better.

    `rows_in` and `rows_out` are the rows that transform has read and made.
    """

    stage: str = "shuffle_write"
    files: int
    rows_in: int
    rows_out: int
    chosen_files: str = ""
    folders: int | None = None
    folder_files: int | None = None
    advice: str = ""
    parts: Sequence[PartRecord] = _not_shown()

    def messages(self, makes_columns: bool, fitted_on: str) -> Iterator[Message]:
        if self.chosen_files:
            split = f"{self.split}: " if self.split else ""
            yield logging.INFO, f"{split}output.files: {self.files:,}, {self.chosen_files}"


@dataclass(frozen=True)
class ProgressArtifact:
    """The progress artifact of a stage: its id, and its text when the stage was done."""

    artifact: str
    description: str


@dataclass(frozen=True)
class StageRun:
    """What the Prefect task of a stage returns to the flow: the result, the artifact of its progress, which the flow
    completes, and the address of the Dask worker that ran the stage."""

    result: StageResult
    progress: ProgressArtifact | None
    worker: str
