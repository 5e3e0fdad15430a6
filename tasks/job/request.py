"""What a run is to do, as plain values, and the fingerprints by which a later start knows what it can use again."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tasks.core import versions
from tasks.core.contract import Contract, make_contract
from tasks.core.pickled_fields import PickledFields
from tasks.core.plan import OPTION, PARSED, File, Plan
from tasks.core.schema import ROW, Schema
from tasks.core.settings import TABLES, Checks, FlowName, Output, Run, Source
from tasks.core.strict_json import JsonObject, decode_floats
from tasks.core.versions import rowmill_version
from tasks.errors import DataError
from tasks.graph.node import Node, graph_from_json, graph_to_json, list_side_files, side_paths
from tasks.graph.row_rules import Division, RowSet
from tasks.job.fingerprints import fingerprint, own_code, users_code
from tasks.sources.formats import BOUNDS, read_options
from tasks.sources.parsed_text import all_there, is_parsed, with_parsed
from tasks.sources.reading_rules import Fit
from tasks.storage.allowed_roots import read_allowed_roots
from tasks.storage.atomic import read_record
from tasks.storage.checksum import digest
from tasks.storage.files_being_read import FOLDER
from tasks.storage.source_changes import are_same
from tasks.storage.staging import Staging


@dataclass(frozen=True)
class Fitted:
    """A fitted workflow that a run applies, or learns on top of.

    path: its folder.
    state: the digest of its state.
    schema: the columns that it was fitted on.
    fit: how its source was read.
    made_up: the look-alike data that it learned from.
    ancestors: the digests of the states below it, oldest first.
    ids_since: what `tasks.graph.saved_workflow.read_ids_since` returns for it.
    discarded: whether it was taken back before the run began.
    """

    path: str
    state: str
    schema: list[JsonObject]
    fit: Fit
    made_up: list[JsonObject] = field(default_factory=list)
    ancestors: tuple[str, ...] = ()
    ids_since: dict[str, int] = field(default_factory=dict)
    discarded: bool = False


@dataclass(frozen=True, kw_only=True)
class RefitBase(Fitted):
    """The version (v0006) that a refit learns on top of, the rows that it has learned from and its date (`since`; ""
    if unknown), the date of this run (`day`), and the keys of the section `refit`.

    `graph` is that of the base where the job has other features; then new steps learn from the rows of `learn_from`
    first.
    """

    version: str
    rows: int
    since: str
    day: str
    settings: dict[str, str]
    all: bool
    again: bool
    forget: int | None
    graph: list[JsonObject] | None = None
    learn_from: Any = None


@dataclass(frozen=True)
class Request(PickledFields):
    """What a run is to do. Equal requests have the same staging folder.

    `sections` are source, output and run as JSON: Prefect walks through the arguments of its tasks, and cannot walk
    through a model that has a field `keys`.
    `code` is the fingerprint of the code, `owner` the run that has the lock, `flow` the flow of the run. `fitted` is
    the workflow that is applied, None when one is learned; `base` what a refit starts from, None for a fit. `roots` are
    those that the flow's host allows. `no_base`: the job names a base, and nothing is published there yet.
    `dated` is the date of the run and what the job's patterns became (`tasks.job.run_date.Dated`); {} without one.
    `contract` and `checks` are those of the gate, as JSON; {} without a contract, and for checks as they are.
    `stage_engines` is the engine of each stage where they differ; {} where all have `engine`. `resumes`: an earlier run
    was cut off where this one works.
    """

    sections: dict[str, JsonObject]
    graph: list[JsonObject]
    engine: str = "pandas"
    labels: tuple[str, ...] = ()
    code: str = ""
    owner: str = ""
    flow: FlowName = "preprocess"
    fitted: Fitted | None = None
    roots: tuple[str, ...] | None = None
    dated: JsonObject = field(default_factory=dict)
    base: RefitBase | None = None
    no_base: bool = False
    contract: JsonObject = field(default_factory=dict)
    checks: JsonObject = field(default_factory=dict)
    stage_engines: dict[str, str] = field(default_factory=dict)
    resumes: bool = False

    def of_stage(self, stage: str) -> Request:
        """Return the request with the engine of a stage."""
        return replace(self, engine=self.stage_engines[stage]) if self.stage_engines else self

    @property
    def planned_stage(self) -> str:
        """The stage for whose workers partitions are planned."""
        return "statistics" if self.flow == "fit" else "transform"

    @cached_property
    def source(self) -> Source:
        return Source(**self.sections["source"])

    @cached_property
    def output(self) -> Output:
        return Output(**self.sections["output"])

    @cached_property
    def run(self) -> Run:
        return Run(**self.sections["run"])

    @cached_property
    def rules(self) -> Contract | None:
        """The contract of the source; None without one."""
        return make_contract(decode_floats(self.contract)) if self.contract else None

    @cached_property
    def gate(self) -> Checks:
        """What the gate does with rows that differ from the contract or from earlier versions."""
        return Checks(**self.checks)

    @property
    def gate_note(self) -> JsonObject:
        """What a manifest says of the gate, so that a refit goes on with it: checks and contract, as far as given."""
        return {name: value for name in ("checks", "contract") if (value := getattr(self, name))}

    @cached_property
    def final(self) -> Node:
        return graph_from_json(self.graph)

    @property
    def origin(self) -> Fitted | None:
        """The workflow that is applied, or the base; None for a fit."""
        return self.fitted or self.base

    @cached_property
    def fitted_schema(self) -> Schema:
        """The columns that the workflow, or the base, was fitted on."""
        assert self.origin
        return Schema(c for c in Schema.from_json(self.origin.schema).columns if c.name != ROW)

    @property
    def fit(self) -> Fit | None:
        """How the source of the workflow that is applied, or of the base, was read; None for a fit."""
        return self.origin.fit if self.origin else None

    @property
    def changes_features(self) -> bool:
        """Whether the job has other features than the base that it learns on top of."""
        return self.base is not None and self.base.graph is not None

    @property
    def first_row(self) -> int:
        """The number of the first row: a refit goes on where its base ended, unless it learns everything anew."""
        return 0 if not self.base or self.base.all else self.base.rows

    @cached_property
    def staging(self) -> Staging:
        return Staging.of(self.output, self.run)

    @property
    def key(self) -> str:
        """What the keys of this run's artifacts begin with: the same for each run of a flow to one output."""
        return f"{self.flow}-{output_slug(self.staging.address)}"

    @property
    def splits(self) -> tuple[str, ...]:
        """The sub-folders of the output: none, or train, valid and test, as far as the job has them."""
        return self.source.splits

    @property
    def plan_names(self) -> tuple[str, ...]:
        """The names of the plans: one for each split, or one for all splits of one source."""
        return tuple(dict.fromkeys(self.source.plan_name(split) for split in self.splits))

    @property
    def read_paths(self) -> list[str]:
        """The paths that the run reads: those of the source, of rows to learn from first, and of side tables."""
        learn_from = (self.base.learn_from if self.base else None) or []
        before = [learn_from] if isinstance(learn_from, str) else learn_from
        return [*self.source.paths, *before, *side_paths(self.final)]

    @property
    def side_files(self) -> list[Any]:
        """Path, size and version of every file that an operator reads besides the source, those of a folder too.

        The version is the ETag of an object, or size, time and inode of a file.
        """
        return [[file.path, file.size, file.version or file.mtime] for file in list_side_files(self.final)]

    @property
    def plan_fingerprint(self) -> str:
        """The fingerprint of what a plan depends on besides the files themselves."""
        return fingerprint(
            self.code,
            self.stage_engines or self.engine,
            self.source.model_dump(exclude={"filter", "strict", "downsample", "sample", *BOUNDS}),
            *([self.source.filter] if self._rows_decide else []),
            self.run.min_partition_size,
            *([self.contract] if self.contract else []),
            *self._fitted,
        )

    @property
    def _rows_decide(self) -> bool:
        """Whether ingest looks at the rows that the filter keeps, for unique or for splits."""
        rule = self.source.split
        return bool(self.source.unique or (rule and rule.looks_at_all_rows))

    @property
    def _fitted(self) -> list[Any]:
        """What is applied, or what is learned on top of, by its content: the folder may be moved."""
        if self.base:
            left_out = ("path", "version", "ancestors", "ids_since")
            return [self.graph, {name: value for name, value in asdict(self.base).items() if name not in left_out}]
        return [self.graph, self.fitted.state, self.fitted.schema, asdict(self.fitted.fit)] if self.fitted else []

    def state_fingerprint(self, plan: str) -> str:
        """Compute the fingerprint of the state that is learned from a plan, whatever the output and the sizes of
        partitions."""
        rows = self.source.model_dump(exclude={"partition_size", "part_mem_fraction", "sample", *BOUNDS})
        engine = self.stage_engines or self.engine
        return fingerprint(self.code, engine, rows, self.graph, self.side_files, plan, *self._fitted)

    def parts_fingerprint(self, *more: Any) -> str:
        """Compute the fingerprint of the bytes of the output; `more` are plan, state, number of files and split."""
        other = {"path", "storage_options", "on_existing", "keep_versions", *TABLES, "mode"}
        files = self.output.model_dump(exclude=other)
        return fingerprint(self.state_fingerprint(""), files, versions.PERMUTATION_VERSION, *more)


