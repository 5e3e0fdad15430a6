"""The contents of outputs, fitted workflows and operators, as tables for people."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.commands.console import terminal
from flows.preview.preview_tables import print_rows, print_table, text_table
from tasks.core.dtypes import dtype_name
from tasks.core.merlin import merlin_text
from tasks.core.schema import Schema, embeddings_of
from tasks.core.strict_json import JsonObject
from tasks.core.units import amount
from tasks.engines.convert.python_values import rows_listed
from tasks.errors import DataError, HostError, JobError, near
from tasks.graph.binding import Step
from tasks.graph.column_lineage import ColumnLineage
from tasks.graph.learned_text import (
    count_distinct_values,
    describe_fitted,
    describe_frequent_values,
    format_value,
    is_vocabulary,
    select_learned_steps,
    tabulate_growth,
)
from tasks.graph.refit_history import history_lines, read_files
from tasks.graph.saved_workflow import SavedWorkflow, find_fitted_folder, load_fitted, read_fitted
from tasks.graph.state import load_changes
from tasks.job.output_check import list_damages_and_strangers
from tasks.job.publication import read_publication
from tasks.manifest import Manifest, describe_run_date, folders_of, no_output, outputs
from tasks.ops.base import Learned, Operator, operator_class
from tasks.ops.docstrings import docstring_of
from tasks.ops.fitted_values import FittedValues
from tasks.ops.installed import classes_of, entries
from tasks.report.growth_section import describe_growth
from tasks.shuffle.row_order import describe_choice
from tasks.sources.formats.bounds import validate_table
from tasks.sources.reading_rules import reading_lines
from tasks.storage.arrow_files import make_dataset
from tasks.storage.discarded import is_discarded, make_discard_line, read_mark
from tasks.storage.documents import make_damage_error
from tasks.storage.output import PublishedOutput
from tasks.storage.own_files import FITTED, MANIFEST, SPLITS, VERSION, WORKFLOW, current, splits_of
from tasks.storage.published_copy import PublishedCopy, open_published
from tasks.storage.sample_data import describe_sample_data

NEEDED = "needed"


# verify


class Verification(NamedTuple):
    """What `rowmill verify` says: lines on the folders that are whole, after one on an output that was taken back,
    lines on what is damaged, and what to do about it."""

    whole: list[str]
    damages: list[str]
    remedy: str


def verify_output(out: str | Path, storage_options: str | None = None) -> Verification:
    """Compare an output, by path or URL, with its manifests; a DataError if it is not an output at all."""
    with open_published(out, storage_options, "the output", "OUT") as origin:
        return _verify(origin)


def _verify(origin: PublishedCopy) -> Verification:
    whole = list[str]()
    damaged = list[str]()
    root = current(origin.folder)
    folders = folders_of(origin.folder)
    if line := make_discard_line(root):
        whole.append(origin.with_urls(line))
    for folder in folders:
        split = f"{folder.name}: " if folder.name in SPLITS and folder != root else ""
        try:
            manifest = Manifest.read(folder, folder)
        except DataError as error:
            damaged.append(origin.with_urls(f"{split}{error.what}: {error.where}: {error.why}"))
            continue
        lines = [f"{split}{line}" for line in list_damages_and_strangers(folder, origin)]
        damaged += lines
        if not lines:
            nbytes = sum(part["bytes"] for part in manifest.parts)
            counts = f"{manifest.rows['out']:,} rows in {len(manifest.parts)} parts, {amount(nbytes)}"
            whole.append(f"{split}whole: {counts}")
    if folders[0] != root:
        names = {folder.name for folder in folders}
        damaged += [f"{split}: {MANIFEST} is missing" for split in splits_of(root) if split not in names]
    return Verification(whole, damaged + _find_workflow_damage(root), _find_remedy(origin))


def _find_remedy(origin: PublishedCopy) -> str:
    """What to do about a damaged output: a version is not replaced, others are next to it."""
    root = current(origin.folder)
    version = root if origin.is_copy else root.resolve()
    version = version.parent if version.name in SPLITS else version
    name = origin.name(version)
    if not VERSION.fullmatch(origin.label(version)):
        copied = "copy it there again, or " if origin.is_copy else ""
        return f"{copied}run the job again with output.on_existing: replace"
    typed = f"{name.rpartition('/')[0]}/{origin.label(version)}"
    back = "" if is_discarded(version) else f"take it back, rowmill discard {typed}, and "
    return f"restore it from a copy; or {back}run its night again"


def _find_workflow_damage(root: Path) -> list[str]:
    folder = root / WORKFLOW
    if not folder.exists():
        return [f"{WORKFLOW} is missing"]
    try:
        load_fitted(folder, look=True)
    except DataError as error:
        return [f"{WORKFLOW}: {error.what}"]
    return []


# inspect


def show_folder(
    out: str | Path,
    rows: int = 5,
    values: int = 5,
    console: Console | None = None,
    storage_options: str | None = None,
) -> None:
    """Print an output (with train and valid), or a saved workflow, by path or URL."""
    console = console or terminal()
    with open_published(out, storage_options, "the output", "OUT", every_version=True) as origin:
        root = current(origin.folder)
        if (root / FITTED).exists():
            _show_workflow(root, origin, values, console)
            return
        folders = folders_of(origin.folder)
        for folder in folders:
            _show_output(folder, origin, console)
        _show_history(folders[0], console)
        _show_learned(folders[0], values, console)
        _show_growth(folders[0], console)
        _show_embeddings(origin.folder, console)
        for folder in folders:
            _show_first(folder, origin, rows, console)


def _show_output(folder: Path, origin: PublishedCopy, console: Console) -> None:
    manifest = Manifest.load(folder)
    data = manifest.data
    counts = manifest.rows
    console.print(origin.name(folder), style="bold", markup=False, soft_wrap=True)
    words = {"other_splits": "in other splits", "dropped": "dropped", "added": "added"}
    changes = "".join(f", {counts[what]:,} {text}" for what, text in words.items() if counts.get(what))
    output = data["output"]
    rows_text = f"{counts['out']:,} rows of {counts['in']:,}{changes}; shuffle {output['shuffle']}, seed {data['seed']}"
    if chosen := output.get("files_chosen"):
        rows_text += f"; output.files {output['files']:,}, {describe_choice(chosen['rows'], chosen['row_bytes'])}"
    created = data["created"][:19].replace("T", " ") + " UTC"
    by = f"written {created} by rowmill {data['rowmill']} ({data['engine']})"
    console.print(f"{rows_text}; {by}", soft_wrap=True)
    if data.get("run"):
        console.print(f"Prefect flow run {data['run']}", soft_wrap=True)
    _show_date(data.get("dated"), console)
    if mark := read_mark(current_version(folder)):
        why = f": {mark.why}" if mark.why else ""
        console.print(f"discarded by {mark.who} at {mark.when}{why}", style="red", markup=False, soft_wrap=True)
    if base := data.get("base"):
        text = "none yet: the first version" if base == "none" else f"{base['version']}, {base['rows']:,} rows"
        console.print(f"base: {text}", markup=False, soft_wrap=True)
    if lake := data.get("table"):
        state = f"snapshot {lake['snapshot']}" if lake["kind"] == "iceberg" else f"version {lake['version']}"
        since = f", since snapshot {lake['since']}" if "since" in lake else ""
        text = f"source: {state} of {lake['name']}{since}, {lake['files']:,} file(s), {lake['left_out']:,} left out"
        console.print(text, markup=False, soft_wrap=True)
    _show_reading(data.get("reading") or {}, console)
    if data.get("made_up"):
        console.print(f"made-up data: {describe_sample_data(data['made_up'])}", markup=False, soft_wrap=True)
    for line in data.get("differs_from_fit", ()):
        console.print(f"different from the fit: {line}", markup=False, soft_wrap=True)
    if data.get("left_out"):
        console.print(f"left out: {', '.join(data['left_out'])}", markup=False, soft_wrap=True)
    _print_schema("columns", Schema.from_json(data["schema"]), console)
    table = text_table("parts", "file", "rows>", "bytes>", "xxh3-128")
    for part in manifest.parts[:20]:
        table.add_row(part["path"], f"{part['rows']:,}", amount(part["bytes"]), part["xxh3_128"])
    print_table(table, console)
    if len(manifest.parts) > 20:
        console.print(f"and {len(manifest.parts) - 20:,} more parts")


def _print_schema(title: str, schema: Schema, console: Console) -> None:
    table = text_table(title, "column", "type", "tags", "ids>", "embedding")
    for column in schema.columns:
        embedding = column.properties.get("embedding") or {}
        size = f"{embedding['rows']:,} x {embedding['dimension']}" if embedding else ""
        ids = column.properties.get("cardinality")
        tags = ", ".join(sorted(column.tags))
        table.add_row(column.name, dtype_name(column.dtype), tags, f"{ids:,}" if ids else "", size)
    print_table(table, console)


def _show_reading(reading: JsonObject, console: Console) -> None:
    """Print how the rows were read; new data are read in the same way."""
    if reading:
        console.print(f"source read with {'; '.join(reading_lines(reading))}", markup=False, soft_wrap=True)


def _show_date(dated: JsonObject | None, console: Console) -> None:
    """Print the date of the run and what each pattern of its job became."""
    for number, line in enumerate(describe_run_date(dated) if dated else ()):
        console.print(f"{'' if number else 'the date is '}{line}", markup=False, soft_wrap=True)


def _show_workflow(folder: Path, origin: PublishedCopy, values: int, console: Console) -> None:
    saved = load_fitted(folder, look=True)
    console.print(f"{origin.name(folder)}: a fitted workflow", style="bold", markup=False, soft_wrap=True)
    _show_date(read_fitted(folder).get("dated"), console)
    _show_reading(saved.reading, console)
    _print_schema("takes", saved.schema, console)
    _print_schema("gives", saved.bound.output, console)
    _show_history(folder, console)
    _show_learned(folder, values, console)
    _show_growth(folder, console)
    _show_embeddings(folder, console)


def _show_growth(folder: Path, console: Console) -> None:
    """Vocabularies that a refit let grow, over the nights that are still there; nothing of a first fit."""
    known = describe_growth(folder, folder)
    if not known:
        return
    table = text_table("growth on top of " + known["base"], "columns", "before>", "now>", "new>", "wait>", "nights>")
    for row in known["rows"]:
        table.add_row(row["columns"], *(f"{row[name]:,}" for name in ("before", "now", "new", "waiting", "nights")))
    print_table(table, console)


def embeddings_json(out: str | Path, storage_options: str | None = None) -> str:
    """Rows and dimension of the embedding table of every column of ids, a line for each, as JSON."""
    with open_published(out, storage_options, "the output", "OUT") as origin:
        sizes = embeddings_of(load_fitted(origin.folder, look=True).bound.output)
    return "{" + ",".join(f"\n  {json.dumps(name)}: {json.dumps(size)}" for name, size in sizes.items()) + "\n}"


def merlin_schema(out: str | Path, storage_options: str | None = None) -> str:
    """The columns of an output (of train, where it has splits) or of a saved workflow, as Merlin's schema.pbtxt."""
    with open_published(out, storage_options, "the output", "OUT") as origin:
        if (current(origin.folder) / FITTED).exists():
            return merlin_text(load_fitted(origin.folder, look=True).bound.output)
        return Manifest.load(folders_of(origin.folder)[0]).to_merlin()


