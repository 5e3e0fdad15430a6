"""The job: one set of models that is the YAML file, the parameters of the flow and the form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError

from flows.access import check_access, check_fitted, limit_deployment
from flows.lines import Lines, parse_yaml
from infra.clusters import Cluster
from tasks import ops
from tasks.applied import applying_request
from tasks.errors import JobError, MillraceError, near
from tasks.files import refuse_inside
from tasks.fitted import read_fitted
from tasks.frame.expression import parse
from tasks.graph import Node
from tasks.ops.base import operator_class
from tasks.ops.schema_ops import AddTags
from tasks.run import Request, make_request
from tasks.schema import Tags
from tasks.settings import Output, Run, Section, Source

UNIONS = ("str", "list[str]")  # in the place of a mistake, where a value may be either
RECIPES = Path(__file__).parent / "recipes"


class Feature(Section):
    """Columns, and the operators that they go through one after another. A nested list of columns is a group."""

    columns: list[str | list[str]] = Field(min_length=1)
    ops: list[dict[str, Any]] = []
    keep: bool = Field(True, description="false: only for entries below, not written")


class Job(Section):
    """A whole job: where rows come from, what becomes of them, where they go, and on which workers."""

    recipe: str | None = None
    source: Source
    features: list[Feature] = Field(min_length=1)
    label: list[str] = []
    output: Output
    cluster: Cluster = Cluster()
    run: Run = Run()

    def graph(self) -> Node:
        """The features from top to bottom, then the labels; entries see what entries above them made."""
        made: list[Node] = []
        kept: list[Node] = []
        for number, feature in enumerate(self.features):
            title = f"features[{number}]"
            selection = tuple(tuple(c) if isinstance(c, list) else c for c in feature.columns)
            node = Node("pick", tuple(made), selection=selection, name=title)
            for position, spec in enumerate(feature.ops):
                try:
                    node = Node("apply", (node,), ops.make_operator(spec), name=title)
                except MillraceError as error:
                    raise _placed(error, f"{title}.ops[{position}]") from None
            made.append(node)
            if feature.keep:
                kept.append(node)
            elif any(operator_class(str(spec["op"])).removes_rows for spec in feature.ops):
                kept.append(Node("pick", (node,), name=title))  # no columns, but its filter holds for the whole table
        if self.label:
            picked = Node("pick", tuple(made), selection=tuple(self.label), name="label")
            kept.append(Node("apply", (picked,), AddTags(tags=[Tags.TARGET.value]), name="label"))
        if not kept:
            raise JobError(
                "nothing is written", where="features", why="every entry has keep: false and there is no label"
            )
        return Node("join", tuple(kept), name="output")

    def request(self, engine: str) -> Request:
        """What the stages work from; paths are absolute, since workers may have another current folder."""
        source = self.source.model_copy(
            update={"path": _absolute(self.source.path), "valid": _absolute(self.source.valid)}
        )
        output = self.output.model_copy(update={"path": _absolute(self.output.path)})
        run = self.run.model_copy(update={"scratch": _absolute(self.run.scratch), **_exchange(self.run, self.cluster)})
        return make_request(source, self.graph(), output, run, engine, self.label)


class Application(Section):
    """A fitted workflow over new data: which one, where the rows come from, where they go, and on which workers."""

    fitted: str = Field(description="folder of a fitted workflow, or an output that holds one")
    source: Source
    output: Output
    cluster: Cluster = Cluster()
    run: Run = Run()

    def request(self, engine: str) -> Request:
        """What the stages work from; paths are absolute."""
        source = self.source.model_copy(update={"path": _absolute(self.source.path)})
        output = self.output.model_copy(update={"path": _absolute(self.output.path)})
        run = self.run.model_copy(update={"scratch": _absolute(self.run.scratch), **_exchange(self.run, self.cluster)})
        return applying_request(source, Path(_absolute(self.fitted)), output, run, engine)


def make_application(data: Mapping[str, Any]) -> Application:
    """The application of plain values; filter, keys and sort_by are those of the fit if the source says nothing."""
    fitted = data.get("fitted")
    check_fitted(fitted)
    if fitted and isinstance(data.get("source"), Mapping):
        said = read_fitted(Path(fitted)).get("source") or {}
        data = {**data, "source": {**said, **data["source"]}}
    application: Application = _valid(Application, data)
    for name in ("valid", "sample"):
        if getattr(application.source, name) is not None:
            raise JobError(f"source.{name} is not for apply", do="give source.path; run it once per data set")
    _check_filter(application.source)
    check_access(application)
    _refuse_inside(application)
    _exchange(application.run, application.cluster)
    return application


def _exchange(run: Run, cluster: Cluster) -> dict[str, Any]:
    """Workers that come and go cannot keep the pieces: whoever is retired would take them along."""
    if cluster.adapt and run.exchange == "memory":
        raise JobError(
            "the exchange in memory needs workers that stay",
            where="run.exchange, cluster.adapt",
            why="a worker that is retired takes its pieces along",
            do="leave out one of the two",
        )
    return {"exchange": "disk"} if cluster.adapt else {}


def _absolute(path: Any) -> Any:
    """Paths of this host from the root; URLs, and None, as they are."""
    if isinstance(path, list):
        return [_absolute(p) for p in path]
    return path if path is None or "://" in path else str(Path.cwd() / path)


def _placed(error: MillraceError, place: str) -> MillraceError:
    """The same error with its place in the job, before the place that it shows in an expression."""
    where = f"{place}\n         {error.where}" if error.where else place
    return type(error)(error.what, where=where, why=error.why, do=error.do)


def recipes() -> list[str]:
    """The names of the shipped recipes."""
    return sorted(p.stem for p in RECIPES.glob("*.yaml"))


def load_job(source: str | Path | Mapping[str, Any], changes: Sequence[str] = ()) -> Job:
    """The job of a YAML file (or of its content), with `section.key=value` changes; every mistake is a JobError."""
    lines = Lines()
    data = read_yaml(Path(source), lines) if isinstance(source, (str, Path)) else dict(source)
    for change in changes:
        set_key(data, change)
        lines.changed(change.partition("=")[0].strip())
    return make_job(data, lines)


def make_job(data: Mapping[str, Any], lines: Lines | None = None) -> Job:
    """The job of plain values; what a recipe says is the base (maps merge, lists replace).

    `features` may be YAML text. Messages name the line, of that text or of the file that `lines` knows.
    """
    limit_deployment()
    lines = lines or Lines()
    job: Job = _valid(Job, with_recipe(_with_features(data, lines)), lines)
    try:
        graph = job.graph()
        _check_filter(job.source)
    except MillraceError as error:
        raise lines.placed(error) from None
    check_access(job, graph)
    _refuse_inside(job)
    _exchange(job.run, job.cluster)
    return job


def _refuse_inside(job: Job | Application) -> None:
    for path in (job.source.path, job.source.valid):
        refuse_inside(path or [], job.output.path)


def _with_features(data: Mapping[str, Any], lines: Lines) -> Mapping[str, Any]:
    """The data with `features` as a list where it is YAML text: the list, or the map that has it under `features`."""
    text = data.get("features")
    if not isinstance(text, str):
        return data
    found = parse_yaml(text, "features")
    whole = isinstance(found, dict) and list(found) == ["features"]
    found = found["features"] if whole else found
    if not isinstance(found, list):
        why = "it is a map" if isinstance(found, dict) else f"it is {found!r}"
        do = "choose it as `recipe`" if found in recipes() else "begin each entry with a dash: - columns: [x, y]"
        raise JobError("features is no list of entries", where="features", why=why, do=do)
    lines.of(text, "features", () if whole else ("features",))
    return {**data, "features": found}


def _valid(model: type[Section], data: Mapping[str, Any], lines: Lines | None = None) -> Any:
    known = lines or Lines()
    if beyond := [f"{_place(path, known)} {why}" for path, why in _beyond(data)]:
        raise JobError("the job is not right:\n    " + "\n    ".join(beyond))
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise JobError("the job is not right:\n    " + "\n    ".join(_lines(error, model, known))) from None


def _beyond(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
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
        yield path, f"is no text that can be kept: {value!r}"


def _is_text(value: str) -> bool:
    """Without a NUL, and without halves of a character of UTF-16."""
    return "\0" not in value and not any("\ud800" <= c <= "\udfff" for c in value)


def _check_filter(source: Source) -> None:
    if source.filter is not None:
        try:
            parse(source.filter)
        except MillraceError as error:
            raise _placed(error, "source.filter") from None


def with_recipe(data: Mapping[str, Any]) -> dict[str, Any]:
    name = data.get("recipe")
    if not name:
        return dict(data)
    if name not in recipes():
        raise JobError(f"there is no recipe {name!r}", where="recipe", do=near(str(name), recipes()))
    return laid_over(read_yaml(RECIPES / f"{name}.yaml"), data)


def laid_over(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A partial job laid over another: `merged`, and one way to say how many files replaces the others.

    >>> laid_over({"output": {"path": "out", "files_per_worker": 8}}, {"output": {"files": 2}})
    {'output': {'path': 'out', 'files': 2}}
    """
    out, ways = merged(base, over), {"files", "files_per_worker", "rows_per_file"}
    said = over.get("output")
    if isinstance(said, Mapping) and any(said.get(way) is not None for way in ways):
        out["output"] = {key: value for key, value in out["output"].items() if key not in ways or key in said}
    return out


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid over `base`: maps merge, everything else is replaced.

    >>> merged({"a": {"x": 1, "y": [1, 2]}}, {"a": {"y": [3]}})
    {'a': {'x': 1, 'y': [3]}}
    """
    out = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
        out[key] = merged(out[key], value) if both else value
    return out


def read_yaml(path: Path, lines: Lines | None = None) -> dict[str, Any]:
    """The content of a job file, whose lines are added to `lines`; a JobError shows the line that is no YAML."""
    if not path.exists() and path.suffix == "" and path.name in recipes():
        path = RECIPES / f"{path.name}.yaml"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        do = "give the path of a YAML file in UTF-8, or the name of a recipe: " + ", ".join(recipes())
        why = getattr(error, "strerror", None) or str(error)
        raise JobError("the job file cannot be read", where=str(path), why=why, do=do) from None
    data = parse_yaml(text, str(path))
    if not isinstance(data, dict):
        raise JobError(
            "the job is no map of sections", where=str(path), do="write sections: source, features, label, output, .."
        )
    if lines is not None:
        lines.of(text, path.name)
    return data


def set_key(data: dict[str, Any], change: str, model: type[Section] = Job) -> None:
    """`output.seed=1` into the data; the value is YAML."""
    path, equals, text = change.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise JobError(f"{change!r} is no change", do="write section.key=value, for example --set output.seed=1")
    if keys[0] not in model.model_fields:
        raise JobError(
            f"there is no section {keys[0]!r}", where=f"--set {change}", do=near(keys[0], model.model_fields)
        )
    for key in keys[:-1]:
        inner = data.get(key)
        data[key] = dict(inner) if isinstance(inner, Mapping) else {}
        data = data[key]
    try:
        data[keys[-1]] = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        why = str(getattr(error, "problem", None) or error)
        do = "quote the value for the shell: --set 'source.path=[a, b]'"
        raise JobError("the value is no valid YAML", where=f"--set {change}", why=why, do=do) from None


def _lines(error: ValidationError, model: type[Section], known: Lines) -> list[str]:
    """A line per mistake: its place in the job, what is wrong, and near names for unknown keys."""
    lines = []
    for item in error.errors():
        place = _place([p for p in item["loc"] if p not in UNIONS], known)
        if item["type"] == "extra_forbidden":
            lines.append(f"{place} is unknown: {near(str(item['loc'][-1]), _known(item['loc'][:-1], model))}")
        elif item["type"] == "missing":
            lines.append(f"{place} is missing")
        else:
            got = "" if isinstance(item.get("input"), (dict, list)) else f" (it is {item.get('input')!r})"
            lines.append(f"{place}: {item['msg'].removeprefix('Value error, ')}{got}")
    return list(dict.fromkeys(lines))


def _place(path: Sequence[str | int], known: Lines) -> str:
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).lstrip(".") + known.place(path)


def _known(loc: Sequence[Any], model: Any) -> list[str]:
    for key in loc:
        if isinstance(key, str) and hasattr(model, "model_fields"):
            field = next((f for n, f in model.model_fields.items() if key in (n, f.alias)), None)
            kinds = [field.annotation, *getattr(field.annotation, "__args__", ())] if field else []
            model = next(
                (k for k in kinds if hasattr(k, "model_fields")),
                next((a for k in kinds for a in getattr(k, "__args__", ()) if hasattr(a, "model_fields")), model),
            )
    return [f.alias or n for n, f in model.model_fields.items()]
