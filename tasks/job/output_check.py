"""Compares the files of an output with its manifest."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq

from tasks.core.dtypes import dtype_name, plain_type
from tasks.core.plan import File
from tasks.core.schema import Schema
from tasks.core.strict_json import JsonObject
from tasks.errors import DataError
from tasks.manifest import Manifest
from tasks.sources.formats import arrow
from tasks.storage.checksum import READ, digest_opened
from tasks.storage.own_files import MANIFEST, OWN, current
from tasks.storage.published_copy import PublishedCopy
from tasks.storage.store import MissingFileError

AT_ONCE = 8  # parts that are read side by side from a storage, not from a disk
READ_REMOTE = 16 * 2**20  # bytes of a request


def list_damages(folder: Path, origin: PublishedCopy | None = None) -> list[str]:
    """List the differences between an output and its manifest, a line for each part; [] if the output is undamaged.

    Every byte is read. `origin` has the parts, where `folder` is in a copy without them.
    """
    return _list_damages(folder, origin or PublishedCopy(folder))[0]


def list_damages_and_strangers(folder: Path, origin: PublishedCopy) -> list[str]:
    """List what `list_damages` does, and the files that a reader of the folder would take for data, though no run
    wrote them."""
    damages, manifest, files = _list_damages(folder, origin)
    known = {part["path"] for part in manifest.parts}
    read = [path for path in sorted(files) if not any(name.startswith(("_", ".")) for name in path.split("/"))]
    strangers = [path for path in read if path not in known and path.split("/")[0] not in OWN]
    return damages + [f"{path} is not in the manifest" for path in strangers]


def _list_damages(folder: Path, origin: PublishedCopy) -> tuple[list[str], Manifest, dict[str, File]]:
    """The damages, and for more checks the manifest and the files of the folder."""
    manifest = Manifest.read(current(folder), folder)
    origin = origin.at(Path(manifest.path))
    files = origin.list_files()
    problems = []
    if manifest.is_changed:
        problems.append(f"{MANIFEST} was changed since it was written")
    parts = [*manifest.parts, *manifest.data.get("footers", ()), *manifest.data.get("profile", ())]
    with ThreadPoolExecutor(1 if origin.store.is_local else AT_ONCE) as threads:
        described = threads.map(lambda part: _describe_damage(part, manifest, origin, files.get(part["path"])), parts)
        problems += [f"{part['path']} {problem}" for part, problem in zip(parts, described, strict=True) if problem]
    total = sum(part["rows"] for part in manifest.parts)
    if total != manifest.rows["out"]:
        problems.append(f"the parts hold {total:,} rows, the manifest says {manifest.rows['out']:,}")
    return problems, manifest, files


def _describe_damage(part: JsonObject, manifest: Manifest, origin: PublishedCopy, file: File | None) -> str:
    """Describe how a part differs from its manifest; "" if it does not."""
    path = origin.folder / part["path"]
    if file is None:
        try:
            file = origin.find_file(path)  # behind a link to a folder, which is not listed
        except MissingFileError:
            return "is missing"
        except DataError as error:
            return f"cannot be read: {error.why or error.what}"
    if not path.resolve().is_relative_to(origin.folder.resolve()):
        return "is a link that leads out of the folder"
    if file.size != part["bytes"]:
        return f"has {file.size:,} bytes, the manifest says {part['bytes']:,}"
    return _describe_other_content(file, part, origin) or (
        _describe_other_rows(file, part, manifest, origin) if "rows" in part else ""
    )


def _describe_other_content(file: File, part: JsonObject, origin: PublishedCopy) -> str:
    try:
        with origin.store.open(file.path, file) as opened:
            content = digest_opened(opened, READ if origin.store.is_local else READ_REMOTE)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    except DataError as error:
        return f"cannot be read: {error.why or error.what}"
    return "" if content == part["xxh3_128"] else "has other content than when it was written (xxh3-128 differs)"


def _describe_other_rows(file: File, part: JsonObject, manifest: Manifest, origin: PublishedCopy) -> str:
    """Describe how schema or rows of a part differ from the manifest; "" if they do not. Text files have no schema."""
    form = manifest.data["output"]["format"]
    if form not in STORED:
        return ""
    try:
        rows, schema = STORED[form](file, origin)
    except (OSError, ValueError, DataError, pa.ArrowException) as error:
        return f"cannot be read as {form}: {str(error).splitlines()[0]}"
    if rows != part["rows"]:
        return f"has {rows:,} rows, the manifest says {part['rows']:,}"
    folders = set(manifest.data["output"].get("partition_on") or ())
    named = {c.name: c.dtype for c in Schema.from_json(manifest.data["schema"]).columns if c.name not in folders}
    stored = {field.name: plain_type(field.type) for field in schema}
    for name in {**named, **stored}:
        if name not in stored or name not in named:
            return f"{'has a' if name in stored else 'lacks the'} column {name!r}, unlike what the manifest says"
        if stored[name] != plain_type(named[name]) and form != "orc":  # ORC has types of its own
            return f"has {dtype_name(stored[name])} in column {name!r}, the manifest says {dtype_name(named[name])}"
    return ""


def _of_parquet(file: File, origin: PublishedCopy) -> tuple[int, pa.Schema]:
    with origin.store.open(file.path, file) as opened:
        parquet = pq.ParquetFile(opened)
        return parquet.metadata.num_rows, parquet.schema_arrow


def _of_arrow(file: File, origin: PublishedCopy) -> tuple[int, pa.Schema]:
    inspected = arrow.inspect(file, {"storage_options": origin.options})
    return inspected.rows, inspected.schema


def _of_orc(file: File, origin: PublishedCopy) -> tuple[int, pa.Schema]:
    with origin.store.open(file.path, file) as opened:
        orc = pyarrow.orc.ORCFile(opened)
        return orc.nrows, orc.schema


STORED: dict[str, Callable[[File, PublishedCopy], tuple[int, pa.Schema]]] = {
    "parquet": _of_parquet,
    "arrow": _of_arrow,
    "orc": _of_orc,
}
