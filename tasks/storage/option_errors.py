"""Errors for options of a storage that its client does not have: which one, who gave it, and what is near it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tasks.core.redaction import plain_url
from tasks.errors import JobError, few, near
from tasks.storage.cloud_options import kind_of, known_names, unknown_options
from tasks.storage.credentials import StorageOptions, variable_of

UNKNOWN_TO_OBSTORE = "obstore, by which rowmill reads and writes this storage, does not know it"
UNEXPECTED = re.compile(r"unexpected keyword argument '(\w+)'")


def explain_refusal(error: Exception, url: str, options: Mapping[str, Any], fs: type) -> JobError | None:
    """The error for an option that a file system of fsspec, or the client below it, has refused; None for an error that
    is about something else."""
    # fsspec's client of HTTP turns a refusal into a file that is missing.
    refusal = error if isinstance(error, TypeError) else error.__cause__
    match = UNEXPECTED.search(str(refusal)) if isinstance(refusal, TypeError) else None
    if match is None:
        return None
    refused = [path for path in _list_names(options) if path.rpartition(".")[2] == match[1]]
    if not refused:
        return None
    around = refused[0].rpartition(".")[0]
    known = [] if around else _list_parameters(fs)
    return make_option_error(url, refused[:1], options, known, f"{fs.__name__} of fsspec refuses it")


def explain_unknown_options(url: str, options: Mapping[str, Any], more: str = "") -> JobError | None:
    """The error for options of a cloud that obstore does not know, with `more` of why fsspec is no way out; None if it
    knows all of them."""
    kind = kind_of(url)
    unknown = unknown_options(kind, options) if kind else []
    return make_option_error(url, unknown, options, [], UNKNOWN_TO_OBSTORE + more) if unknown else None


def make_option_error(
    url: str, names: Sequence[str], options: Mapping[str, Any], known: Sequence[str], why: str
) -> JobError:
    """A JobError for options, by their names (`client_kwargs.region` for one in a map).

    `known`: names that the client has, next to those that rowmill translates.
    """
    stored = options if isinstance(options, StorageOptions) else StorageOptions(options)
    kind = kind_of(url)
    around, _, name = names[0].rpartition(".")
    every = sorted({*known, *(known_names(kind) if kind and around in ("", "client_kwargs") else ())})
    advice = ""
    if every:
        close = near(name, every)
        advice = f"{close} " if close.startswith("did") else f"{close}; "
    correct = "correct it, or leave it out"
    if stored.name:
        correct += f", in {variable_of(stored.name)} or the Secret block {stored.name!r}, where the workers run"
    return JobError(
        f"the storage has no option {few([repr(one) for one in names])}",
        where=f"{stored.where}, for {plain_url(url)}",
        why=why,
        do=advice + correct,
    )


def _list_names(options: Mapping[str, Any]) -> Iterator[str]:
    """The names of options, and of those in maps such as `client_kwargs`."""
    for name, value in options.items():
        yield name
        if isinstance(value, Mapping):
            yield from (f"{name}.{inner}" for inner in value)


def _list_parameters(fs: type) -> list[str]:
    """The options that a file system of fsspec names itself."""
    parameters = inspect.signature(fs.__init__).parameters  # type: ignore[misc]  # of the class
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [name for name, parameter in parameters.items() if parameter.kind in named and name != "self"]
