"""The folders where runs of this host may read and write: ROWMILL_ALLOWED_ROOTS, which no parameter can widen."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tasks.core.redaction import plain_url
from tasks.errors import HostError, JobError
from tasks.storage.cloud_options import KINDS

VARIABLE = "ROWMILL_ALLOWED_ROOTS"
MAGIC = re.compile(r"[*?\[]")
# A colon parts two roots where a path or a URL follows it; that of a URL's own scheme, or before a port, does not.
BETWEEN = re.compile(r":(?=/(?!/)|[A-Za-z][A-Za-z0-9+.\-]*://|$)")
DELETED = " (deleted)"  # what Linux adds to the path of a descriptor whose name is gone
LOCAL = ("file", "local")
HTTP = ("http", "https")
_also: ContextVar[tuple[str, ...] | None] = ContextVar("roots of the flow's host", default=None)


def read_allowed_roots() -> tuple[str, ...] | None:
    """The roots as the host names them, None where it names none: then every path is allowed.

    An empty variable allows nothing. A JobError for a root that is neither an absolute path nor a URL.
    """
    text = os.environ.get(VARIABLE)
    if text is None:
        return None
    roots = tuple(root for root in (part.strip() for part in BETWEEN.split(text)) if root)
    for root in roots:
        if not root.startswith("/") and "://" not in root:
            raise JobError(
                f"{root!r} is not a root",
                where=VARIABLE,
                why="it is neither an absolute path nor a URL",
                do="the host's administrator writes /data:/scratch:s3://bucket/logs",
            )
    return roots


@contextmanager
def limit_roots(roots: Iterable[str] | None) -> Iterator[None]:
    """Within the block, `roots` (those of the flow's host) limit paths besides the roots of this process."""
    token = _also.set(None if roots is None else tuple(roots))
    try:
        yield
    finally:
        _also.reset(token)


def check_path(path: str | os.PathLike[str], field: str) -> None:
    """A JobError for a path, pattern or URL that leads outside of the allowed roots, links and `..` resolved, and for
    one with a NUL, which no file has.

    `field` says where the path comes from, such as source.path. Of a pattern the folders before its first `*`, `?` or
    `[` count here, and every file that it finds when it is found.
    """
    if "\0" in os.fsdecode(path):
        raise JobError(
            "a path holds the character NUL",
            where=f"{field} = {os.fsdecode(path)!r}",
            why="no file has one in its name",
            do="remove it",
        )
    for roots in (read_allowed_roots(), _also.get()):
        if roots is not None:
            _check(os.fspath(path), field, roots)


def check_listed(paths: Iterable[str], field: str) -> None:
    """check_path of every listed file: a folder may contain links that lead elsewhere."""
    if read_allowed_roots() is not None or _also.get() is not None:
        for path in paths:
            check_path(path, field)


def check_files_in(folder: str | os.PathLike[str], field: str) -> None:
    """check_path of a folder (or file) and of all that is below it; below a URL, no object leads elsewhere."""
    if read_allowed_roots() is not None or _also.get() is not None:
        check_path(folder, field)
        local = is_local(os.fspath(folder))
        for path in Path(os.fspath(folder).removeprefix("file://")).rglob("*") if local else ():
            check_path(path, field)


@contextmanager
def open_allowed_path(path: str | os.PathLike[str], field: str) -> Iterator[str]:
    """A name of an open file inside of the allowed roots, for readers that open files by name: it leads to this file
    even if another file takes its path."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        check_path(leads_to(descriptor, os.fspath(path)), field)
        name = f"/proc/self/fd/{descriptor}"
        yield name if os.path.exists(name) else os.fspath(path)  # noqa: PTH110
    finally:
        os.close(descriptor)


def leads_to(descriptor: int, path: str) -> str:
    """The real path of an open file."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").removesuffix(DELETED)  # noqa: PTH115
    except OSError:
        return os.path.realpath(path)


