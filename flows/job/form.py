"""The form of a flow: what Prefect's page shows and its server checks, made from the models of the job.

A form is a partial job: no key of a section is required, since a recipe or the deployment has the rest. So its
schema requires nothing, has no default that would override a recipe, shows the plain type where the model allows null
too, and keeps the rarer keys of a section out of sight but checked: they are given as JSON (the menu of a field, or
`prefect deployment run -p`), or in a YAML job.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import core_schema

from flows.job.job import recipes
from infra.clusters.model import Cluster
from tasks.core.settings import Checks, Output, Refitting, Run, Source

Schema = dict[str, Any]
CHOICES = {"string": "one", "array": "several", "null": "none"}  # what the page calls the types of a path
TEXTS = ("title", "description")
SOURCE = ("path", "valid", "format", "filter")
RUN = ("date", "timezone", "if_empty")
OUTPUT = ("path", "seed", "shuffle", "files", "on_existing")


def job_form(source: Sequence[str] = SOURCE, output: Sequence[str] = OUTPUT) -> dict[str, Schema]:
    """The form of a job, from the top of the page to its end, with the keys that are shown of two sections."""
    entries = [{"type": "string", "title": "YAML"}, {"type": "array", "items": {"type": "object"}, "title": "list"}]
    return {
        "recipe": {"type": "string", "enum": recipes()},
        "job": {"type": "string"},
        "source": section(Source, source),
        "features": {"anyOf": entries},
        "label": {"type": "array", "items": {"type": "string"}},
        "output": section(Output, output),
        "base": {"type": "string"},
        "refit": refit_section(),
        **where_and_how(),
    }


def refit_form() -> dict[str, Schema | type]:
    """The form of a refit: new rows on top of a base."""
    return {
        "base": str,
        "source": section(Source, ("path", "format", "filter")),
        "output": section(Output, OUTPUT),
        "refit": refit_section(),
        **where_and_how(),
    }


def refit_section() -> Schema:
    """The form of the section refit, which takes the names of operators and entries, too."""
    schema = section(Refitting, ("forget", "all", "again"))
    del schema["propertyNames"]
    days = {key: value for key, value in schema["properties"]["forget"].items() if key not in ("anyOf", "ge", "le")}
    schema["properties"]["forget"] = {"type": "string", **days}
    return {**schema, "additionalProperties": {"type": "string", "enum": ["merge", "freeze"]}}


def application_form() -> dict[str, Schema | type]:
    """The form of a fitted workflow over new data."""
    return {
        "fitted": str,
        "source": section(Source, ("path", "format")),
        "output": section(Output, OUTPUT),
        **where_and_how(),
    }


def where_and_how() -> dict[str, Schema]:
    """The last fields of every flow's form."""
    cluster = section(Cluster, ("kind", "workers", "address"))
    contract = {"anyOf": [{"type": "string", "title": "file"}, {"type": "object", "title": "map"}]}
    return {
        "cluster": cluster,
        "contract": contract,
        "checks": section(Checks, ("on_finding",)),
        "dry_run": {"type": "boolean", "default": False},
        "run": section(Run, RUN),
    }


class FormField:
    """A parameter as the form has it; it may be left out, and only the schema says what is filled in then."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        # Optional by a default of its own: the function's default, null, would make every field a choice with "None".
        return core_schema.with_default_schema(core_schema.any_schema(), default=None)

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler) -> Schema:
        return dict(self.schema)


def with_form(flow: Any, fields: Mapping[str, Any]) -> Any:
    """The flow with a form: for each parameter, in their order on the page, its schema, or the type of a required one.

    Prefect makes the form of a deployment from the signature of the flow, and the texts from its docstring; a call goes
    by the signature of the function, which stays as it is.
    """
    known = inspect.signature(flow.fn).parameters
    if set(known) != set(fields):
        raise TypeError(f"form and function of {flow.name} differ: {set(known) ^ set(fields)}")
    shown = {name: Annotated[Any, FormField(of)] if isinstance(of, dict) else of for name, of in fields.items()}
    flow.description = (inspect.getdoc(flow.fn) or "").partition("\n\nArgs:")[0]
    flow.__signature__ = inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=of) for name, of in shown.items()]
    )
    return flow


def section(model: type[BaseModel], shown: Sequence[str]) -> Schema:
    """The form of a section: the fields `shown`, in that order. None is filled in, not even by its default: that would
    be laid over what a recipe, a job file or the deployment says."""
    whole = model.model_json_schema(by_alias=True)
    known = {name: _inlined(part, whole.get("$defs", {})) for name, part in whole["properties"].items()}
    visible = {name: {**_chosen(_partial(known[name])), "position": position} for position, name in enumerate(shown)}
    hidden = {f"^{name}$": _or_null(_partial(part, TEXTS)) for name, part in known.items() if name not in shown}
    return {
        "type": "object", "properties": visible, "patternProperties": hidden, "propertyNames": {"enum": list(known)},
    }  # fmt: skip


def _inlined(part: Any, definitions: Mapping[str, Any]) -> Any:
    """A schema with what its references stand for in their place."""
    if isinstance(part, list):
        return [_inlined(one, definitions) for one in part]
    if not isinstance(part, dict):
        return part
    own = {key: _inlined(value, definitions) for key, value in part.items() if key != "$ref"}
    if "$ref" in part:
        return {**_inlined(definitions[part["$ref"].rpartition("/")[2]], definitions), **own}
    return own


def _partial(part: Any, without: tuple[str, ...] = ()) -> Any:
    """A schema that requires nothing, has no defaults and none of some other keys."""
    if isinstance(part, list):
        return [_partial(one, without) for one in part]
    if not isinstance(part, dict):
        return part
    dropped = ("properties", "default", "required", *without)
    schema = {key: _partial(value, without) for key, value in part.items() if key not in dropped}
    if "properties" in part:
        schema["properties"] = {name: _partial(of, without) for name, of in part["properties"].items()}
    return schema


def _chosen(part: Schema) -> Schema:
    """The types that people choose from, by names that say what they are.

    A field of one type that may be null has no choice: the server takes null for it, too, since nothing is required.
    """
    kinds = [kind for kind in part.get("anyOf", []) if kind.get("type") != "null"]
    rest = {key: value for key, value in part.items() if key != "anyOf"}
    if len(kinds) < 2:
        return {**kinds[0], **rest} if kinds else part
    return {**rest, "anyOf": [{**kind, "title": CHOICES.get(kind["type"], kind["type"])} for kind in part["anyOf"]]}


def _or_null(part: Schema) -> Schema:
    """The same, or null; said such that a message names the type, where there is one."""
    kinds = [kind for kind in part.get("anyOf", [part]) if kind.get("type") != "null"]
    if len(kinds) > 1 or "type" not in kinds[0]:
        return {"anyOf": [*kinds, {"type": "null"}]}
    values = {"enum": [*kinds[0]["enum"], None]} if "enum" in kinds[0] else {}
    return {**kinds[0], **values, "type": [kinds[0]["type"], "null"]}