def output_slug(target: str | Path) -> str:
    """Convert the last two parts of an output's path to what Prefect takes in a key: lower case, digits and dashes.

    >>> output_slug("/data/out/Shop_2"), output_slug("/data/out/größe")
    ('out-shop-2', 'out-gr-e-c85135')
    """
    text = "/".join(Path(target).parts[-2:]).lower()
    plain = re.fullmatch(r"[a-z0-9/_. -]+", text)
    more = "" if plain else f"-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
    return re.sub(r"[^a-z0-9]+", "-", text).strip("-") + more


class SavedPlans:
    """The plans of a run, as saved by ingest."""

    def __init__(self, request: Request) -> None:
        self.path = request.staging.folder / "plan.json"
        self.source = request.source
        self.data = read_record(self.path)

    def complete(self, splits: Sequence[str]) -> bool:
        """Return whether all scratch files of a keyed source exist."""
        return all(Path(f.path).exists() for split in splits for f in self.plan(split).files)

    def has_all_parsed_text(self, splits: Sequence[str]) -> bool:
        """Return whether the files of all text that was parsed once exist."""
        return all(all_there(plan) for plan in map(self.plan, splits) if is_parsed(plan))

    def is_of(self, split: str, listed: Mapping[str, File]) -> bool:
        """Return whether the plan of a split was made of these files as they are now."""
        try:
            return are_same(self.sources(split)[0], listed)
        except DataError:
            return False

    def sources(self, split: str) -> tuple[tuple[File, ...], JsonObject]:
        """Return (the files of the source that a split was planned from, the options of their storage)."""
        plan = self.plan(split)
        origins = self.data.get("origins", {}).get(self.source.plan_name(split))
        files = plan.files if origins is None else tuple(File(*item) for item in origins)
        return files, plan.options["storage_options"]

    def set_plans(
        self,
        plans: Mapping[str, Plan],
        origins: JsonObject,
        repeated: JsonObject | None = None,
        division: Division | None = None,
    ) -> None:
        """Remember the plans, and what belongs to them.

        `origins` are the files of the source from which those of a plan were made, `repeated` the rows that
        `source.unique` leaves out (path, digest, rows), by split; `division` is what a look at all rows has found of
        the splits.
        """
        saved = {split: plan.to_json() for split, plan in plans.items()}
        digests = {split: fingerprint(plan, origins.get(split)) for split, plan in saved.items()}
        self.data = {
            "plans": saved,
            "origins": dict(origins),
            "digests": digests,
            "repeated": dict(repeated or {}),
            "division": division and division.to_json(),
            "parsed": {split: plan.options[PARSED]["columns"] for split, plan in plans.items() if is_parsed(plan)},
        }

    def columns(self, split: str) -> dict[str, str]:
        """Return the types of all columns of the source of a split, by their names, whether the run reads them or
        not."""
        known: dict[str, str] = self.data.get("columns", {}).get(self.source.plan_name(split), {})
        return known

    def plan(self, split: str) -> Plan:
        split = self.source.plan_name(split)
        try:
            saved = self.data["plans"][split]
            if fingerprint(saved, self.data["origins"].get(split)) != self.data["digests"][split]:
                raise ValueError("the digest differs")
            plan = Plan.from_json(saved)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            raise DataError(
                "the plan of this run is gone or damaged",
                where=str(self.path),
                why="something else changed it between two stages",
                do="run the same job again",
            ) from None
        plan = replace(plan, options={**plan.options, OPTION: str(self.path.parent / FOLDER)})
        if columns := self.data.get("parsed", {}).get(split):
            plan = with_parsed(plan, self.path.parent / f"{PARSED}{split}", columns)
        return plan.with_storage_options(read_options(self.source)["storage_options"])

    def read_repeated_rows(self, split: str) -> RowSet | None:
        """Read the rows that `source.unique` leaves out of the plan of a split; None if no row is left out by
        number."""
        saved = self.data.get("repeated", {}).get(self.source.plan_name(split))
        return RowSet(saved["path"], saved["digest"]) if saved and saved["path"] else None

    def count_repeated_rows(self, split: str) -> int | None:
        """Count the rows of a split that `source.unique` leaves out; None without it."""
        saved = self.data.get("repeated", {}).get(self.source.plan_name(split))
        return int(saved["rows"]) if saved else None

    @property
    def division(self) -> Division | None:
        """What a look at all rows says of the splits of the source; None where none was needed."""
        saved = self.data.get("division")
        return Division.from_json(saved) if saved else None

    def row_sets_whole(self, splits: Sequence[str]) -> bool:
        """Return whether the files of the rows that are left out, or belong to a split, are unchanged."""
        sets = [rows for split in splits if (rows := self.read_repeated_rows(split))]
        sets += [rows for _, rows in self.division.sets] if self.division else []
        return all(Path(rows.path).exists() and digest(rows.path) == rows.digest for rows in sets)

    @property
    def made_up(self) -> list[JsonObject]:
        """The look-alike data among the source's, and those that an applied workflow was fitted on."""
        return list(self.data.get("made_up", ()))

    @property
    def learned_files(self) -> list[tuple[str, int, str]]:
        """Path, size and digest of the source's files with rows, which the run learns from."""
        return [(str(path), int(size), str(digest)) for path, size, digest in self.data.get("learned_files", ())]

    def bad_lines(self, split: str) -> list[JsonObject]:
        """Return the files of a split with lines that cannot be read, which are left out; splits of one source share
        them."""
        return list(self.data.get("bad_lines", {}).get(self.source.plan_name(split), ()))

    def table(self, split: str) -> JsonObject | None:
        """Return which table, and which state of it, the rows of a split come from; None for files."""
        note: JsonObject | None = self.data.get("tables", {}).get(self.source.plan_name(split))
        return note

    def files(self, split: str) -> int:
        """Return the number of files of a split, as ingest has decided it: it must not change when a worker is lost."""
        return int(self.data["files"][split])


def make_request(
    source: Source, final: Node, output: Output, run: Run, engine: str, labels: Sequence[str] = ()
) -> Request:
    """Make the request of the sections of a job for one engine."""
    return new_request(source, graph_to_json(final), output, run, engine, labels)


def new_request(
    source: Source,
    graph: list[JsonObject],
    output: Output,
    run: Run,
    engine: str,
    labels: Sequence[str],
    **more: Any,
) -> Request:
    """Make the request of a graph as it is saved; `more` are flow, fitted and base."""
    sections = {
        "source": source.model_dump(by_alias=True, mode="json"),
        "output": output.model_dump(mode="json"),
        "run": run.model_dump(mode="json"),
    }
    return Request(
        sections,
        graph,
        engine,
        tuple(labels),
        fingerprint(rowmill_version(), own_code(), users_code(graph)),
        roots=read_allowed_roots(),
        **more,
    )
