"""Which store a path is in: this host's disks, an object store, or another storage that fsspec knows."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasks.core.plan import File
from tasks.core.redaction import plain_url
from tasks.errors import DataError, JobError, RowmillError
from tasks.storage.allowed_roots import is_local
from tasks.storage.cloud_options import AZURE, EXTRAS, kind_of, unknown_options
from tasks.storage.credentials import mask_secrets
from tasks.storage.fsspec_store import FsspecStore
from tasks.storage.local_store import LocalStore
from tasks.storage.option_errors import explain_refusal, explain_unknown_options
from tasks.storage.store import MissingFileError, Store, make_missing_error
from tasks.storage.store_process import open_object_store

LOCAL = LocalStore()


def open_store(path: str, options: Mapping[str, Any] | None = None) -> Store:
    """The store that has a path; one for each bucket and process. A JobError for one that cannot be used here.

    Object stores are read by obstore. Where options are set that fsspec's client alone knows, or obstore is missing,
    they are read by that client.
    """
    if is_local(path):
        return LOCAL
    settings = dict(options or {})
    kind = kind_of(path)
    if kind:
        _check_bucket(path, kind)
    if kind and importlib.util.find_spec("obstore") and not unknown_options(kind, settings):
        return open_object_store(path, settings)
    return FsspecStore(_file_system(path, options or {}), options or {})


def _check_bucket(path: str, kind: str) -> None:
    """A JobError for a URL with a user or password; the container of an Azure URL stands where they would."""
    user, at, _ = path.split("/", 3)[2].rpartition("@")
    if at and (kind != AZURE or ":" in user):
        raise JobError(
            "a URL of an object store holds a user or a password",
            where=plain_url(path),
            why="it would be shown in messages",
            do="leave it out of the URL, and name the options of the storage: storage_options",
        )


@dataclass(frozen=True)
class ListedFiles:
    """What a path names: one file, or the files below a folder or prefix, in the order of the bytes of their paths."""

    path: str  # as the store writes it
    files: tuple[File, ...]
    is_folder: bool


def list_files(path: str, options: Mapping[str, Any] | None = None) -> ListedFiles:
    """List the file of a path, or all files below it; a MissingFileError if there are none.

    One request for a file; for a folder one more, and one for each thousand files.
    """
    store = open_store(path, options)
    full = store.full_path(path)
    try:
        return ListedFiles(full, (store.stat(full),), is_folder=False)
    except MissingFileError:
        files = [file for page in store.list_pages(full) for file in page]
    if not files:
        raise make_missing_error(path)
    return ListedFiles(full, tuple(sorted(files, key=lambda file: os.fsencode(file.path))), is_folder=True)


def _file_system(url: str, options: Mapping[str, Any]) -> Any:
    import fsspec

    try:
        return fsspec.core.url_to_fs(url, **options)[0]
    except ImportError as error:
        why = str(error).partition("\n")[0]
        do = "install the package that it names where the workers run"
        unknown = explain_unknown_options(url, options, f", and {why}")
        if unknown and importlib.util.find_spec("obstore"):
            raise unknown from None
        if kind := kind_of(url):
            why = "its client is not installed"
            do = f"where the workers run: pip install 'rowmill[{EXTRAS[kind]}]'"
    except TypeError as error:
        scheme = fsspec.utils.get_protocol(url)
        refused = explain_refusal(error, url, options, fsspec.get_filesystem_class(scheme))
        raise refused or make_storage_error(url, error, options) from None
    except ValueError as error:
        why = str(error)
        do = "write file://, s3://, gs://, abfs://, https:// or what else fsspec knows"
    except Exception as error:
        raise make_storage_error(url, error, options) from None
    raise JobError("the storage cannot be used", where=url, why=mask_secrets(why, options), do=do)


def make_storage_error(url: str, error: Exception, options: Mapping[str, Any] | None) -> RowmillError:
    """The error for a storage that cannot be listed or opened."""
    if isinstance(error, RowmillError):
        return error
    return DataError(
        "the storage cannot be read",
        where=url,
        why=plain_url(mask_secrets(f"{type(error).__name__}: {error}", options)),
        do="check the URL, the network, and the options of the storage",
    )