def _show_embeddings(out: Path, console: Console) -> None:
    console.print("\nembeddings", style="bold")
    console.print(embeddings_json(out), markup=False, soft_wrap=True)


def current_version(folder: Path) -> Path:
    """Return the folder that a mark of `rowmill discard` stands in: that around train and valid."""
    return folder.parent if folder.name in SPLITS and not (folder / WORKFLOW).exists() else folder


def _show_history(folder: Path, console: Console) -> None:
    """Print the nights that a fitted workflow has learned, the sizes of its parts, and what the last refit changed."""
    place = find_fitted_folder(folder)
    data = read_fitted(place)
    for line in history_lines(place, data):
        console.print(line, markup=False, soft_wrap=True)
    rows = tabulate_growth(load_changes(place).get("steps", {}))
    if rows:
        table = text_table("on top of the base", "operator", "columns", "mode", "what")
        for row in rows:
            table.add_row(row["operator"], row["columns"], row["mode"], row["what"] or row["why"])
        print_table(table, console)


def _show_learned(folder: Path, values: int, console: Console) -> None:
    """Vocabularies with their most frequent values, and whatever else the operators learned."""
    saved = load_fitted(folder, look=True)
    steps = select_learned_steps(saved.bound, saved.state.values)
    vocabularies = text_table("vocabularies", "columns", "values>", "not kept>", "nulls>", "most frequent")
    others = text_table("learned", "operator", "columns", "what")
    for key, step in steps.items():
        fitted = saved.state.values[key]
        try:
            _add_learned(step, fitted, values, vocabularies, others)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            why = f"{type(error).__name__}: {error}"
            raise make_damage_error(folder / "state.json", f"fitted.{step.key}", why) from error
    for table in (vocabularies, others):
        if table.row_count:
            print_table(table, console)


