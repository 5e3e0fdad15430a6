"""A fitted workflow over new data: its types for their columns, and the outputs that these columns do not allow."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from tasks.core.dtypes import dtype_name, is_list, kind_of, leaf_type, list_field_paths, schema_advice
from tasks.core.plan import ADVICE, AS_IN_FIT, FIELDS, RETYPED, Plan, with_fields
from tasks.core.schema import ROW, Column, Schema, Tags, check_kinds
from tasks.core.settings import Output, Run, Source
from tasks.core.strict_json import JsonObject
from tasks.engines.convert.type_widening import widest
from tasks.errors import DataError, near
from tasks.graph.binding import Bound
from tasks.graph.node import Node, graph_from_json
from tasks.graph.saved_workflow import find_fitted_folder, read_fitted, read_ids_since
from tasks.graph.state import check_saved, list_state_files
from tasks.job.request import Fitted, Request, new_request
from tasks.job.source_rules import exact_columns, with_weight
from tasks.sources.formats import TEXTS, UNTYPED
from tasks.sources.formats.survey import NUMBER_TEXTS
from tasks.sources.reading_rules import Fit, differences, with_values
from tasks.sources.uniting import GROWN
from tasks.storage.atomic import no_space, partial_folder, read_record, write_json
from tasks.storage.discarded import check_discarded, find_marked_folder
from tasks.storage.own_files import current
from tasks.storage.published_copy import PublishedCopy, open_published


def make_applying_request(source: Source, fitted: str | Path, output: Output, run: Run, engine: str) -> Request:
    """Make the request that transforms a source with the fitted workflow of a folder, and learns nothing.

    A fitted workflow behind a URL is read with the storage options of the source.
    """
    with open_published(fitted, source.storage_options, "the fitted workflow", "fitted") as copy:
        return _make_request(source, copy, output, run, engine)


def _make_request(source: Source, copy: PublishedCopy, output: Output, run: Run, engine: str) -> Request:
    version = current(copy.folder)
    check_discarded(version, copy.folder, copy.name)
    data = read_fitted(copy.folder)
    folder = find_fitted_folder(copy.folder)
    fit = Fit.of(source, data["source"])
    source = with_values(source, fit.reading)
    digest = data.get("state") or hashlib.sha256(list_state_files(folder)[0].read_bytes()).hexdigest()
    labels = list_targets(graph_from_json(data["graph"]), Schema.from_json(data["schema"]), Tags.SAMPLE_WEIGHT)
    applied = Fitted(
        copy.with_urls(str(folder)),
        digest,
        data["schema"],
        fit,
        list_lookalike_data(data),
        tuple(data.get("ancestors", ())),
        read_ids_since(data),
        discarded=bool(find_marked_folder(version)),  # so that the commit does not refuse it
    )
    return new_request(source, data["graph"], output, run, engine, labels, flow="apply", fitted=applied)


def list_lookalike_data(data: JsonObject) -> list[JsonObject]:
    """List the look-alike data that a saved workflow was fitted on, marked with `fit`."""
    samples = data.get("made_up")
    return [{**one, "fit": True} for one in samples if isinstance(one, dict)] if isinstance(samples, list) else []


def adapt_plan(request: Request, plan: Plan) -> Plan:
    """Change a plan to read columns in the types of the fit; needed columns of another kind are refused."""
    if request.base:
        return _adapt_to_base(request, plan)
    if not request.fitted:
        return plan
    final, schema = _choose_fitted_subject(request, plan.schema)
    bound = Bound(final, schema)
    own_types = request.fit.own_types if request.fit else ()
    return in_fitted_types(
        plan, bound, list_needed_columns(bound), own_types, _collect_exact_columns(request), training=False
    )


def _adapt_to_base(request: Request, plan: Plan) -> Plan:
    """Change a plan to the columns of the base, in its types.

    A DataError if a column is missing that is written or learned from; other columns are not checked.
    """
    final, schema = _choose_fitted_subject(request, plan.schema)
    bound = Bound(final, schema)
    places = [place for step in bound.filters for place in step.inputs.values()]
    places += [place for step in bound.learned for place in step.fit_inputs.values()]
    needed = bound.source_columns([*bound.targets, *places], training=True)
    weight = request.source.downsample.weight if request.source.downsample else None
    needed = [name for name in needed if name != weight]
    for name in needed:
        if name not in plan.schema:
            raise _make_missing_column_error(
                name, plan.schema, "its base has learned from it, or writes it", "source.path"
            )
    own_types = request.fit.own_types if request.fit else ()
    plan = in_fitted_types(plan, bound, needed, own_types, _collect_exact_columns(request), training=True)
    names = dict.fromkeys([*(name for name in schema if name in plan.schema), *plan.options.get(FIELDS, ())])
    return replace(plan, schema=Schema(plan.schema[name] for name in names))


@dataclass(frozen=True)
class TypesUnderFit:
    """The types of the columns of a source that a fitted workflow reads, by column.

    fit, now: the type in the fit, and by the files and `source.schema`.
    wider: for whole numbers of the fit that have a wider type now, this type.
    taken: those of `wider` that are read in it.
    """

    fit: Mapping[str, pa.DataType]
    now: Mapping[str, pa.DataType]
    wider: Mapping[str, pa.DataType]
    taken: Collection[str]

    @property
    def read(self) -> dict[str, pa.DataType]:
        """The types in which the columns are read: those of the fit, but for those that are `taken`."""
        return {name: self.wider[name] if name in self.taken else dtype for name, dtype in self.fit.items()}


def in_fitted_types(
    plan: Plan,
    bound: Bound,
    needed: Iterable[str],
    own_types: Collection[str] = (),
    exact: Collection[str] = (),
    *,
    training: bool,
) -> Plan:
    """Change a plan to read the needed columns in the types of the fit, to whose columns the graph is bound.

    Columns of another kind are refused, in text only those whose types the source itself says: the values of text are
    read as whatever type is asked for, and a value that would become another one is an error. Names of folders and
    numbers that stayed text are text, too. Whole numbers of the fit that have a wider type now are read in it where all
    steps compute the same (`Bound.taking_wider`) and the column is not of `exact`; else in the type of the fit, which
    takes floats that are whole. `training`: steps learn from the rows; else they apply what they know, without the
    columns that only a fit reads. What is read otherwise than it is, is in the plan's options: for people, for the gate
    and for errors.
    """
    fitted = bound.source
    needed = {*needed}
    plan = with_fields(plan, [fitted[n] for n in sorted(needed.difference(plan.schema)) if n in plan.schema])
    number_texts = plan.options.get(NUMBER_TEXTS, {})
    untyped = plan.format in UNTYPED
    texts = {*fitted} if untyped else {*number_texts, *plan.options.get("folders", ())}
    check_kinds(fitted, plan.schema, sorted(needed - (texts - {*own_types})), own_types)
    types = _find_types_under_fit(plan, bound, {*fitted} if untyped else needed, exact, training)
    retyped = {name: dtype_name(types.now[name]) for name in types.wider}
    as_in_fit = _explain_kinds_of_fit(types, texts)
    notes = _explain_types(types, {*types.now} - {*as_in_fit}, own_types)
    options = {
        **plan.options,
        ADVICE: _advise_on_values(plan, bound, types, own_types, exact, training),
        RETYPED: retyped,
        AS_IN_FIT: [name for name, now in types.now.items() if now != types.fit[name] and list_field_paths(now, name)],
        GROWN: {**plan.options.get(GROWN, {}), **notes},
        NUMBER_TEXTS: {**number_texts, **as_in_fit},
        "on_host": sorted({*plan.options.get("on_host", ()), *retyped}),
    }
    read = types.read
    columns = (replace(fitted[c.name], dtype=read[c.name]) if c.name in read else c for c in plan.schema.columns)
    return replace(plan, schema=Schema(columns), options={n: v for n, v in options.items() if v or n in plan.options})


def _find_types_under_fit(
    plan: Plan, bound: Bound, needed: Collection[str], exact: Collection[str], training: bool
) -> TypesUnderFit:
    """Find the types of the needed columns that the plan has; `exact` ones are never read in a wider type."""
    now = {column.name: column.dtype for column in plan.schema.columns if column.name in needed}
    fit = {name: bound.source[name].dtype for name in now}
    numbers = {name: wider_number(fit[name], dtype) for name, dtype in now.items()}
    wider = {name: dtype for name, dtype in numbers.items() if dtype is not None}
    taken = bound.taking_wider({name: dtype for name, dtype in wider.items() if name not in exact}, training)
    return TypesUnderFit(fit, now, wider, taken)


def _explain_kinds_of_fit(types: TypesUnderFit, texts: Collection[str]) -> dict[str, str]:
    """Explain for each column that it is text on one side and a number on the other."""
    sentences = {}
    for name, now in types.now.items():
        was = types.fit[name]
        if name in texts and {kind_of(was), kind_of(now)} == {"number", "string"}:
            by_fit = f"column {name!r} would be {dtype_name(now)} by these files; it is read as {dtype_name(was)}, its"
            sentences[name] = f"{by_fit} type in the fit"
    return sentences


def _explain_types(types: TypesUnderFit, names: Collection[str], own_types: Collection[str]) -> dict[str, str]:
    """Explain for each of the columns `names` that the files, or the source itself, have it in another type."""
    notes = {}
    read = types.read
    for name, now in types.now.items():
        was = types.fit[name]
        differs = name in types.wider or (name in own_types and now != was)
        if name not in names or not differs:
            continue
        by_source = " in source.schema" if name in own_types else ""
        is_refused = name in types.wider and name not in types.taken
        only = ", which takes whole numbers alone" if is_refused else ""
        notes[name] = (
            f"column {name!r} is {dtype_name(now)}{by_source}, the workflow was fitted with {dtype_name(was)}: "
            f"read as {dtype_name(read[name])}{only}"
        )
    return notes


def _advise_on_values(
    plan: Plan,
    bound: Bound,
    types: TypesUnderFit,
    own_types: Collection[str],
    exact: Collection[str],
    training: bool,
) -> dict[str, str]:
    """Advise, by column, what to do about a value that the type in which it is read cannot hold."""
    read = types.read
    # Of texts a sample was looked at, and what a type of the user hides was not.
    may_differ = {*read} if plan.format in TEXTS else {*types.wider, *own_types}
    integers = [name for name, dtype in read.items() if pa.types.is_integer(dtype) and name in may_differ]
    takes_floats = bound.taking_wider({name: pa.float64() for name in integers if name not in exact}, training)
    advice: dict[str, str] = {}
    if plan.format in ("csv", "tsv"):
        advice = dict.fromkeys(read, "correct the value, or add it to source.null_values if it means null")
    for name in integers:
        how = "correct the value, or fit all rows again in another type"
        if name in takes_floats:
            how = "read its fractions as they are"
        advice[name] = f"{how}: {schema_advice(name, pa.float64())}"
    return advice


def wider_number(was: pa.DataType, now: pa.DataType) -> pa.DataType | None:
    """Return the type that holds numbers of both, if those of the fit are integers and the type now is wider; else
    None.

    >>> wider_number(pa.int64(), pa.float32()), wider_number(pa.int32(), pa.int8()), wider_number(pa.int8(), pa.int64())
    (DataType(double), None, DataType(int64))
    """
    if is_list(was) and is_list(now):
        leaf = wider_number(was.value_type, now.value_type)
        return None if leaf is None else pa.list_(leaf)
    if not pa.types.is_integer(was) or kind_of(now) != "number":
        return None
    if not pa.types.is_integer(now):
        return pa.float64()
    return widest([was, now]) if now.bit_width > was.bit_width else None


def with_read_types(fitted: Schema, source: Schema) -> Schema:
    """Return the columns of a fit, in the wider types in which a plan (`in_fitted_types`) reads some of them."""
    wide = {c.name: source[c.name].dtype for c in fitted.columns if c.name in source}
    return Schema(
        replace(c, dtype=wide[c.name]) if c.name in wide and wider_number(c.dtype, wide[c.name]) is not None else c
        for c in fitted.columns
    )


def _collect_exact_columns(request: Request) -> set[str]:
    """Collect the columns that keep the type of the fit, because rows are chosen or ordered by them."""
    return {*exact_columns(request.source), *request.output.keys, *request.output.sort_by}


def list_differences(request: Request, plan: Plan) -> list[str]:
    """List how the reading of the source differs from that of the applied workflow."""
    return differences(request.source, request.fit.reading, plan.reading.get("format", "")) if request.fit else []


def choose_graph_and_schema(request: Request, source: Schema) -> tuple[Node, Schema]:
    """Return the graph, and the schema that it is bound to.

    For a fitted workflow these are those of the fit, without what is left out, and in the types in which a plan reads
    its columns.
    """
    final, schema = _choose_fitted_subject(request, source)
    return final, with_read_types(schema, source) if request.origin else schema


def bind_graph(request: Request, source: Schema) -> Bound:
    """Bind the graph to the columns of a plan."""
    return Bound(*choose_graph_and_schema(request, source))


def _choose_fitted_subject(request: Request, source: Schema) -> tuple[Node, Schema]:
    """Choose the graph, and the schema that it is bound to, in the types of the fit."""
    if request.base:
        return remove_outputs(request.final, base_schema(request, source), source, ())
    if not request.fitted:
        return request.final, with_weight(source, request.source)
    return remove_outputs(request.final, request.fitted_schema, source, list_missing_labels(request, source))


def base_schema(request: Request, source: Schema) -> Schema:
    """Return the columns of the base and, if the features of the job differ, the further columns of the source."""
    fitted = request.fitted_schema
    if not request.changes_features:
        return fitted
    columns = with_weight(source, request.source).columns
    return Schema([*fitted.columns, *(c for c in columns if c.name not in fitted and c.name != ROW)])


def remove_outputs(final: Node, fitted: Schema, source: Schema, left_out: Collection[str]) -> tuple[Node, Schema]:
    """Remove outputs from a graph; return it, and the schema of the fit that it is bound to."""
    schema = Schema([*fitted.columns, source[ROW]]) if ROW in source and ROW not in fitted else fitted
    if not left_out:
        return final, schema
    names = tuple(name for name in Bound(final, schema).output if name not in left_out)
    return Node("pick", (final,), selection=names), schema


def list_missing_labels(request: Request, source: Schema) -> list[str]:
    """List the labels that cannot be made since the source lacks their columns; a DataError for any other such
    output."""
    if request.base:
        return []
    return list_unmakeable_labels(
        request.final, request.fitted_schema if request.fitted else source, source, request.labels
    )


def list_unmakeable_labels(
    final: Node, fitted: Schema, source: Schema, labels: Collection[str], where: str = "source.path", do: str = ""
) -> list[str]:
    """List the labels that cannot be made of the columns of `source`; a DataError for any other such output."""
    if {*fitted} <= {*source} and not any(pa.types.is_struct(leaf_type(c.dtype)) for c in fitted.columns):
        return []
    bound = Bound(final, fitted)
    left_out = []
    for place, name in bound.targets:
        lacking = [n for n in bound.source_columns([(place, name)], training=False) if n not in source]
        if lacking and name in labels:
            left_out.append(name)
        elif lacking:
            why = f"the column {name!r} of the output is made of it"
            raise _make_missing_column_error(lacking[0], source, why, where, do.format(lacking[0]))
    for step in bound.filters:
        for name in bound.source_columns(step.inputs.values(), training=False):
            if name not in source:
                raise _make_missing_column_error(name, source, f"{type(step.op).__name__} keeps rows by it", where)
    if len(left_out) == len(bound.targets):
        raise DataError(
            "the source has no column that the workflow needs",
            where=where,
            why="only labels are written, and these are missing",
            do=near(left_out[0], source),
        )
    return left_out


def _make_missing_column_error(name: str, source: Schema, why: str, where: str, do: str = "") -> DataError:
    what = f"{'the source' if where == 'source.path' else where} has no column {name!r}"
    why = f"the workflow was fitted with it: {why}"
    return DataError(what, where=where, why=why, do=near(name, source) + (f"; {do}" if do else ""))


def list_targets(final: Node, fitted: Schema, *more: Tags) -> list[str]:
    """List the outputs that are tagged as target, or with one of `more` tags."""
    tags = {tag.value for tag in (Tags.TARGET, *more)}
    return [c.name for c in Bound(final, fitted).output.columns if tags & c.tags]


def list_needed_columns(bound: Bound) -> list[str]:
    """List the source columns that applying needs: for the output, and for filters."""
    filters = [place for f in bound.filters for place in f.inputs.values()]
    return bound.source_columns([*bound.targets, *filters], training=False)


def adopt(request: Request) -> None:
    """Copy the fitted state into the staging folder: the folder that it comes from may be replaced meanwhile."""
    folder = request.staging.folder / "state"
    fitted = request.fitted
    assert fitted
    if read_record(folder / "manifest.json").get("digest") == fitted.state:
        return
    copying = open_published(fitted.path, request.source.storage_options, "the fitted workflow", "fitted")
    with copying as origin, no_space(folder), partial_folder(folder) as partial:
        for path in list_state_files(origin.folder):
            with origin.open_path(path, "fitted") as name:
                shutil.copyfile(name, partial / path.name)
        check_saved(partial, fitted.state)  # every table is whole, or it says which is not
        write_json(partial / "manifest.json", {"digest": fitted.state})


def list_null_types(request: Request) -> JsonObject:
    """Return the types for columns that have only nulls, and so no type of their own."""
    columns: Sequence[Column] = request.fitted_schema.columns if request.origin else ()
    return {c.name: c.dtype for c in columns}
