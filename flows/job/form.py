"""The form of a flow: what Prefect's page shows and its server checks, made from the models of the job.

A form is a partial job: no key of a section is required, since a recipe or the deployment has the rest. So its
schema requires nothing, has no default that would override a recipe, shows the plain type where the model allows null
too, and keeps the rarer keys of a section out of sight but checked: they are given as JSON (the menu of a field, or
`prefect deployment run -p`), or in a YAML job.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import core_schema

from flows.job.job import recipes
from infra.clusters.configurations import configurations
from infra.clusters.model import OF_CLASS, Cluster
from tasks.core.settings import Refitting, Source
from tasks.core.strict_json import JsonObject

Schema = dict[str, Any]
CHOICES = {"string": "one", "array": "several", "null": "none"}  # what the page calls the types of a path
TEXTS = ("title", "description")
SHOWN: dict[str, Sequence[str]] = {  # the keys of each section that the page shows
    "source": ("path", "valid", "format", "filter"),
    "output": ("path", "seed", "shuffle", "files", "on_existing"),
    "refit": ("forget", "all", "again"),
    "cluster": ("kind", "configuration", "workers", "address"),
    "checks": ("on_finding",),
    "run": ("date", "timezone", "if_empty"),
}
NO_TEXTS: Mapping[str, str] = {}


FIELDS: dict[str, Schema] = {  # those that are not a section
    "recipe": {"type": "string", "enum": recipes()},
    "job": {
        "type": "string",
        "description": "job file to start from, on the host of the worker, or the text of a job, such as a draft; what "
        "is left empty below stays as it has it",
    },
    "features": {
        "anyOf": [{"type": "string", "title": "YAML"}, {"type": "array", "items": {"type": "object"}, "title": "list"}]
    },
    "label": {"type": "array", "items": {"type": "string"}},
    "base": {"type": "string"},
    "fitted": {"type": "string"},
    "contract": {"anyOf": [{"type": "string", "title": "file"}, {"type": "object", "title": "map"}]},
    "dry_run": {
        "type": "boolean",
        "default": False,
        "description": "only look: columns, rows before and after, plan, needs and time, as an artifact; nothing is "
        "written",
    },
}


def field_of(model: type[BaseModel], name: str, shown: Sequence[str], text: str = "") -> Schema:
    """The form of a parameter: what it takes, its text in the model (or `text`), and, unless that ends with a full
    stop, the keys that are not shown."""
    known = model.model_fields.get(name)
    kind = known.annotation if known else None
    more = ""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        schema = {Refitting: refit_section, Cluster: cluster_section}.get(kind, partial(section, kind))(shown)
        keys = [field.alias or key for key, field in kind.model_fields.items()]
        refused = {Source: getattr(model, "refused_of_source", ()), Cluster: OF_CLASS}.get(kind, ())
        hidden = [key for key in keys if key not in (*shown, *refused)]
        more = f". More keys as JSON, from the menu of this field: {', '.join(hidden)}"
    else:
        schema = FIELDS[name]
    text = text or schema.get("description", "") or (known.description if known else "") or ""
    whole = text if text.endswith(".") else f"{text}{more}."
    return {**schema, "description": whole[:1].upper() + whole[1:]}


def refit_section(shown: Sequence[str]) -> Schema:
    """Return the form of the section refit, which takes the names of operators and entries, too."""
    schema = section(Refitting, shown)
    del schema["propertyNames"]
    days = {key: value for key, value in schema["properties"]["forget"].items() if key not in ("anyOf", "ge", "le")}
    schema["properties"]["forget"] = {"type": "string", **days}
    return {**schema, "additionalProperties": {"type": "string", "enum": ["merge", "freeze"]}}


def cluster_section(shown: Sequence[str]) -> Schema:
    """The form of the section cluster. The arguments of a class can run commands, so the form takes the names of the
    host's configurations instead; a host whose file cannot be read takes any name, and says so when it runs."""
    schema = section(Cluster, shown)
    for name in OF_CLASS:
        del schema["patternProperties"][f"^{name}$"]
        schema["propertyNames"]["enum"].remove(name)
    schema["properties"]["kind"]["enum"].remove("class")
    with suppress(ValueError):
        if known := [*configurations()]:
            schema["properties"]["configuration"]["enum"] = known
    return schema


