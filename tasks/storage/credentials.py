"""Options of remote storages, which may have secrets: never shown, and with a name neither stored nor sent.

Options with a name are looked up where they are used, by `LOADERS`. Errors that may show a secret are masked.
"""

from __future__ import annotations

import json
import os
import re
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

from tasks.errors import JobError, RowmillError, TransientError

R = TypeVar("R")
Loader = Callable[[str, str], Mapping[str, Any] | None]  # of the options' name, and of the place that has the name
PARAMETER = "storage_options"  # of Python's functions and of operators
COMMAND = "--storage-options"
# in names of options, whose values are masked; rather too many (`design` has `sig`) than too few
SECRET_KEYS = re.compile(r"secret|passw|token|key|sig|sas|credential|connection_string|user", re.IGNORECASE)
SHORTEST = 3  # characters of a secret: masking shorter texts would hide half of a message
LONG = 12  # a text of more characters, under whatever name, may be a key: it is masked if it is not an address
HIDDEN = "***"


def from_environment(name: str, where: str = "") -> Mapping[str, Any] | None:
    """Read the JSON object in the variable ROWMILL_STORAGE_<NAME>; None where there is no such variable.

    Errors name the variable, in place of `where`.
    """
    variable = variable_of(name)
    text = os.environ.get(variable)
    return None if text is None else json_object(text, variable)


def variable_of(name: str) -> str:
    return "ROWMILL_STORAGE_" + re.sub(r"\W", "_", name).upper()


def json_object(value: object, where: str) -> Mapping[str, Any]:
    """Parse options from a JSON text, or return `value` if it is a mapping; the JobError does not show the value."""
    why = ""
    try:
        options = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        options = None
        why = getattr(error, "msg", "")
    if not isinstance(options, Mapping):
        raise JobError(
            "storage options are a JSON object",
            where=where,
            why=why,
            do='write {"key": "..", "secret": ".."}, as the storage calls them',
        )
    return options


LOADERS: list[Loader] = [from_environment]  # tasks.stages.task adds Prefect's blocks when it is imported


class StorageOptions(Mapping[str, Any]):
    """Options of fsspec. Options with a name are looked up in each process at their first use, and their pickle has
    only the name; a pickle of others has the options themselves."""

    def __init__(
        self,
        options: Mapping[str, Any] | None,
        name: str = "",
        loaders: Sequence[Loader] = (),
        where: str = PARAMETER,
    ) -> None:
        self.where = where  # the key, parameter or option of a command that has the options or their name
        self.name = name
        self._options = options
        self._loaders = tuple(loaders)
        self._lock = threading.Lock()

    @property
    def options(self) -> Mapping[str, Any]:
        with self._lock:
            if self._options is None:
                self._options = self._load_options()
            return self._options

    def _load_options(self) -> Mapping[str, Any]:
        for load in self._loaders:
            if (options := load(self.name, self.where)) is not None:
                return options
        raise JobError(
            f"storage options {self.name!r} are not known",
            where=self.where,
            do=f"set the environment variable {variable_of(self.name)} to a JSON object where the workers run, "
            f"or make a Secret block {self.name!r} with it on the Prefect server",
        )

    def __getitem__(self, key: str) -> object:
        return self.options[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.options)

    def __len__(self) -> int:
        return len(self.options)

    def __repr__(self) -> str:
        return f"<storage options {self.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.name:
            return StorageOptions, (None, self.name, self._loaders, self.where)
        return StorageOptions, (self._options, "", (), self.where)


def storage(options: str | Mapping[str, Any] | None, where: str = PARAMETER) -> StorageOptions:
    """Make the options of a remote file system from a mapping or a name; JobError for unknown names.

    `where`: the key, parameter or option of a command that has them, for messages.
    """
    if isinstance(options, StorageOptions):
        return options
    if not isinstance(options, str):
        return StorageOptions(options or {}, where=where)
    named = StorageOptions(None, options, LOADERS, where)
    _ = named.options  # an unknown name fails here
    return named


def secrets_in(options: Mapping[str, Any] | None) -> list[str]:
    """List the texts of the options to mask: those under names such as `secret`, and long texts that are not addresses.

    Each also as a URL has it, since errors show URLs; longer ones first, since one may contain another.
    """
    texts = {text for key, value in (options or {}).items() for text in _find_secret_texts(key, value)}
    return sorted({*texts, *(quote(text, safe="") for text in texts)}, key=len, reverse=True)


def _find_secret_texts(key: str, value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _find_secret_texts(str(name), inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _find_secret_texts(key, inner)
    elif isinstance(value, (str, bytes)):
        text = value.decode(errors="replace") if isinstance(value, bytes) else value
        address = re.fullmatch(r"https?://[^@\s]*", text)
        if len(text) >= SHORTEST and (SECRET_KEYS.search(key) or (len(text) > LONG and not address)):
            yield text


def mask_secrets(text: str, options: Mapping[str, Any] | None) -> str:
    """Replace the secrets of the options by *** in a text.

    >>> mask_secrets("403 for key AKIA123 at https://store:9000", {"key": "AKIA123", "endpoint_url": "https://store:9000"})
    '403 for key *** at https://store:9000'
    """
    for secret in secrets_in(options):
        text = text.replace(secret, HIDDEN)
    return text


def call_masked(options: Mapping[str, Any] | None, function: Callable[..., R], *args: Any) -> R:
    """Call function(*args); an error that would show a secret of the options is replaced by `mask_error`."""
    try:
        return function(*args)
    except Exception as error:
        failure = mask_error(error, options)
    raise failure  # here, where no error is being handled that would be shown as its context


def mask_error(error: Exception, options: Mapping[str, Any] | None) -> Exception:
    """Return the error itself if it shows no secret, else one with *** for secrets and without a cause.

    That is a RowmillError of the same type. Any other error becomes a TransientError: it comes from the storage's own
    client, whose classes need arguments that are not known here, and most of these errors pass.
    """
    try:
        shown = "".join(traceback.format_exception(error)) + repr(error)
        if not any(secret in shown for secret in secrets_in(options)):
            return error
    except RowmillError:  # looking up the options failed: `error` says so
        return error
    if isinstance(error, RowmillError):
        parts = {name: mask_secrets(getattr(error, name), options) for name in ("where", "why", "do")}
        return type(error)(mask_secrets(error.what, options), **parts)
    return TransientError(
        mask_secrets(f"{type(error).__name__}: {error}", options),
        why="a remote storage, or its options",
        do="check source.path and the options of the storage; run the same job again",
    )
