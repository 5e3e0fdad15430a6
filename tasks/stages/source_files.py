"""The source files of each split, and errors that name the key of the job that a split comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tasks.core.plan import File
from tasks.core.settings import Source
from tasks.core.strict_json import JsonObject
from tasks.errors import DataError, JobError, NoInputError
from tasks.job.refitting import LEARN_FROM
from tasks.job.request import Request
from tasks.sources.planning import NoRowsError, NoValidationRowsError
from tasks.sources.table_files import SourceFiles, list_source_files
from tasks.storage.sample_data import find_sample_folders


def list_split_paths(request: Request) -> JsonObject:
    """The path of each split of a job, and that of the rows which steps learn from that the base does not have."""
    source = request.source
    paths = {"train": source.path, "valid": source.valid} if source.valid else {"": source.path}
    if request.base and request.base.learn_from:
        paths[LEARN_FROM] = request.base.learn_from
    return paths


def find_lookalike_data(listed: Mapping[str, Mapping[str, File]]) -> list[JsonObject]:
    """The look-alike data among the files of each split."""
    return [
        one | {"of": "valid"} if split == "valid" else one
        for split, files in listed.items()
        for one in find_sample_folders(files)
    ]


def list_files(split: str, path: str | list[str], source: Source) -> SourceFiles:
    """The files of a split."""
    with naming_valid(split):
        return list_source_files(source.at(path))


@contextmanager
def naming_valid(split: str) -> Iterator[None]:
    """Errors that speak of `source.path` become those of `source.valid`, where the split is `valid`, or of
    `refit.learn_from`."""
    try:
        yield
    except (NoInputError, NoRowsError) as error:
        if split == LEARN_FROM:
            raise DataError(
                "there are no rows to learn from",
                where=f"refit.learn_from: {error.where}",
                why=error.why or error.what,
                do="correct refit.learn_from, or leave it out",
            ) from None
        if split != "valid":
            raise
        kind = NoInputError if isinstance(error, NoInputError) else NoValidationRowsError
        raise kind(
            "there are no validation data",
            where=f"source.valid: {error.where}",
            why=error.why or error.what,
            do="correct source.valid, or leave it out",
        ) from None
    except JobError as error:
        key = {"valid": "source.valid", LEARN_FROM: "refit.learn_from"}.get(split)
        if key is None or not error.where.startswith("source.path"):
            raise
        where = error.where.replace("source.path", key, 1)
        raise type(error)(error.what, where=where, why=error.why, do=error.do) from None