class FormField:
    """A parameter as the form has it; only the schema says what is filled in where it may be left out."""

    def __init__(self, schema: Schema, is_required: bool) -> None:
        self.schema = schema
        self.is_required = is_required

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        if self.is_required:
            return core_schema.any_schema()
        # Optional by a default of its own: the function's default, null, would make every field a choice with "None".
        return core_schema.with_default_schema(core_schema.any_schema(), default=None)

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler) -> Schema:
        return dict(self.schema)


def with_form(flow: Any, model: type[BaseModel], /, texts: Mapping[str, str] = NO_TEXTS, **shown: Sequence[str]) -> Any:
    """The flow with the form of its job: its parameters in their order, each with what it takes and its text in the
    model. `shown` are the visible keys of sections other than `SHOWN`; `texts` replace texts of the model.

    Prefect makes the form of a deployment from the signature of the flow; a call goes by the signature of the function,
    which stays as it is. A parameter that is no field of the job is a TypeError.
    """
    known = inspect.signature(flow.fn).parameters
    if strange := {*known} - {*model.model_fields, "job", "dry_run"} | {*model.model_fields} - {*known}:
        raise TypeError(f"form and function of {flow.name} differ: {strange}")
    keys = SHOWN | shown
    fields = {name: field_of(model, name, keys.get(name, ()), texts.get(name, "")) for name in known}
    flow.description = inspect.getdoc(flow.fn)
    flow.__signature__ = inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[Any, FormField(of, required)])
            for name, of in fields.items()
            for required in [known[name].default is inspect.Parameter.empty and of.get("type") == "string"]
        ]
    )
    return flow


def section(model: type[BaseModel], shown: Sequence[str]) -> Schema:
    """The form of a section: the fields `shown`, in that order. None is filled in, not even by its default: that would
    be laid over what a recipe, a job file or the deployment says."""
    whole = model.model_json_schema(by_alias=True)
    known = {name: _inline_references(part, whole.get("$defs", {})) for name, part in whole["properties"].items()}
    visible = {
        name: {**_title_choices(_partial(known[name])), "position": position} for position, name in enumerate(shown)
    }
    hidden = {f"^{name}$": _or_null(_partial(part, TEXTS)) for name, part in known.items() if name not in shown}
    return {
        "type": "object",
        "properties": visible,
        "patternProperties": hidden,
        "propertyNames": {"enum": list(known)},
    }


def _inline_references(part: Any, definitions: JsonObject) -> Any:
    """Return a schema with what its references stand for in their place."""
    if isinstance(part, list):
        return [_inline_references(one, definitions) for one in part]
    if not isinstance(part, dict):
        return part
    own = {key: _inline_references(value, definitions) for key, value in part.items() if key != "$ref"}
    if "$ref" in part:
        return {**_inline_references(definitions[part["$ref"].rpartition("/")[2]], definitions), **own}
    return own


def _partial(part: Any, without: tuple[str, ...] = ()) -> Any:
    """Return a schema that requires nothing, has no defaults and none of some other keys."""
    if isinstance(part, list):
        return [_partial(one, without) for one in part]
    if not isinstance(part, dict):
        return part
    dropped = ("properties", "default", "required", *without)
    schema = {key: _partial(value, without) for key, value in part.items() if key not in dropped}
    if "properties" in part:
        schema["properties"] = {name: _partial(of, without) for name, of in part["properties"].items()}
    return schema


def _title_choices(part: Schema) -> Schema:
    """Return the types that people choose from, by names that say what they are.

    A field of one type that may be null has no choice: the server takes null for it, too, since nothing is required.
    """
    kinds = [kind for kind in part.get("anyOf", []) if kind.get("type") != "null"]
    rest = {key: value for key, value in part.items() if key != "anyOf"}
    if len(kinds) < 2:
        return {**kinds[0], **rest} if kinds else part
    return {**rest, "anyOf": [{**kind, "title": CHOICES.get(kind["type"], kind["type"])} for kind in part["anyOf"]]}


def _or_null(part: Schema) -> Schema:
    """Return the same, or null; said such that a message names the type, where there is one."""
    kinds = [kind for kind in part.get("anyOf", [part]) if kind.get("type") != "null"]
    if len(kinds) > 1 or "type" not in kinds[0]:
        return {"anyOf": [*kinds, {"type": "null"}]}
    values = {"enum": [*kinds[0]["enum"], None]} if "enum" in kinds[0] else {}
    return {**kinds[0], **values, "type": [kinds[0]["type"], "null"]}
