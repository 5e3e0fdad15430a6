"""Presets: named clusters by class, each a YAML file with the class, its arguments, and the keywords of a job.

rowmill's own are in infra/clusters/presets. A host adds those of its site, or replaces one of the same name, in the
folder that ROWMILL_CLUSTER_PRESETS names; a job cannot name a file.
"""

from __future__ import annotations

import copy
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)

from infra import bounded_yaml
from infra.clusters.keyword_types import COMMANDS, PATHS, TYPES, default_of
from infra.clusters.keywords import Keywords
from tasks.errors import mistakes, near, place_text

VARIABLE = "ROWMILL_CLUSTER_PRESETS"
FOLDER = Path(__file__).parent / "presets"
OWN = ("ssh", "slurm", "kubernetes")  # files of this folder, in the order in which texts name them
NAME = re.compile(r"[a-z][a-z0-9_]*")  # a preset is a kind, and a section of a job
PLACEHOLDER = re.compile(r"\{(value|this_python)(\[\d+\])?\}")
Limit = Literal["ROWMILL_ALLOWED_CLUSTERS", "ROWMILL_ALLOWED_CLUSTER_KEYS", "ROWMILL_FUNCTION_MODULES"]
# Keys of the section `cluster` that a preset may refuse, since its class has something else in their place.
Refusable = Literal[
    "workers",
    "threads_per_worker",
    "visible_devices",
    "protocol",
    "cuda_ipc",
    "interface",
    "dashboard",
    "memory_limit",
    "device_memory_limit",
    "rmm_pool_size",
    "local_directory",
    "adapt",
]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PresetSection(Strict):
    """What a job sets of a preset; its keys are the keywords of that preset."""

    of_preset: ClassVar[Preset]

    def __reduce__(self) -> Any:
        """The model is made of a file that a worker elsewhere need not have: the preset goes with the values."""
        return _empty_section, (self.of_preset,), self.__getstate__()


class Keyword(Strict):
    """A key that a job may set: what it takes, which limit of the host it has, and the arguments of the class that it
    sets."""

    type: str
    description: str
    required: bool = False
    default: Any = None
    at_least: float | None = None  # of a number, or entries of a list
    at_most: float | None = None
    above: float | None = None
    pattern: str | None = None
    # The variable of the host that has to allow the value: the list of hosts and images, the list of keys that open a
    # run to others, or, by its word `shell`, commands. Values of a type of path are held to ROWMILL_ALLOWED_ROOTS.
    limited_by: Limit | None = None
    # Laid over the arguments of the class: maps merge, lists are appended. Without it: the argument of its own name.
    sets: Keywords | None = None
    unset: Keywords = {}  # the same, where the key is left out, or is 0, false or empty

    @field_validator("type")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in TYPES:
            raise ValueError(f"there is no type {name!r}: {near(name, list(TYPES))}")
        return name

    @model_validator(mode="after")
    def _is_safe(self) -> Self:
        if self.type in COMMANDS and self.limited_by is None:
            raise ValueError(f"a {self.type} may hold commands: set limited_by, or another type")
        if self.pattern is not None and get_args(TYPES[self.type])[:1] != (str,):
            raise ValueError(f"the type {self.type} takes no pattern: one is for a text")
        if self.default is not None:
            TypeAdapter(TYPES[self.type]).validate_python(self.default)
        return self

    @property
    def is_path(self) -> bool:
        """Whether values are files or folders of this host."""
        return self.type in PATHS

    @property
    def field(self) -> Any:
        """Type and field of the section's model."""
        numbers = {"ge": self.at_least, "le": self.at_most, "gt": self.above}
        if self.type.startswith("list of "):
            numbers = {"min_length": self.at_least, "max_length": self.at_most}
        limits: dict[str, Any] = {name: _whole(number) for name, number in numbers.items() if number is not None}
        kind = TYPES[self.type]
        if self.pattern is not None:  # inside of the type's own check, so that the schema of the form has it
            text, *checks = get_args(kind)
            kind = Annotated[text, Field(pattern=self.pattern), *checks]
        if self.required:
            return kind, Field(description=self.description, **limits)
        default = default_of(self.type) if self.default is None else self.default
        return kind if default is not None else kind | None, Field(default, description=self.description, **limits)


def _whole(number: float) -> float:
    """Return the number as the schema of a form shows it: 1, not 1.0."""
    return int(number) if number == int(number) else number


class RequiredLibrary(Strict):
    """The library of a class: its module, the package that has it, and the extra of rowmill that installs it."""

    module: str
    package: str
    extra: str | None = None