def _add_learned(step: Step, fitted: FittedValues, values: int, vocabularies: Table, others: Table) -> None:
    """Return a row for what a step learned."""
    if is_vocabulary(fitted):
        size = fitted["size"]
        counts = (size, count_distinct_values(fitted) - size, fitted.get("nulls", 0))
        row = (*(f"{count:,}" for count in counts), describe_frequent_values(fitted, values))
        vocabularies.add_row(", ".join(step.unit), *row)
    else:
        others.add_row(type(step.op).__name__, ", ".join(step.unit), describe_fitted(fitted))


def _show_first(folder: Path, origin: PublishedCopy, rows: int, console: Console) -> None:
    manifest = Manifest.load(folder)
    parts = [part["path"] for part in manifest.parts if part["rows"]]
    if not rows or not parts:
        return
    place = Path(manifest.path)
    form = {"arrow": "ipc"}.get(manifest.data["output"]["format"], manifest.data["output"]["format"])
    try:
        file = origin.find_file(place / parts[0])
        data = make_dataset(origin.name(place), [file], origin.options, form, manifest.partitioning)
        head = validate_table(data.head(rows))
    except (pa.ArrowException, OSError, ValueError, DataError) as error:
        why = error.why or error.what if isinstance(error, DataError) else str(error).partition("\n")[0]
        raise make_damage_error(place / parts[0], "", why) from None
    texts = [["" if value is None else format_value(value) for value in row.values()] for row in rows_listed(head)]
    console.print(Text(f"\nfirst rows of {origin.label(folder)}/{parts[0]}", style="bold"), soft_wrap=True)
    print_rows(head.column_names, texts, console)


