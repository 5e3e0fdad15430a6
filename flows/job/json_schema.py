"""The JSON Schema of a job, with which an editor completes a YAML file and marks its mistakes.

The schema says of keys, types and choices what the models of the job say. What only the data or a whole job can tell
(columns that are not there, keys that exclude each other) stays with `rowmill preview`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flows.job.job import Feature, Job, recipes
from tasks.core.settings import TABLES
from tasks.ops import installed
from tasks.ops.base import Operator

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
IMPORT_PATH = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"  # a class of a user's own module
ENTRY_OF_REFIT = {
    "enum": ["merge", "freeze"],
    "description": "of an operator, a column or an entry, such as features[2]",
}


def job_schema() -> Schema:
    """Return the schema of what `rowmill run` reads, draft 2020-12, as plain JSON values.

    Of operators of installed packages it has the names where their entry points say them, not the parameters, since
    nothing of a package is imported for it.

    >>> schema = job_schema()
    >>> schema["properties"]["recipe"]["enum"]
    ['criteo', 'ecommerce', 'pca', 'sequences', 'sessions', 'toy', None]
    """
    whole = Job.model_json_schema(by_alias=True)
    definitions = whole["$defs"]
    properties = whole["properties"]
    definitions["Source"].pop("required", None)
    required = definitions["Output"].pop("required", [])
    definitions["Feature"] = _feature(Feature.model_json_schema())
    operators = {name: _operator(name) for name in sorted(Operator.registry)}
    definitions |= operators | {"Operator": _any_of(operators)}
    definitions["Refitting"].pop("propertyNames", None)
    definitions["Refitting"]["additionalProperties"] = ENTRY_OF_REFIT
    properties["recipe"] = {"description": properties["recipe"]["description"], "enum": [*recipes(), None]}
    properties["features"]["type"] = ["array", "string"]
    alone = {
        "required": ["source", "features", "output"],
        "properties": {
            "source": {"anyOf": [{"required": [key]} for key in ("path", *TABLES)]},
            "output": {"required": required},
        },
    }
    by_recipe = {"required": ["recipe"], "properties": {"recipe": {"type": "string"}}}
    return {
        "$schema": DIALECT,
        "title": "A job of rowmill",
        "description": whole["description"],
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "if": by_recipe,
        "else": alone,
        "$defs": definitions,
    }


def _feature(schema: Schema) -> Schema:
    schema["properties"]["ops"] |= {"items": {"$ref": "#/$defs/Operator"}}
    return schema


def _operator(name: str) -> Schema:
    """Return the parameters of an operator, with its name as `op`."""
    schema: Schema = Operator.registry[name].model_json_schema(by_alias=True)
    schema.pop("title", None)
    schema["properties"] = {"op": {"const": name}, **schema.get("properties", {})}
    schema["required"] = ["op", *schema.get("required", [])]
    return schema


def _any_of(operators: Mapping[str, Schema]) -> Schema:
    """Return an operator by its name, whose branch has its parameters: a message is of that operator alone."""
    known = [{"const": name, "description": of["description"]} for name, of in operators.items()]
    own = {"type": "string", "pattern": IMPORT_PATH, "description": "a class of a module of one's own"}
    packages = [
        {"const": entry.class_name, "description": f"of the package {entry.package}"}
        for entry in installed.entries()
        if entry.class_name
    ]
    branches = [
        {"if": {"properties": {"op": {"const": name}}}, "then": {"$ref": f"#/$defs/{name}"}} for name in operators
    ]
    op = {"anyOf": [*known, *packages, own]}
    return {"type": "object", "required": ["op"], "properties": {"op": op}, "allOf": branches}