class Preset(Strict):
    """A cluster by class under a name."""

    name: str
    description: str
    about: str = ""
    cluster_class: str = Field(pattern=r"^\w+(\.\w+)+$")
    needs: RequiredLibrary | None = None
    gpus: int = Field(0, ge=0)  # of a host, job or pod, where no keyword `gpus` says it
    cluster_kwargs: Keywords = {}
    adapt_kwargs: Keywords = {}
    keywords: dict[str, Keyword] = {}
    one_worker_for: str | None = None  # keyword whose entries have a worker each, or one for each GPU
    refuses: dict[Refusable, str] = {}

    @field_validator("name")
    @classmethod
    def _is_a_key(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError(f"the name {name!r} is not one of small letters, digits and _")
        return name

    @field_validator("keywords")
    @classmethod
    def _are_keys(cls, keywords: dict[str, Keyword]) -> dict[str, Keyword]:
        for name in keywords:
            if not NAME.fullmatch(name):
                raise ValueError(f"the keyword {name!r} is not of small letters, digits and _")
            if name.startswith("model_") or name in dir(PresetSection):
                raise ValueError(f"the keyword {name!r} has a meaning of its own: call it otherwise, and use `sets`")
        return keywords

    @model_validator(mode="after")
    def _counts_a_keyword(self) -> Self:
        counted = self.one_worker_for
        if counted is None:
            return self
        if counted not in self.keywords:
            raise ValueError(f"one_worker_for: there is no keyword {counted!r}")
        if not self.keywords[counted].type.startswith("list of ") or not self.keywords[counted].required:
            raise ValueError(f"one_worker_for: the keyword {counted!r} is not a list that is required")
        return self

    def section(self) -> type[PresetSection]:
        """Return the model of the section that a job writes for it."""
        fields: Keywords = {name: keyword.field for name, keyword in self.keywords.items()}
        title = "".join(part.capitalize() for part in self.name.split("_"))
        model = create_model(title, __base__=PresetSection, __doc__=self.about or self.description, **fields)
        model.of_preset = self
        return model

    def arguments(self, section: Any) -> Keywords:
        """Return the arguments of the class: those of the preset, and what the job's keywords set."""
        arguments = copy.deepcopy(self.cluster_kwargs)
        for name, keyword in self.keywords.items():
            value = getattr(section, name)
            sets = {name: "{value}"} if keyword.sets is None else keyword.sets
            arguments = _lay_over(arguments, _fill_in(sets if value else keyword.unset, value))
        return arguments


def _empty_section(preset: Preset) -> PresetSection:
    model = preset.section()
    return model.__new__(model)


def _fill_in(template: Any, value: Any) -> Any:
    """The template with the value in the place of `{value}`, its entry in that of `{value[0]}`, and the path of this
    Python in that of `{this_python}`.

    A text that is `{value}` alone becomes the value itself, and in a list the entries of a value that is a list.
    """
    if isinstance(template, dict):
        return {key: _fill_in(one, value) for key, one in template.items()}
    if isinstance(template, list):
        filled = [(one, _fill_in(one, value)) for one in template]
        spliced = [result if one == "{value}" and isinstance(result, list) else [result] for one, result in filled]
        return [entry for entries in spliced for entry in entries]
    if template == "{value}":
        return copy.deepcopy(value)
    if not isinstance(template, str):
        return template

    def replace(match: re.Match[str]) -> str:
        if match[1] == "this_python":
            return sys.executable
        return str(value[int(match[2][1:-1])] if match[2] else value)

    return PLACEHOLDER.sub(replace, template)


def _lay_over(ours: Any, more: Any) -> Any:
    """Maps merge, lists are appended, all else is replaced."""
    if isinstance(ours, dict) and isinstance(more, dict):
        return ours | {key: _lay_over(ours.get(key), value) for key, value in more.items()}
    if isinstance(ours, list) and isinstance(more, list):
        return [*ours, *more]
    return more


@dataclass(frozen=True)
class Presets:
    """The presets by name, and why files of the host cannot be used, by the names that they would have."""

    usable: dict[str, Preset] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


def read_presets(reserved: frozenset[str] = frozenset()) -> Presets:
    """rowmill's presets and those of the host's folder, of which none may have a reserved name.

    A file that cannot be used makes only its own name unusable: other jobs of the host go on.
    """
    presets = Presets({name: read_own(name) for name in OWN})
    folder = os.environ.get(VARIABLE)
    if not folder:
        return presets
    if not Path(folder).is_dir():
        presets.refused[""] = f"{VARIABLE} = {folder} is not a folder"
    for path in sorted(Path(folder).glob("*.yaml")):
        presets.usable.pop(path.stem, None)
        try:
            if path.stem in reserved:
                raise ValueError(f"{path}: {path.stem} is a key or a kind of the section `cluster`: rename the file")
            presets.usable[path.stem] = read_preset(path)
        except ValueError as error:
            presets.refused[path.stem] = str(error)
    return presets


def read_own(name: str) -> Preset:
    """Read a preset of rowmill. Its file is not from outside: the loader that takes a tenth of the time reads it, since
    every process that knows jobs does so when it starts."""
    path = FOLDER / f"{name}.yaml"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    data = yaml.load(path.read_text(encoding="utf-8"), loader)  # noqa: S506
    return Preset.model_validate({"name": name, **data})


def read_preset(path: Path) -> Preset:
    """Read the preset of a file, called as the file; a ValueError that names file and key."""
    try:
        data = bounded_yaml.load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if not isinstance(data, Mapping):
        raise ValueError(f"{path} is not a map with cluster_class, cluster_kwargs and keywords")
    whole = {"name": path.stem, **data}
    try:
        preset = Preset.model_validate(whole)
        preset.section()  # a default, a limit or a pattern that does not fit its type
    except ValidationError as error:
        first = mistakes(error, whole)[0]
        raise ValueError(f"{path}: {place_text(first.place)} {first.text}") from None
    except Exception as error:  # of pydantic, which has no common class for what a model may not be
        raise ValueError(f"{path}: {error}") from None
    return preset
