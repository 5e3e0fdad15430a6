"""S3, Google Cloud Storage and Azure as a store, by obstore: conditional puts, ranges of one version, retries.

Throttling (503, 429), timeouts and broken connections are tried again by the client, with backoff and jitter, until the
time for it is over; what a cut connection has brought of a body is not fetched again.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, cast

from tasks.core import storage_traffic
from tasks.core.plan import File
from tasks.core.redaction import plain_url
from tasks.errors import DataError, GiveUpError, JobError, RowmillError, TransientError
from tasks.storage.cloud_options import AZURE, EXTRAS, GS, S3, CloudOptions
from tasks.storage.credentials import mask_secrets
from tasks.storage.range_file import RangeFile
from tasks.storage.ranges import Range, Span, cut_ranges, join_ranges
from tasks.storage.source_changes import raise_changed
from tasks.storage.store import (
    PAGE,
    ConflictError,
    MissingFileError,
    make_conflict_error,
    make_missing_error,
    make_no_bucket_error,
)

AT_ONCE = 16  # requests of a process: a server sends to so many about as fast as the network takes it
PART = 8 * 2**20  # bytes of a part of an upload
MOST_PARTS = 10_000
LISTED = {S3: PAGE, GS: PAGE, AZURE: 5_000}  # objects that a request lists, at most
DELETED = {S3: PAGE, GS: 1, AZURE: 256}  # objects that a request deletes, at most
PARTS_AT_ONCE = 4
# How long credentials of a profile are used until boto3 is asked again. It renews them ten minutes before they expire;
# obstore would use what it was given for half an hour, whenever that expires.
PROFILE_SECONDS = 60.0
# What may pass: no answer, too many requests, an error of the server.
PASSING = re.compile(r"status code: (408|429|5\d\d)|HTTP error|error sending request|Connection ?Reset|timed out", re.I)
INSTANCE = re.compile(r"169\.254\.169\.254|169\.254\.170\.|metadata\.google\.internal")  # asked where nothing is named
REFUSED = re.compile(r"status code: 40[13]|status: 40[13]|code: AccessDenied", re.I)
# What the command of a profile has printed may be a secret.
COMMAND_OUTPUT = re.compile(r"(retrieving credentials from [\w-]+):.*")
CODE = re.compile(r"<Code>([^<]*)</Code>\s*<Message>([^<]*)</Message>")

_process: list[int] = []  # the first that has sent a request: the client's threads are there
SAME_SCHEMES = {"s3a": "s3", "gcs": "gs"}


class ObjectStore:
    """One bucket, or container."""

    is_local = False
    publishes = True
    lists_versions = True

    def __init__(self, options: CloudOptions, secrets: Mapping[str, Any]) -> None:
        self._options = options
        self._secrets = secrets
        self._store = _client(options)

    def list_pages(self, path: str) -> Iterator[list[File]]:
        import obstore

        root, prefix = _split(path)
        listed = 0
        try:
            with self._failures(path):
                for page in obstore.list(self._store, prefix.rstrip("/") or None, chunk_size=PAGE):
                    listed += len(page)
                    files = [_file(root, entry) for entry in page if _is_below(entry["path"], prefix)]
                    yield self._without_folder_marks(files)
        finally:
            self._count_listing(listed)

    def list_folder(self, path: str) -> tuple[list[File], list[str]]:
        import obstore

        root, prefix = _split(path)
        with self._failures(path):
            level = obstore.list_with_delimiter(self._store, prefix.rstrip("/") or None)
            self._count_listing(len(level["objects"]) + len(level["common_prefixes"]))
            files = [_file(root, entry) for entry in level["objects"] if _is_below(entry["path"], prefix)]
            folders = [root + folder.rstrip("/") for folder in level["common_prefixes"]]
            return self._without_folder_marks(files), folders

    def full_path(self, path: str) -> str:
        return full_url(path)

    def open(self, path: str, file: File | None = None) -> BinaryIO:
        return cast("BinaryIO", RangeFile(self, file or self.stat(path)))

    def _count_listing(self, entries: int) -> None:
        storage_traffic.count("list", max(1, -(-entries // LISTED[self._options.kind])))

    def stat(self, path: str) -> File:
        with self._failures(path):
            return _file(_split(path)[0], self._head(path))

    def _head(self, path: str) -> Any:
        import obstore

        storage_traffic.count("head")
        return obstore.head(self._store, _split(path)[1])

    def read(self, path: str) -> tuple[File, bytes]:
        import obstore

        root, key = _split(path)
        with self._failures(path):
            answer = obstore.get(self._store, key)
            storage_traffic.count("get", nbytes=answer.meta["size"])
            return _file(root, answer.meta), bytes(answer.bytes())

    def read_ranges(self, file: File, ranges: Sequence[Range]) -> list[memoryview]:
        import obstore

        _, key = _split(file.path)

        def fetch(span: Span) -> memoryview:
            conditions: Any = {"range": (span.start, span.stop)}
            if file.version:
                conditions["if_match"] = file.version
            content = memoryview(obstore.get(self._store, key, options=conditions).bytes())
            storage_traffic.count("get", nbytes=len(content))
            return content

        # A range that begins behind the end is an error of the server.
        inside = [(min(start, file.size), min(stop, file.size)) for start, stop in ranges]
        spans = join_ranges(inside)
        try:
            with self._failures(file.path):
                fetched = list(_threads().map(fetch, spans)) if len(spans) > 1 else [fetch(span) for span in spans]
        except ConflictError as error:
            now = self.stat(file.path)
            raise_changed(file, now)
            raise TransientError(  # it changed, and changed back
                "a source file changed while it was read", where=file.path, why=error.why, do="run the same job again"
            ) from None
        return cut_ranges(inside, spans, fetched)

    def put_if_absent(self, path: str, content: bytes) -> File:
        return self._put(path, content, lambda: "create", "the file exists", creates=True)

    def put_if_unchanged(self, path: str, content: bytes, version: str) -> File:
        why = f"its version is not {version} any more"
        return self._put(path, content, lambda: self._condition_of(path, version, why), why)

    def _condition_of(self, path: str, version: str, why: str) -> dict[str, Any]:
        """The condition of a put that the version is unchanged."""
        if self._options.kind != GS:
            return {"e_tag": version}
        now = self._head(path)  # conditions there are generations, which listings do not name
        if _version(now) != version:
            raise make_conflict_error(path, why)
        return {"e_tag": now["e_tag"], "version": now["version"]}

    def _put(self, path: str, content: bytes, make_mode: Callable[[], Any], why: str, creates: bool = False) -> File:
        import obstore

        _, key = _split(path)
        try:
            with self._failures(path):
                mode = make_mode()
                storage_traffic.count("put", nbytes=len(content))
                written = obstore.put(self._store, key, content, mode=mode, use_multipart=False)
                return File(path, len(content), 0, version=_version(written))
        except (ConflictError, MissingFileError) as error:
            if creates and isinstance(error, MissingFileError):
                raise make_no_bucket_error(path) from None
            # The answer to a put may be lost: the client's next try then meets what it wrote itself.
            with self._failures(path):
                try:
                    there, written_before = self.read(path)
                    if written_before == content:
                        return there
                except MissingFileError:
                    why = "it is missing"
            raise make_conflict_error(path, why) from None

    def upload(self, source: Path, path: str) -> File:
        import obstore

        _, key = _split(path)
        size = source.stat().st_size
        part = max(PART, -(-size // MOST_PARTS))
        # An upload in parts has a request that begins it, but for Azure's, and one that ends it.
        parts = -(-size // part) + (1 if self._options.kind == AZURE else 2) if size > part else 1
        try:
            with self._failures(path):
                storage_traffic.count("put", parts, size)
                obstore.put(
                    self._store, key, source, use_multipart=size > part, chunk_size=part, max_concurrency=PARTS_AT_ONCE
                )
        except RowmillError:
            # The answer to the last request may be lost, and the next try finds no upload any more.
            if not self._is_uploaded(source, path, part):
                raise
        return self.stat(path)

    def _is_uploaded(self, source: Path, path: str, part: int) -> bool:
        """Whether the object is what an upload of the file in such parts makes, as far as S3's ETag tells it."""
        try:
            return self.stat(path).version.strip('"') == _etag_of_parts(source, part)
        except RowmillError:
            return False

    def copy(self, source: str, path: str) -> File:
        import obstore

        _, key = _split(source)
        root, target = _split(path)
        with self._failures(source):
            storage_traffic.count("put")
            obstore.copy(self._store, key, target)
            return _file(root, self._head(path))

    def delete(self, paths: Iterable[str]) -> None:
        import obstore

        every = list(paths)
        for first in range(0, len(every), PAGE):
            page = [_split(path)[1] for path in every[first : first + PAGE]]
            with self._failures(every[first]):
                try:
                    storage_traffic.count("delete", -(-len(page) // DELETED[self._options.kind]))
                    obstore.delete(self._store, page)
                except FileNotFoundError:  # of stores that delete one by one: the others may be there still
                    self._delete_each(page)

    def _delete_each(self, keys: Sequence[str]) -> None:
        import obstore

        for key in keys:
            try:
                storage_traffic.count("delete")
                obstore.delete(self._store, key)
            except FileNotFoundError:
                continue

    def _without_folder_marks(self, files: Sequence[File]) -> list[File]:
        """Consoles make an empty object `logs/` for a folder. The client lists it as `logs`, which does not exist."""
        empty = {file for file in files if not file.size}
        if not empty:
            return list(files)
        real = dict(zip(empty, _threads().map(self._is_there, empty), strict=True))
        return [file for file in files if real.get(file, True)]

    def _is_there(self, file: File) -> bool:
        try:
            self.stat(file.path)
        except MissingFileError:
            return False
        return True

    @contextmanager
    def _failures(self, path: str) -> Iterator[None]:
        from obstore import exceptions

        if is_forked():
            raise _make_fork_error(path)
        if not _process:
            _process.append(os.getpid())
        try:
            yield
        except RowmillError:
            raise
        except FileNotFoundError:
            raise make_missing_error(path) from None
        except (exceptions.PreconditionError, exceptions.AlreadyExistsError) as error:
            raise make_conflict_error(path, self._reason(error)) from None
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise self._refusal(path, error) from None
        except exceptions.InvalidPathError as error:
            raise DataError(
                "an object has a name that cannot be read",
                where=path,
                why=self._reason(error),
                do="give objects names without empty parts (//), . and .. between slashes",
            ) from None
        except (exceptions.BaseError, ValueError, OSError) as error:
            raise self._failure(path, error) from None

    def _refusal(self, path: str, error: Exception) -> JobError:
        if INSTANCE.search(str(error)):
            return JobError(
                "there are no credentials for the storage",
                where=path,
                why="none are named, none are in the environment, and this host has no role of a cloud: "
                + self._reason(error),
                do="name them (--storage-options NAME, storage_options), or set the variables of the cloud",
            )
        return JobError(
            "the storage refuses this user",
            where=path,
            why=self._reason(error),
            do="check the credentials (environment, profile, role, storage_options) and their rights",
        )

    def _failure(self, path: str, error: Exception) -> RowmillError:
        # Of listings and deletions, for which the client has no error of its own.
        if REFUSED.search(str(error)) or INSTANCE.search(str(error)):
            return self._refusal(path, error)
        if PASSING.search(str(error)):
            return TransientError(
                "the storage does not answer",
                where=path,
                why=self._reason(error),
                do="check the network, and the endpoint_url of the storage if it has one; then run the same job again; "
                f"to keep trying for longer than {self._options.retry_seconds:g} s, set ROWMILL_RETRY_SECONDS",
            )
        return DataError(
            "the storage cannot be read",
            where=path,
            why=self._reason(error),
            do="check the URL, the network, and the options of the storage",
        )

    def _reason(self, error: Exception) -> str:
        """What went wrong in a line, without secrets: errors of the client show whole URLs and answers."""
        text = str(error)
        coded = CODE.search(text)
        line = f"{coded[1]}: {coded[2]}" if coded else text.partition("\n")[0].partition("<?xml")[0].strip()
        return mask_secrets(plain_url(COMMAND_OUTPUT.sub(r"\1", line)), self._secrets)


def full_url(path: str) -> str:
    """A URL as listings write it."""
    root, key = _split(path)
    return (root + key).rstrip("/")


def is_forked() -> bool:
    """Whether this is a fork of a process that has sent requests: requests of its own would wait for ever."""
    return bool(_process) and _process[0] != os.getpid()


def _make_fork_error(path: str) -> GiveUpError:
    return GiveUpError(
        "a store that was opened before a fork cannot be used after it",
        where=path,
        why="the client has threads in the process that was forked, and none in the fork",
        do="open the file in the process that reads it, or start processes by spawn or forkserver",
    )


def _client(options: CloudOptions) -> Any:
    try:
        from obstore import store
    except ImportError:
        raise JobError(
            "the client of object stores is not installed",
            where=f"{options.kind}://{options.bucket}",
            do=f"where the workers run: pip install 'rowmill[{EXTRAS[options.kind]}]'",
        ) from None
    common: dict[str, Any] = {"client_options": options.client, "retry_config": options.retry}
    try:
        if options.kind == S3:
            return store.S3Store(options.bucket, **_with_profile(options), **common)
        if options.kind == GS:
            return store.GCSStore(options.bucket, **options.config, **common)
        return store.AzureStore(options.bucket, **options.config, **common)
    except RowmillError:
        raise
    except Exception as error:  # of the client: what an option must look like
        why = mask_secrets(plain_url(str(error).partition("\n")[0]), options.config)
        raise JobError(
            "the storage cannot be used",
            where=f"{options.kind}://{options.bucket}",
            why=why,
            do="correct the options of the storage, or the variables of its cloud",
        ) from None


def _with_profile(options: CloudOptions) -> dict[str, Any]:
    """With credentials and region of an AWS profile; boto3 renews what expires."""
    if not _needs_boto(options):
        return options.config
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise JobError(
            "profiles of AWS need boto3",
            where=f"{options.kind}://{options.bucket}",
            why=f"the profile {options.profile or 'default'} is to be used",
            do="where the workers run: pip install 'rowmill[s3]'",
        ) from None
    try:
        session = boto3.Session(profile_name=options.profile)
        provider = Boto3CredentialProvider(session, ttl=timedelta(seconds=PROFILE_SECONDS))
    except Exception as error:  # of botocore: a profile that is missing, or has no credentials
        raise JobError(
            "the AWS profile cannot be used",
            where=f"the profile {options.profile or 'default'}",
            why=COMMAND_OUTPUT.sub(r"\1", str(error).partition("\n")[0]),
            do="correct AWS_PROFILE, or the file ~/.aws/config",
        ) from None
    config = {"region": session.region_name} if session.region_name else {}
    return {**config, **options.config, "credential_provider": provider}


def _needs_boto(options: CloudOptions) -> bool:
    """Whether credentials are those of a profile: the client itself knows keys in the environment, and roles."""
    if options.config.keys() & {"access_key_id", "skip_signature"}:
        return False
    if options.profile:
        return True
    if os.environ.keys() & {
        "AWS_ACCESS_KEY_ID",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    }:
        return False
    home = Path.home() / ".aws"
    credentials = os.environ.get("AWS_SHARED_CREDENTIALS_FILE", home / "credentials")
    config = os.environ.get("AWS_CONFIG_FILE", home / "config")
    return Path(credentials).is_file() or Path(config).is_file()


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(AT_ONCE, thread_name_prefix="rowmill-fetch")


os.register_at_fork(after_in_child=_threads.cache_clear)  # a fork has no threads


def _split(path: str) -> tuple[str, str]:
    """(root that keys are put behind, key) of a URL.

    >>> _split("s3://shop/logs/a.csv"), _split("abfs://logs@shop.dfs.core.windows.net/a b.csv")
    (('s3://shop/', 'logs/a.csv'), ('abfs://logs@shop.dfs.core.windows.net/', 'a b.csv'))
    """
    scheme, _, rest = path.partition("://")
    bucket, _, key = rest.partition("/")
    return f"{SAME_SCHEMES.get(scheme, scheme)}://{bucket}/", key


def _is_below(key: str, prefix: str) -> bool:
    return not prefix.rstrip("/") or key.startswith(prefix.rstrip("/") + "/")


def _file(root: str, entry: Mapping[str, Any]) -> File:
    modified: datetime = entry["last_modified"]
    return File(root + entry["path"], entry["size"], int(modified.timestamp() * 10**9), version=_version(entry))


def _version(entry: Mapping[str, Any]) -> str:
    """The ETag, in quotes as headers have it: listings of Azure leave them out.

    >>> _version({"e_tag": "0x1C4F"}), _version({"e_tag": '"0x1C4F"'}), _version({"e_tag": None})
    ('"0x1C4F"', '"0x1C4F"', '')
    """
    tag = entry.get("e_tag")
    if not tag:
        return str(entry.get("version") or "")
    return tag if '"' in tag else f'"{tag}"'


def _etag_of_parts(source: Path, part: int) -> str:
    digests = b""
    with source.open("rb") as file:
        while content := file.read(part):
            digests += hashlib.md5(content, usedforsecurity=False).digest()
    count = len(digests) // 16
    if source.stat().st_size <= part:
        return digests.hex()
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{count}"