# lineage


def lineage_lines(out: str | Path, column: str | None = None, storage_options: str | None = None) -> Iterator[str]:
    """Yield what an output, or one column of it, was made of: the versions below it, the files that they have learned,
    and the columns of the source with the operators in between."""
    with open_published(out, storage_options, "the output", "OUT", every_version=True) as origin:
        for line in _lineage_lines(origin.folder, column):
            yield origin.with_urls(line)


def _lineage_lines(out: Path, column: str | None) -> Iterator[str]:
    workflow = find_fitted_folder(out)
    if not (workflow / FITTED).exists():
        raise no_output(out)
    saved = load_fitted(out, heads=True, look=True)
    data = read_fitted(out)
    lineage = ColumnLineage(saved.bound)
    history = data.get("history") or {}
    origins = lineage.outputs()
    if column is not None and column not in origins:
        raise JobError(f"there is no column {column!r}", where=str(out), do=near(column, origins))
    if column is None:
        yield from _lineage_of_all(workflow, saved, lineage, history)
    for name in origins if column is None else [column]:
        for one in origins[name]:
            where = f" of {one.file}" if one.file else ""
            by = " > ".join(lineage.operators(one))
            yield f"{name}: from {one.column}{where}, {one.influence.lower()}{f' by {by}' if by else ''}"


def _lineage_of_all(workflow: Path, saved: SavedWorkflow, lineage: ColumnLineage, history: JsonObject) -> Iterator[str]:
    """Yield what all columns of an output were made of: versions, files that were learned, and what chose its rows."""
    yield from _describe_versions(workflow.parent if workflow.name == WORKFLOW else workflow)
    for file in read_files(workflow, history).to_pylist():
        day = history["nights"][file["night"]]["day"]
        yield f"learned: {file['path']}, {file['size']:,} bytes, {file['digest']}, of {day}"
    if filter := saved.reading.get("filter"):
        yield f"rows: where {filter}"
    for one in lineage.of_rows():
        yield f"rows: by {one.column}, {' > '.join(lineage.operators(one))}"


def _describe_versions(folder: Path) -> Iterator[str]:
    """Yield lines on a version, then on its base, and so on."""
    while True:
        yield from _version_lines(folder)
        output = PublishedOutput(folder)
        name = output.base.version
        note = output.manifest.get("base")
        if not name:
            return
        base = str(note["path"]) if isinstance(note, dict) and note.get("path") else str(folder.parent / name)
        if "://" in base:
            url = base.removesuffix(f"/{WORKFLOW}")
            yield f"{url}: behind a URL; see rowmill lineage {url}"
            return
        path = Path(base)
        if not path.exists():  # the output was moved or copied, with all of its versions
            path = folder.parent / name
        folder = path.parent if path.name == WORKFLOW else path


def _version_lines(folder: Path) -> Iterator[str]:
    output = PublishedOutput(folder)
    note = output.manifest or output.fitted
    if not note:
        yield f"{folder}: removed since"
        return
    rows = sum(Manifest.read(one, one).rows["out"] for one in outputs(folder))
    what = f"{rows:,} rows" if "rows" in note else "a fitted workflow"
    date = f" of {note['dated']['date']}" if note.get("dated") else ""
    by = " ".join(filter(None, (note.get("rowmill", ""), note.get("engine", ""))))
    yield f"{folder}: {what}{date}, written by rowmill {by}; digest {note.get('digest', 'unknown')}"
    if publication := read_publication(folder):
        yield from (f"made of: {path}" for path in publication.upstream)


