"""The job: one set of models that is the YAML file, the parameters of the flow and the form."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import yaml
from pydantic import Field, PrivateAttr, ValidationError, field_validator

import flows
from flows.job.access import check_access, check_base, check_fitted, limit_deployment
from flows.job.dates import DateOf, date_of_run_now, resolve_job, with_patterns
from flows.job.yaml_lines import Lines, parse_yaml
from infra import bounded_yaml
from infra.clusters.model import Cluster
from tasks import ops
from tasks.core.contract import Contract, make_contract
from tasks.core.schema import Tags
from tasks.core.settings import (
    NO_BASE,
    TABLES,
    Checks,
    Output,
    Refitting,
    Run,
    S,
    Section,
    Source,
    collector_file,
    some_path,
)
from tasks.core.strict_json import JsonObject, encode_floats
from tasks.core.wings import check_keys
from tasks.engines.expression.syntax import parse
from tasks.errors import JobError, RowmillError, mistakes, near, place_text
from tasks.graph.node import Node, graph_to_json, topological
from tasks.graph.saved_workflow import read_fitted
from tasks.job.apply_fitted import make_applying_request
from tasks.job.base_version import BaseVersion
from tasks.job.refitting import Features, refitting_request
from tasks.job.request import Request, make_request
from tasks.job.run_date import Dated, is_pattern
from tasks.ops.base import Learned, Operator, operator_class
from tasks.ops.schema_ops import AddTags
from tasks.storage.allowed_roots import is_local
from tasks.storage.credentials import storage
from tasks.storage.files import refuse_inside
from tasks.storage.output_mirror import find_mirror
from tasks.storage.published_copy import open_published

MOST_VALUES = 1_000_000
MODES = ("merge", "freeze")  # what `refit` may say of an operator or an entry
ENTRY = re.compile(r"features\[\d+\]")
RECIPES = Path(flows.__file__).parent / "recipes"


REFIT_HELP = (
    "how to continue from the base; in addition to the keys an operator or an entry with merge or freeze, such as "
    '{"Normalize": "freeze", "features[2]": "merge"}'
)
CHECKS_HELP = (
    "what follows when a night differs from its contract or from earlier nights: on_finding, and "
    "{threshold, level, columns} by check"
)
OUTPUT_HELP = "where the rows go, in which order and in how many files"
CLUSTER_HELP = "the workers that run the job"
RUN_HELP = "the date of the run, and how it is executed"


class Feature(Section):
    """Columns, and the operators that they go through one after another. A nested list of columns is a group."""

    columns: list[str | list[str]] = Field(min_length=1, description="names, patterns such as x*, and groups: [a, b]")
    ops: list[JsonObject] = Field([], description="operators, from the first to the last: {op: Normalize}")
    keep: bool = Field(True, description="false: only for later entries, not written")

    @field_validator("ops")
    @classmethod
    def _in_json(cls, value: list[JsonObject]) -> list[JsonObject]:
        """As they reach the server and the workers: `.inf` of YAML would be null there."""
        strict: list[JsonObject] = encode_floats(value)
        return strict


class DatedJob(Section):
    """A job whose patterns are resolved."""

    _dated: Dated | None = PrivateAttr(None)
    _written: dict[str, str] = PrivateAttr({})

    @property
    def dated(self) -> Dated | None:
        """The date of the run and what its patterns became; None for a job without patterns and without `run.date`."""
        return self._dated

    def with_date(self, date_of: DateOf) -> Self:
        """Return the job with its patterns resolved; it remembers what they became."""
        resolved = resolve_job(self, date_of)
        job = resolved.job
        job._dated = resolved.dated
        job._written = resolved.written
        return job

    def patterns(self, place: str) -> list[str]:
        """Return the patterns with a date that the job has at a place, such as `source.path`."""
        became = self._dated.became if self._dated else {}
        return [pattern for name, (pattern, _) in became.items() if name.startswith(place)]

    def as_written(self) -> JsonObject:
        """Return the job as plain values, with the patterns that its author wrote."""
        data = self.model_dump(by_alias=True, mode="json", exclude_unset=True)
        if any(data["source"].get(kind) for kind in TABLES):
            del data["source"]["path"]  # which is made of the key of the table
        return with_patterns(data, self._written)


class CheckedJob(DatedJob):
    """A job whose rows are compared with a contract and with earlier nights before they are published."""

    if TYPE_CHECKING:  # each job has them, with a text of its own
        source: Source
        output: Output
        cluster: Cluster
        run: Run

    contract: JsonObject | str | None = Field(
        None, description="types, nulls and domains of the source's columns: a map, or a YAML file that has it"
    )
    checks: Checks = Field(Checks(), description=CHECKS_HELP)

    def rules(self) -> Contract | None:
        """Return the contract, read from its file if the job names one; None without a contract."""
        if not isinstance(self.contract, str):
            return None if self.contract is None else make_contract(self.contract)
        path = Path(self.contract)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            do = "write one with rowmill contract OUT > contract.yaml"
            raise JobError("the contract cannot be read", where=f"contract: {path}", why=why, do=do) from None
        return make_contract(parse_yaml(text, str(path)), f"contract: {path}")

    def resolve_paths(self) -> tuple[Source, Output, Run]:
        """The sections with paths from the root, since workers may have another current folder."""
        source = self.source.model_copy(
            update={
                "path": absolute(self.source.path),
                "delta": absolute(self.source.delta),
                "valid": absolute(self.source.valid),
                "bad_lines": absolute_target(self.source),
            }
        )
        output = self.output.model_copy(
            update={"path": absolute(self.output.path), "delta": absolute(self.output.delta)}
        )
        collectors = {
            key: address and absolute(collector_file(address) or address)
            for key, address in (("lineage", self.run.lineage), ("metrics", self.run.metrics))
        }
        run = self.run.model_copy(
            update={"scratch": absolute(self.run.scratch), **collectors, **exchange_on(self.run, self.cluster)}
        )
        return source, output, run

    def with_checks(self, request: Request) -> Request:
        """The request with the date, the contract and the checks of the job; its rows are profiled where the gate may
        need it."""
        rules = self.rules()
        contract = encode_floats(rules.model_dump(mode="json", exclude_none=True)) if rules else {}
        checks = self.checks.model_dump(mode="json", exclude_defaults=True)
        run = request.sections["run"]
        if run["profile"] is None:
            nightly = request.output.on_existing == "version" or getattr(self, "base", None) not in (None, NO_BASE)
            run = {**run, "profile": bool(contract or checks or nightly)}
        if self.dated and request.base:
            request = replace(request, base=replace(request.base, day=self.dated.run_date.day.isoformat()))
        dated = self.dated.to_json() if self.dated else {}
        sections = {**request.sections, "run": run}
        return replace(request, sections=sections, contract=contract, checks=checks, dated=dated)


class Job(CheckedJob):
    """A whole job: where rows come from, what becomes of them, where they go, and on which workers."""

    recipe: str | None = Field(None, description="name of a shipped recipe; the other keys override it")
    source: Source = Field(description="where the rows come from")
    features: list[Feature] = Field(
        min_length=1,
        description="entries from top to bottom: columns, and the operators that they go through, such as "
        "`- {columns: [x, y], ops: [{op: FillMissing, fill_value: 0}, {op: Normalize}]}`; or the same as YAML text, or "
        "the text of a whole job, such as a draft of `rowmill new`",
    )
    label: list[str] = Field([], description="columns that are written last and tagged as target")
    output: Output = Field(description=OUTPUT_HELP)
    base: str | None = Field(
        None, description="output whose newest good version is learned on top of, such as output.path itself; or none"
    )
    refit: Refitting = Field(Refitting(), description=REFIT_HELP)
    cluster: Cluster = Field(Cluster(), description=CLUSTER_HELP)
    run: Run = Field(Run(), description=RUN_HELP)

    _some = field_validator("base", mode="before")(some_path)

    @property
    def base_path(self) -> Path | None:
        """Where the base is; None for a job that learns from its source alone."""
        return None if self.base in (None, NO_BASE) else local_base(self.base, self)

    def graph(self) -> Node:
        """Return the features from top to bottom, then the labels; entries see what entries above them made."""
        nodes: list[Node] = []
        written: list[Node] = []
        for number, feature in enumerate(self.features):
            title = f"features[{number}]"
            selection = tuple(tuple(c) if isinstance(c, list) else c for c in feature.columns)
            node = Node("pick", tuple(nodes), selection=selection, name=title)
            for position, spec in enumerate(feature.ops):
                try:
                    node = Node("apply", (node,), _without_frames(ops.make_operator(spec)), name=title)
                except RowmillError as error:
                    raise _add_place(error, f"{title}.ops[{position}]") from None
            nodes.append(node)
            if feature.keep:
                written.append(node)
            elif any(operator_class(str(spec["op"])).removes_rows for spec in feature.ops):
                written.append(Node("pick", (node,), name=title))  # no columns, but its filter holds for the table
        if self.label:
            picked = Node("pick", tuple(nodes), selection=tuple(self.label), name="label")
            written.append(Node("apply", (picked,), AddTags(tags=[Tags.TARGET.value]), name="label"))
        if not written:
            raise JobError(
                "nothing would be written",
                where="features",
                why="every entry has keep: false and there is no label",
                do="remove keep: false from an entry, or name a label",
            )
        return Node("join", tuple(written), name="output")

    def request(self, engine: str, base: BaseVersion | None = None) -> Request:
        """Return the request of the stages, on top of a base where there is one."""
        source, output, run = self.resolve_paths()
        if base is None:
            request = make_request(source, self.graph(), output, run, engine, self.label)
        else:
            more = self.refit.model_copy(update={"learn_from": absolute(self.refit.learn_from)})
            features = Features(graph_to_json(self.graph()), self.label)
            request = refitting_request(source, base, more, output, run, engine, features)
        return self.with_checks(request)


def _without_frames(op: ops.Operator) -> ops.Operator:
    """Return the operator; a JobError if a parameter of it is a frame in memory."""
    if op.frames:
        raise JobError(
            f"{type(op).__name__} has a frame in memory, and a job has none",
            why="another process, at another time, runs the job",
            do="write the frame as a Parquet file and give its path, or use a Workflow in Python",
        )
    return op


class Application(CheckedJob):
    """A fitted workflow over new data: which one, where the rows come from, where they go, and on which workers."""

    refused_of_source: ClassVar[tuple[str, ...]] = ("valid", "split", "sample", "downsample")

    fitted: str = Field(description="folder or URL of a fitted workflow, or an output that holds one")
    source: Source = Field(
        description="where the new rows come from; what is not given is as in the fit, of header, columns and "
        "delimiter where the files have its format"
    )
    output: Output = Field(description=OUTPUT_HELP)
    cluster: Cluster = Field(Cluster(), description=CLUSTER_HELP)
    run: Run = Field(Run(), description=RUN_HELP)

    def request(self, engine: str) -> Request:
        """Return the request of the stages."""
        source, output, run = self.resolve_paths()
        return self.with_checks(make_applying_request(source, absolute(self.fitted), output, run, engine))


def _read_fitted(path: str, storage_options: Any) -> None:
    """Read a fitted workflow, by the name of the options of its storage; an error if it is not there, or not whole."""
    check_fitted(path)
    options = storage_options if isinstance(storage_options, str) else None  # others are refused later
    with open_published(path, options, "the fitted workflow", "fitted") as copy:
        read_fitted(copy.folder)


def make_application(data: JsonObject, date_of: DateOf = date_of_run_now) -> Application:
    """Make the application of plain values; the fitted workflow is there and whole as far as its JSON says.

    `date_of` says which date its patterns mean.
    """
    check_size(data)
    check_keys(data)
    fitted = data.get("fitted")
    if not is_pattern(fitted) and fitted:
        source = data.get("source")
        _read_fitted(fitted, source.get("storage_options") if isinstance(source, dict) else None)
    application: Application = validate_job(Application, data).with_date(date_of)
    if is_pattern(fitted):
        _read_fitted(application.fitted, application.source.storage_options)
    if application.source.downsample is not None:
        raise JobError(
            "source.downsample is not for apply",
            why="only rows that are learned from are down-sampled",
            do="leave rows out with source.filter",
        )
    for name in Application.refused_of_source:
        if getattr(application.source, name) is not None:
            raise JobError(f"source.{name} is not for apply", do="leave it out; run apply once for each data set")
    check_filter(application.source)
    check_access(application)
    application.rules()
    refuse_source_inside(application)
    exchange_on(application.run, application.cluster)
    return application


def exchange_on(run: Run, cluster: Cluster) -> JsonObject:
    """Workers that come and go cannot keep the pieces: whoever is retired would take them along."""
    if cluster.scaling and run.exchange == "memory":
        scaled_by = "adapt" if cluster.adapt else cluster.kind if cluster.preset else "adapt_kwargs"
        raise JobError(
            "the exchange in memory needs workers that stay",
            where=f"run.exchange, cluster.{scaled_by}",
            why="a worker that is retired takes its pieces with it",
            do="leave out one of the two",
        )
    return {"exchange": "disk"} if cluster.scaling else {}


def absolute_target(source: Source) -> str:
    """`source.bad_lines` with the path of a file from the root."""
    named = source.bad_lines
    return named if named in ("error", "skip") else str(absolute(named))


def local_base(base: str, job: CheckedJob) -> Path:
    """The folder of the base of a job on this host: of one on an object store its mirror."""
    options: str | Mapping[str, Any] | None = job.output.storage_options
    if not options and not is_local(base):
        options = storage(job.source.storage_options, "source.storage_options")
    mirror = find_mirror(base, options)
    return mirror.folder if mirror else Path(absolute(base))


def absolute(path: Any) -> Any:
    """Paths of this host from the root; URLs, and None, as they are."""
    if isinstance(path, list):
        return [absolute(p) for p in path]
    return path if path is None or "://" in path else str(Path.cwd() / path)


def _add_place(error: RowmillError, place: str) -> RowmillError:
    """Return the same error with its place in the job, before the place that it shows in an expression."""
    where = f"{place}\n         {error.where}" if error.where else place
    return type(error)(error.what, where=where, why=error.why, do=error.do)


def recipes() -> list[str]:
    """Return the names of the shipped recipes."""
    return sorted(p.stem for p in RECIPES.glob("*.yaml"))


def load_job(source: str | Path | JsonObject, changes: Sequence[str] = (), sample: bool = False) -> Job:
    """Load the job of a YAML file (or of its content), with `section.key=value` changes; every mistake is a JobError.

    `sample`: look-alike data are wanted at the job's paths, wherever these were written.
    """
    lines = Lines()
    written = read_yaml(Path(source), lines) if isinstance(source, (str, Path)) else dict(source)
    data = dict(written)
    changed = dict[str, Any]()
    for change in changes:
        for place in (data, changed):
            set_key(place, change)
        lines.forget_line(change.partition("=")[0].strip())
    if not sample:
        return make_job(with_own_sample(written, changed, data), lines)
    whole = merge_maps(recipe_of(data), data).get("source")
    if not isinstance(whole, Mapping) or not whole.get("sample"):
        do = "give it: --set 'source.sample={name: toy, rows: 1000000}', or begin with a recipe"
        raise JobError("the job names no sample", where="--sample", why="what to make is not known", do=do)
    return make_job({**data, "source": dict(whole)}, lines)


def make_job(data: JsonObject, lines: Lines | None = None, date_of: DateOf = date_of_run_now) -> Job:
    """Make the job of plain values; what a recipe says is the base (maps merge, lists replace).

    `features` may be YAML text, of a whole job too. Messages name the line, of that text or of the file that `lines`
    knows. `date_of` says which date the job's patterns mean.
    """
    limit_deployment()
    check_size(data)
    lines = lines or Lines()
    own = _with_features(with_whole_job(data, lines), lines)
    check_keys(own)  # of the job alone: a recipe names data to try it with
    job: Job = validate_job(Job, with_recipe(own), lines)
    try:
        job = job.with_date(date_of)
        graph = job.graph()
        check_filter(job.source)
    except RowmillError as error:
        raise lines.add_line(error) from None
    check_access(job, graph)
    check_refit(job.base, job.refit, graph, lines)
    _check_split(job)
    job.rules()
    refuse_source_inside(job)
    exchange_on(job.run, job.cluster)
    return job


def _check_split(job: Job) -> None:
    """Raise a JobError for a job that divides its source and has validation data, or a base, beside it."""
    if job.source.split is None:
        return
    if job.source.valid is not None:
        raise JobError(
            "source.split and source.valid contradict each other",
            where="source.split",
            why="both say which rows are validation data",
            do="leave out one of the two",
        )
    if job.base not in (None, NO_BASE):
        raise JobError(
            "source.split is not for a job with a base",
            where="source.split, base",
            why="rows that were validation data of one night could be learned from in the next",
            do="leave out base; or leave out source.split, and name separate validation data: source.valid",
        )


def check_refit(base: str | None, refit: Refitting, graph: Node, lines: Lines | None = None) -> None:
    """Raise a JobError for a base that may not be read, and for keys of `refit` that name nothing that learns."""
    lines = lines or Lines()
    check_base(None if base == NO_BASE else base)
    if base is None and refit.model_fields_set | refit.settings.keys():
        raise JobError(
            "refit says how to learn on top of a base, but the job names none",
            where=_describe_job_place(("refit",), lines),
            do="write base: the path of an output, such as that of output.path",
        )
    learning = [node for node in topological(graph) if node.op is not None and isinstance(node.op, Learned)]
    names = sorted({type(node.op).__name__ for node in learning})
    entries = list(dict.fromkeys(node.name for node in topological(graph) if ENTRY.fullmatch(node.name)))
    for key, value in refit.settings.items():
        place = _describe_job_place(("refit", key), lines)
        hint = near(key, [*Refitting.model_fields, *names, *entries])
        if key in (*names, *entries):
            pass
        elif key in Operator.registry:
            raise JobError(f"refit names {key!r}, which learns nothing in this job", where=place, do=hint)
        elif key.startswith("features") or hint.startswith("did"):  # else a column, which its schema alone knows
            raise JobError(f"{key!r} is not a key of refit", where=place, do=hint)
        if value not in MODES:
            raise JobError(f"{key} is {value!r}", where=place, do=f"write {' or '.join(MODES)}")


def refuse_source_inside(job: CheckedJob) -> None:
    for path in (job.source.path, job.source.valid, getattr(job, "refit", Refitting()).learn_from):
        refuse_inside(path or [], job.output.path)


def with_whole_job(data: JsonObject, lines: Lines) -> JsonObject:
    """The data with a whole job where `features` is the text of one, such as a draft: the other values are laid over
    it. A JobError for a job file beside it, and for values that differ from those of the text."""
    text = data.get("features")
    if not isinstance(text, str):
        return data
    written = parse_yaml(text, "features")
    if not isinstance(written, dict) or not (written.keys() - {"features"}) & Job.model_fields.keys():
        return data
    others = {name: value for name, value in data.items() if name != "features" and value is not None}
    if others.get("job"):
        raise JobError(
            "job and features both have a whole job",
            where="job, features",
            why="neither takes precedence",
            do="leave one of them empty; the other fields override its values",
        )
    own = Lines().of(text, "features")
    for place, value in flat(others):
        there: JsonObject = written
        for key in place[:-1]:
            inner = there.get(key)
            there = inner if isinstance(inner, dict) else {}
        if place[-1] in there and there[place[-1]] != value:
            raise JobError(
                f"{'.'.join(place)} is given twice, with different values",
                where=f"{'.'.join(place)}, features{own.place(place)}",
                why=f"the field says {value!r}, and the job in features {there[place[-1]]!r}",
                do="leave the field empty, or remove it from the job in features: a value that is given once counts",
            )
    lines.of(text, "features")
    for place, _ in flat(others):
        lines.forget_line(".".join(place))
    return overlay_job(written, others)


def flat(data: Mapping[str, Any], before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Path and value of every key that is not a map.

    >>> [*flat({"label": ["y"], "output": {"seed": 1}})]
    [(('label',), ['y']), (('output', 'seed'), 1)]
    """
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from flat(value, (*before, name))
        else:
            yield (*before, name), value


