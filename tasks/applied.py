"""A fitted workflow over new data: its types for their columns, and the outputs that these columns do not allow."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tasks.commit import no_space, partial_folder, read_json, write_json
from tasks.errors import DataError, near
from tasks.fitted import fitted_folder, read_fitted
from tasks.graph import Bound, Node, graph_from_json
from tasks.plan import Plan
from tasks.request import Request, new_request
from tasks.schema import ROW, Column, Schema, Tags, check_kinds
from tasks.settings import Output, Run, Source
from tasks.state import SUFFIX, check_saved

TEXTS = ("csv", "tsv")  # their values are read as whatever type is asked for


def applying_request(source: Source, fitted: Path, output: Output, run: Run, engine: str) -> Request:
    """The request that transforms a source with the fitted workflow of a folder, and learns nothing."""
    data, folder = read_fitted(fitted), fitted_folder(fitted)
    digest = data.get("state") or hashlib.sha256((folder / "state.json").read_bytes()).hexdigest()
    final, schema = graph_from_json(data["graph"]), Schema.from_json(data["schema"])
    labels = [c.name for c in Bound(final, schema).output.columns if Tags.TARGET.value in c.tags]
    return new_request(source, data["graph"], output, run, engine, labels, flow="apply",
                       fitted={"path": str(folder), "state": digest, "schema": data["schema"]})  # fmt: skip


def adapted(request: Request, plan: Plan) -> Plan:
    """The plan that reads columns in the types of the fit; needed columns of another kind are refused."""
    if not request.fitted:
        return plan
    final, schema = subject(request, plan.schema)
    return in_fitted_types(plan, request.fitted_schema, needed_columns(Bound(final, schema)))


def in_fitted_types(plan: Plan, fitted: Schema, needed: Iterable[str]) -> Plan:
    """The plan that reads the needed columns in the types of the fit; those of another kind are refused."""
    needed = {*needed}
    if plan.format in TEXTS:
        needed = {*fitted}
    else:
        check_kinds(fitted, plan.schema, sorted(needed))
    return replace(plan, schema=Schema(fitted[c.name] if c.name in needed else c for c in plan.schema.columns))


def subject(request: Request, source: Schema) -> tuple[Node, Schema]:
    """The graph and the schema that it is bound to; for a fitted workflow those of the fit, without what is left
    out."""
    if not request.fitted:
        return request.final, source
    fitted = request.fitted_schema
    schema = Schema([*fitted.columns, source[ROW]]) if ROW in source else fitted
    left_out = missing_labels(request, source)
    if not left_out:
        return request.final, schema
    kept = tuple(name for name in Bound(request.final, schema).output if name not in left_out)
    return Node("pick", (request.final,), selection=kept), schema


def missing_labels(request: Request, source: Schema) -> list[str]:
    """Labels that cannot be made since the source lacks their columns; any other output that cannot is a DataError."""
    fitted = request.fitted_schema if request.fitted else source
    missing = set(fitted) - set(source)
    if not missing:
        return []
    bound = Bound(request.final, fitted)
    left_out = []
    for place, name in bound.targets:
        lacking = [n for n in bound.source_columns([(place, name)], training=False) if n in missing]
        if lacking and name in request.labels:
            left_out.append(name)
        elif lacking:
            raise _missing(lacking[0], source, f"the column {name!r} of the output is made of it")
    for step in bound.filters:
        for name in bound.source_columns(step.inputs.values(), training=False):
            if name in missing:
                raise _missing(name, source, f"{type(step.op).__name__} keeps rows by it")
    if len(left_out) == len(bound.targets):
        raise DataError("the source has no column that the workflow needs", where="source.path",
                        why="only labels are written, and these are missing", do=near(left_out[0], source))  # fmt: skip
    return left_out


def _missing(name: str, source: Schema, why: str) -> DataError:
    why = f"the workflow was fitted with it: {why}"
    return DataError(f"the source has no column {name!r}", where="source.path", why=why, do=near(name, source))


def needed_columns(bound: Bound) -> list[str]:
    """The source columns that applying needs: for the output, and for filters."""
    filters = [place for f in bound.filters for place in f.inputs.values()]
    return bound.source_columns([*bound.targets, *filters], training=False)


def adopt(request: Request) -> None:
    """A copy of the fitted state in the staging folder: the folder that it comes from may be replaced meanwhile."""
    folder, fitted = request.staging.folder / "state", request.fitted
    if (read_json(folder / "manifest.json") or {}).get("digest") == fitted["state"]:
        return
    origin = Path(fitted["path"])
    with no_space(folder), partial_folder(folder) as partial:
        for path in [origin / "state.json", *sorted(origin.glob(f"*{SUFFIX}"))]:
            shutil.copyfile(path, partial / path.name)
        check_saved(partial, fitted["state"])  # every table is whole, or it says which is not
        write_json(partial / "manifest.json", {"digest": fitted["state"]})


def null_types(request: Request) -> Mapping[str, Any]:
    """The types that columns of nothing but nulls take, which have none of their own."""
    columns: Sequence[Column] = request.fitted_schema.columns if request.fitted else ()
    return {c.name: c.dtype for c in columns}