# operators


def operators() -> dict[str, type[Operator]]:
    """Return the operators of rowmill by name."""
    from tasks import ops

    own = ops.__name__ + "."
    return {name: cls for name, cls in sorted(Operator.registry.items()) if cls.__module__.startswith(own)}


def on_refit(cls: type[Operator]) -> str:
    """What a refit does with what an operator has learned, in one word; "" for an operator that does not learn."""
    if not issubclass(cls, Learned):
        return ""
    return cls.on_refit if cls.passes else "read again"


def refit_rule(cls: type[Learned]) -> str:
    """The same in a clause.

    >>> from tasks import ops
    >>> refit_rule(ops.FillMedian)
    'frozen, exact ranks need all rows again'
    """
    rules = {
        "merged": "merged, equal to a fit of all rows",
        "appended": "appended, ids stay and new values follow them",
        "frozen": f"frozen, {cls.frozen_why or 'what was learned stays'}",
        "read again": "its tables are read again",
    }
    return rules[on_refit(cls)]


def parameters_of(cls: type[Operator]) -> Iterator[tuple[str, str, str, str]]:
    """Name, type, default and meaning of every parameter, as its docstring says; else the type of the annotation."""
    described = docstring_of(cls).parameters
    for name, info in cls.model_fields.items():
        default = NEEDED if info.is_required() else json_like(info.get_default(call_default_factory=True))
        if name in described:
            yield name, described[name].type, default, described[name].meaning
        else:
            kind = inspect.formatannotation(info.annotation).replace("typing.", "").replace("NoneType", "None")
            yield name, kind, default, ""


def json_like(value: object) -> str:
    """Return a default as docstrings write it: repr, with texts in double quotes.

    >>> json_like("_"), json_like(["hour", "day"]), json_like(None)
    ('"_"', '["hour", "day"]', 'None')
    """
    return repr(value).replace("'", '"')


def show_operators(console: Console | None = None) -> None:
    console = console or terminal()
    table = text_table("", "operator", "learns, on refit", "what it does")
    for name, cls in operators().items():
        table.add_row(name, on_refit(cls), docstring_of(cls).summary)
    print_table(table, console)
    _show_installed(console)
    console.print("\nrowmill ops NAME explains one", style="dim")


def _show_installed(console: Console) -> None:
    """Return the operators of installed packages, and the packages whose operators cannot be used, with the reason."""
    table = text_table("of installed packages", "operator", "learns, on refit", "package", "what it does")
    failed = []
    for entry in entries():
        try:
            for name, cls in sorted(classes_of(entry, Operator, operators()).items()):
                table.add_row(name, on_refit(cls), f"{entry.package} {entry.version}", docstring_of(cls).summary)
        except HostError as error:
            failed.append(error)
    if table.row_count:
        print_table(table, console)
    for refusal in failed:
        console.print(f"\n{refusal}", style="red", markup=False, soft_wrap=True)


def show_operator(name: str, console: Console | None = None) -> None:
    """Rule, accepted types, parameters and examples of an operator, and how it stands in a job; JobError with near
    names."""
    console = console or terminal()
    cls = operator_class(name)
    text = docstring_of(cls)
    learns = f": learns from the data; a refit: {refit_rule(cls)}" if issubclass(cls, Learned) else ""
    console.print(f"[bold]{cls.__name__}[/bold]{learns}", soft_wrap=True)
    console.print(text.summary, markup=False, soft_wrap=True)
    takes = ", ".join(sorted(cls.takes)) + (", and lists of these" if cls.leaves else "")
    console.print(f"\ntakes columns of: {takes}" + ("; a nested list of columns is a group" if cls.grouped else ""))
    parameters = list(parameters_of(cls))
    if parameters:
        table = text_table("parameters", "name", "type", "default", "meaning")
        for row in parameters:
            table.add_row(*row)
        print_table(table, console)
    for part in filter(None, (text.notes, text.examples)):
        console.print(f"\n{part}", markup=False, soft_wrap=True)
    console.print(
        f"\nin a job: - {{columns: [..], ops: [{{op: {name}{format_required_parameters(cls)}}}]}}", markup=False
    )


def format_required_parameters(cls: type[Operator]) -> str:
    """Write the parameters without a default, as they stand in the line of a job."""
    return "".join(f", {name}: .." for name, info in cls.model_fields.items() if info.is_required())