def _with_features(data: JsonObject, lines: Lines) -> JsonObject:
    """The data with `features` as a list where it is YAML text: the list, or the map that has it under `features`."""
    text = data.get("features")
    if not isinstance(text, str):
        return data
    features = parse_yaml(text, "features")
    whole = features if isinstance(features, dict) and list(features) == ["features"] else None
    features = whole["features"] if whole else features
    if not isinstance(features, list):
        why = "it is a map" if isinstance(features, dict) else f"it is {features!r}"
        do = "choose it as `recipe`" if features in recipes() else "begin each entry with a dash: - columns: [x, y]"
        raise JobError("features is not a list of entries", where="features", why=why, do=do)
    lines.of(text, "features", () if whole else ("features",))
    return {**data, "features": features}


def validate_job(model: type[S], data: JsonObject, lines: Lines | None = None) -> S:
    known = lines or Lines()
    if beyond := [f"{_describe_job_place(path, known)} {why}" for path, why in _beyond(data)]:
        raise JobError("the job is not valid:\n    " + "\n    ".join(beyond))
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise JobError("the job is not valid:\n    " + "\n    ".join(_lines(error, data, model, known))) from None


def check_size(data: JsonObject) -> None:
    """Raise a JobError for values that lie too deep in each other, or are too many: of a file, a form or a call."""
    todo: list[tuple[Any, int, str]] = [(value, 1, str(name)) for name, value in data.items()]
    count = 0
    while todo:
        value, depth, section = todo.pop()
        count += 1
        if depth > bounded_yaml.MOST_DEPTH:
            raise JobError(
                f"values are nested more than {bounded_yaml.MOST_DEPTH} levels deep",
                where=section,
                do="write the job flat",
            )
        if count > MOST_VALUES:
            raise JobError(
                f"the job has more than {MOST_VALUES:,} values",
                where=section,
                do="put long lists into files, or name folders in the place of paths",
            )
        inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
        todo += [(item, depth + 1, section) for item in inner]


