"""The source that a `Dataset` is given: a path or a frame, and the parameters that say how files are read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from tasks.core.dtypes import dtype_name
from tasks.core.settings import Source
from tasks.engines.convert import libraries
from tasks.errors import JobError, near
from tasks.manifest import choose_versions
from tasks.sources.formats import FORMATS, LAYOUT
from tasks.sources.reading_rules import Fit, with_values
from tasks.storage.files import is_remote, local_path
from tasks.storage.output import PublishedOutput, of_begun_ids
from tasks.storage.published_copy import open_published

ENGINES = ("auto", "pandas", "cudf")


class ChosenVersions(NamedTuple):
    """The folders or URLs of versions of an output, and the columns whose ids began after the oldest one."""

    folders: list[str]
    begun_ids: set[str]


def list_version_folders(
    source: object, versions: str, storage_options: str | Mapping[str, Any] | None
) -> ChosenVersions:
    """The versions of an output, by its path or URL."""
    if not isinstance(source, (str, os.PathLike)):
        raise JobError(
            "versions belongs to one output",
            where="Dataset",
            do="give its folder or URL as source, or leave versions out",
        )
    path = os.fspath(source)
    path = path if is_remote(path) else local_path(path)
    with open_published(path, storage_options, "the output", "Dataset", every_version=True) as origin:
        chosen = choose_versions(origin.folder, versions, origin)
        begun = of_begun_ids([PublishedOutput.around(version) for version in chosen])
        return ChosenVersions([origin.name(version) for version in chosen], begun)


def describe_source(source: Any) -> str:
    """A path, or the kind of a frame; of several the first one, and their number."""
    several = isinstance(source, (list, tuple)) and len(source) > 0
    first = source[0] if several else source
    is_path = isinstance(first, (str, os.PathLike))
    text = repr(os.fspath(first)) if is_path else f"{libraries.library(first)}.{type(first).__name__}"
    return f"{text} and {len(source) - 1} more" if several and len(source) > 1 else text


def is_path(source: object) -> bool:
    if isinstance(source, (str, os.PathLike)):
        return True
    return isinstance(source, (list, tuple)) and all(isinstance(s, (str, os.PathLike)) for s in source)


def check_engine(engine: str) -> None:
    """A JobError for an engine that does not exist; one that is a format is likely meant for another parameter."""
    if engine not in ENGINES:
        do = f"say format={engine!r}, and leave engine out" if engine in FORMATS else near(engine, ENGINES)
        raise JobError(f"{engine!r} is not an engine", where="Dataset", do=do)


def name_types(schema: Mapping[str, Any]) -> dict[str, str]:
    """The types of columns as text, as a job names them."""
    return {name: t if isinstance(t, str) else dtype_name(t) for name, t in schema.items()}


def read_as_fitted(section: Source, reading: dict[str, Any]) -> tuple[Source, Fit] | None:
    """The files read by the rules of a fit where the section sets none; None where they are read so already."""
    fit = Fit.of(section, reading)
    fitted = with_values(section, reading)
    laid_out = {name for name in LAYOUT if name in reading} | ({"format"} if "by_suffix" in reading else set())
    laid_out |= {"number_texts"} & reading.keys()
    if fitted == section and not laid_out - {*fit.own}:
        return None
    return fitted, fit
