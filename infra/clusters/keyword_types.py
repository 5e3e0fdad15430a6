"""The types that a preset gives the keywords of a job; the texts of each cannot become a line of a script."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, StrictBool

from infra.clusters.script_texts import AnyPath, Host, Line, PathWord, Word, check_nested
from infra.sizes import Amount

WALLTIME = re.compile(r"(\d+-)?\d+(:\d\d){0,2}")


def _check_walltime(walltime: Any) -> Any:
    if not isinstance(walltime, str) or not WALLTIME.fullmatch(walltime):
        raise ValueError('no walltime: write "04:00:00" in quotes (YAML takes 04:00:00 for a number)')
    return walltime


Role = Literal["worker", "scheduler"]
PodPart = Literal["metadata", "spec"]


def _check_template(template: dict[Role, dict[PodPart, dict[str, Any]]]) -> dict[Role, dict[PodPart, dict[str, Any]]]:
    """The pods of a template leave rowmill the command of its own containers."""
    for role, pod in template.items():
        containers = pod.get("spec", {}).get("containers", [])
        if not isinstance(containers, list) or not all(isinstance(c, dict) and "name" in c for c in containers):
            raise ValueError(f"the containers of {role} are not a list of maps with a name each")
        if any(c["name"] == role and {"args", "command"} & c.keys() for c in containers):
            raise ValueError(f"rowmill writes the command of the container {role}: leave out `args` and `command`")
    return template


PLAIN: dict[str, Any] = {
    "integer": int,
    "number": float,
    "boolean": StrictBool,
    "memory": Amount,
    "walltime": Annotated[str, BeforeValidator(_check_walltime, json_schema_input_type=str)],
    "word": Word,
    "host": Host,
    "path": PathWord,  # a path that is one word
    "file": AnyPath,  # a path that may have blanks
    "line": Line,
    "nested": Annotated[dict[str, Any], AfterValidator(check_nested)],
    "pod template": Annotated[
        dict[Role, dict[PodPart, dict[str, Any]]], AfterValidator(_check_template), AfterValidator(check_nested)
    ],
}
LISTS: dict[str, Any] = {f"list of {name}": list[of] for name, of in PLAIN.items()}  # type: ignore[valid-type]
MAPS: dict[str, Any] = {f"map of {name}": dict[Word, of] for name, of in PLAIN.items()}  # type: ignore[valid-type]
TYPES: Mapping[str, Any] = PLAIN | LISTS | MAPS
PATHS = ("path", "file", "list of path", "list of file")  # whose values are files and folders of this host
COMMANDS = ("line", "list of line")  # whose values may be commands


def default_of(name: str) -> Any:
    """What a keyword of a type is when a job leaves it out: nothing of a list or map, else null."""
    if name.startswith("list of "):
        return []
    return {} if name.startswith("map of ") or name in ("nested", "pod template") else None