def _check(path: str, field: str, roots: tuple[str, ...]) -> None:
    if is_local(path):
        leads = _outside(path, field, roots)
        if leads is None:
            return
    elif any(_url_within(path, root) for root in roots if not is_local(root)):
        return
    else:
        leads = path
    elsewhere = f", which leads to {leads}" if leads not in (path, _absolute(path)) else ""
    named = f"the allowed roots are {', '.join(roots)}" if roots else "no root is allowed"
    raise HostError(
        "the path is outside the allowed roots",
        where=f"{field} = {plain_url(path)}{elsewhere}",
        why=f"{named} ({VARIABLE} of the host that runs this)",
        do="choose a path inside them, or ask whoever runs the host to add one",
    )


def _outside(path: str, field: str, roots: tuple[str, ...]) -> str | None:
    """Where a local path leads to if that is outside of the roots, `..` resolved after links (as Linux) or before."""
    start = _before_magic(_absolute(path), field)
    within = [os.path.realpath(_absolute(root)) for root in roots if is_local(root)]
    for real in (os.path.realpath(start), os.path.realpath(os.path.normpath(start))):
        if not any(_within(real, root) for root in within):
            return real
    return None


def is_local(path: str) -> bool:
    """Whether a path is one of this host's file system."""
    return "://" not in path or path.startswith("file://")


def _absolute(path: str) -> str:
    return str(Path.cwd() / path.removeprefix("file://"))


def _before_magic(path: str, field: str) -> str:
    """The folders of a pattern before its first sign; `..` after it could lead anywhere and is refused."""
    if os.path.lexists(path) or not MAGIC.search(path):
        return path
    parts = Path(path).parts
    first = next(i for i, part in enumerate(parts) if MAGIC.search(part))
    if ".." in parts[first:]:
        raise JobError(
            "a pattern with `..` after its first sign",
            where=f"{field} = {path}",
            why=f"{VARIABLE} is set: where it leads is not known before",
            do="write the path without `..`",
        )
    return str(Path(*parts[:first]))


def _within(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def _url_within(url: str, root: str) -> bool:
    """Whether a URL is of the root's scheme and host and below its path, segment by segment, as written and decoded."""
    mine = _split_url(url)
    theirs = _split_url(root)
    if mine is None or theirs is None or mine[0] != theirs[0]:
        return False
    return all(segments[: len(allowed)] == allowed for segments, allowed in zip(mine[1:], theirs[1:], strict=True))


def _split_url(url: str) -> tuple[Any, list[str], list[str]] | None:
    """(kind of storage, host and path segments as written, the same decoded); None where a URL plays tricks."""
    scheme, _, rest = url.partition("://")
    decoded = _unquote_fully(rest)
    kind = _kind(scheme)
    hides_a_slash = decoded.count("/") != rest.count("/")
    # Clients drop line ends and tabs, and what is left may be `..`.
    has_control_character = any(character < " " or character == "\x7f" for character in decoded)
    if kind is None or "::" in url or "\\" in decoded or hides_a_slash or has_control_character:
        return None
    written = rest.split("/")
    plain = decoded.split("/")
    if {".", ".."} & {*written, *plain}:
        return None
    if kind in HTTP:
        written[0], plain[0] = written[0].lower(), plain[0].lower()
    return kind, _without_outer_slashes(written), _without_outer_slashes(plain)


def _without_outer_slashes(segments: list[str]) -> list[str]:
    """Segments without empty ones at the beginning and the end. One in between is part of a name: `a//b` is not below
    `a/b`."""
    filled = [i for i, segment in enumerate(segments) if segment]
    return segments[filled[0] : filled[-1] + 1] if filled else []


def _unquote_fully(text: str) -> str:
    while (plain := unquote(text)) != text:
        text = plain
    return text


def _kind(scheme: str) -> str | None:
    """The kind of storage of a scheme (s3 and s3a are one); None for schemes that are other names of local files."""
    from fsspec.registry import known_implementations

    name = scheme.lower()
    if name in LOCAL:
        return None
    same = KINDS.get(name) or known_implementations.get(name, {}).get("class", name)
    return name if name in HTTP else str(same)