def _beyond(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Values that the server cannot keep, and then shows no run at all: where they stand, and why."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _beyond(inner, (*path, str(key)))
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            yield from _beyond(inner, (*path, number))
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        yield path, f"needs more than 64 bits: {value:.3e}" if abs(value) < 2**1000 else "needs more than 64 bits"
    elif isinstance(value, str) and not _is_text(value):
        yield path, f"is not text that can be kept: {value!r}"


def _is_text(value: str) -> bool:
    """Without a NUL, and without halves of a character of UTF-16."""
    return "\0" not in value and not any("\ud800" <= c <= "\udfff" for c in value)


def check_filter(source: Source) -> None:
    if source.filter is not None:
        try:
            parse(source.filter)
        except RowmillError as error:
            raise _add_place(error, "source.filter") from None
    if source.downsample is not None:
        try:
            parse(source.downsample.where)
        except RowmillError as error:
            raise _add_place(error, "source.downsample.where") from None


def with_recipe(data: JsonObject) -> JsonObject:
    return overlay_job(recipe_of(data), data)


def recipe_of(data: JsonObject) -> JsonObject:
    """Return the job of the recipe that a job begins with; {} without one."""
    name = data.get("recipe")
    if not name:
        return {}
    if name not in recipes():
        raise JobError(f"there is no recipe {name!r}", where="recipe", do=near(str(name), recipes()))
    return read_yaml(RECIPES / f"{name}.yaml")


def overlay_job(base: JsonObject, over: JsonObject) -> JsonObject:
    """A partial job laid over another: `merge_maps`, and one way to say how many files replaces the others. A sample
    belongs to the paths that it was written for.

    >>> overlay_job({"output": {"path": "out", "files_per_worker": 8}}, {"output": {"files": 2}})
    {'output': {'path': 'out', 'files': 2}}
    >>> overlay_job({"source": {"path": "data/toy", "sample": {"name": "toy"}}}, {"source": {"path": "data/typo"}})
    {'source': {'path': 'data/typo', 'sample': None}}
    """
    out = merge_maps(base, over)
    ways = {"files", "files_per_worker", "rows_per_file"}
    out = with_own_sample(base, over, out)
    section = over.get("output")
    if isinstance(section, Mapping) and any(section.get(way) is not None for way in ways):
        out["output"] = {key: value for key, value in out["output"].items() if key not in ways or key in section}
    return out


def with_own_sample(base: JsonObject, over: JsonObject, out: JsonObject) -> JsonObject:
    """The result `out` of laying `over` over `base`, which makes no look-alike data at a path that `over` brings.

    A sample in `base` was written for the paths of `base`: at another path that is mistyped, made-up data would be
    taken for the user's. Validation data of `base`, made up as well, go with it. A sample in `over` counts.
    """
    first = base.get("source")
    second = over.get("source")
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        return out
    if not isinstance(first.get("sample"), Mapping):
        return out
    if second.get("sample") is not None:
        return out
    source = dict(out["source"])
    if "path" in second and second["path"] != first.get("path"):
        source["sample"] = None
        if "valid" not in second:
            source.pop("valid", None)
    elif second.get("valid") is not None and second["valid"] != first.get("valid"):
        source["sample"] = {**first["sample"], "valid": False}
    return {**out, "source": source}


def merge_maps(base: JsonObject, over: JsonObject) -> JsonObject:
    """`over` laid over `base`: maps merge, everything else is replaced.

    >>> merge_maps({"a": {"x": 1, "y": [1, 2]}}, {"a": {"y": [3]}})
    {'a': {'x': 1, 'y': [3]}}
    """
    out = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
        out[key] = merge_maps(out[key], value) if both else value
    return out


def read_yaml(path: Path, lines: Lines | None = None) -> JsonObject:
    """Read the content of a job file, whose lines are added to `lines`; a JobError shows the line that is not YAML."""
    if not path.is_file() and path.suffix == "" and str(path) in recipes():
        path = RECIPES / f"{path.name}.yaml"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        do = "give the path of a YAML file in UTF-8, or the name of a recipe: " + ", ".join(recipes())
        why = getattr(error, "strerror", None) or str(error)
        raise JobError("the job file cannot be read", where=str(path), why=why, do=do) from None
    return _sections(text, str(path), path.name, lines)


def read_job(job: str, folder: Path | None = None, lines: Lines | None = None) -> JsonObject:
    """The content of a job file, by its path in a folder; of a job that is written out itself, in several lines."""
    if is_written_out(job):
        return _sections(job, "job", "job", lines)
    return read_yaml((folder or Path()) / job, lines)


def is_written_out(job: str) -> bool:
    """True for the text of a job, False for the path of its file."""
    return "\n" in job.strip()


def _sections(text: str, where: str, name: str, lines: Lines | None) -> JsonObject:
    data = parse_yaml(text, where)
    if not isinstance(data, dict):
        raise JobError(
            "the job is not a map of sections", where=where, do="write sections: source, features, label, output, .."
        )
    if lines is not None:
        lines.of(text, name)
    return data


def set_key(data: JsonObject, change: str, model: type[Section] = Job) -> None:
    """`output.seed=1` into the data; the value is YAML."""
    path, equals, text = change.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        do = "write section.key=value, for example --set output.seed=1"
        raise JobError(f"{change!r} does not change a key", do=do)
    if keys[0] not in model.model_fields:
        raise JobError(
            f"there is no section {keys[0]!r}", where=f"--set {change}", do=near(keys[0], model.model_fields)
        )
    for key in keys[:-1]:
        inner = data.get(key)
        data[key] = dict(inner) if isinstance(inner, Mapping) else {}
        data = data[key]
    try:
        data[keys[-1]] = bounded_yaml.load(text)
    except (yaml.YAMLError, ValueError) as error:
        why = str(getattr(error, "problem", None) or error)
        do = "quote the value for the shell: --set 'source.path=[a, b]'"
        raise JobError("the value is not valid YAML", where=f"--set {change[:200]}", why=why, do=do) from None


def _lines(error: ValidationError, data: JsonObject, model: type[Section], known: Lines) -> list[str]:
    """Return a line per mistake: its place in the job, what is wrong, and near names for unknown keys."""
    lines = []
    for one in mistakes(error, data):
        place = _describe_job_place(one.place, known)
        if one.kind == "unknown":
            lines.append(f"{place} is unknown: {near(str(one.place[-1]), _list_known_keys(one.place[:-1], model))}")
        elif one.kind == "missing":
            lines.append(f"{place} is missing")
        elif one.text.startswith("needs a map"):
            lines.append(f"{place}: {one.text.partition(': write {')[0]}: {_map_of(one.place, data, model)}")
        else:
            lines.append(f"{place}: {one.text}")
    return list(dict.fromkeys(lines))


def _map_of(place: Sequence[str | int], data: Any, model: type[Section]) -> str:
    """What to write where a map is needed: an entry of features, an operator, a section with its keys."""
    for key in place:
        data = data[key]
    if place[0] == "features" and len(place) == 2:
        return f"write - columns: {_yaml(data if isinstance(data, list) else [data])}"
    if place[0] == "features" and len(place) == 4:
        return f"write {{op: {_yaml(data[0] if isinstance(data, list) and len(data) == 1 else data)}}}"
    keys = _list_known_keys(place, model)
    if keys == _list_known_keys(place[:-1], model):  # a map of names that are the user's own
        return "write {key: value}"
    if keys[0] in ("path", "name", "kind") and isinstance(data, str):
        return f"write {{{keys[0]}: {data}}}"
    return "write {key: value}; " + near("", keys)


def _yaml(value: object) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=1000)
    return text.removesuffix("...\n").strip()


def _describe_job_place(path: Sequence[str | int], known: Lines) -> str:
    return place_text(path) + known.place(path)


def _list_known_keys(loc: Sequence[Any], model: type[Section]) -> list[str]:
    for key in loc:
        if isinstance(key, str) and hasattr(model, "model_fields"):
            field = next((f for n, f in model.model_fields.items() if key in (n, f.alias)), None)
            kinds = [field.annotation, *getattr(field.annotation, "__args__", ())] if field else []
            model = next(
                (k for k in kinds if hasattr(k, "model_fields")),
                next((a for k in kinds for a in getattr(k, "__args__", ()) if hasattr(a, "model_fields")), model),
            )
    return [f.alias or n for n, f in model.model_fields.items()]
