"""Compares the files of an output with its manifest."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq

from tasks.core.dtypes import dtype_name, plain_type
from tasks.core.plan import File
from tasks.core.schema import Schema
from tasks.core.strict_json import JsonObject
from tasks.manifest import Manifest
from tasks.sources.formats import arrow
from tasks.storage.checksum import digest
from tasks.storage.own_files import MANIFEST, current


def list_damages(folder: Path) -> list[str]:
    """List the differences between an output and its manifest, a line for each part; [] if the output is undamaged."""
    manifest = Manifest.read(current(folder), folder)
    problems = []
    if manifest.is_changed:
        problems.append(f"{MANIFEST} was changed since it was written")
    for part in [*manifest.parts, *manifest.data.get("footers", ()), *manifest.data.get("profile", ())]:
        path = Path(manifest.path) / part["path"]
        if not path.is_file():
            problems.append(f"{part['path']} is missing")
        elif not path.resolve().is_relative_to(Path(manifest.path).resolve()):
            problems.append(f"{part['path']} is a link that leads out of the folder")
        elif path.stat().st_size != part["bytes"]:
            problems.append(f"{part['path']} has {path.stat().st_size:,} bytes, the manifest says {part['bytes']:,}")
        elif problem := _differs(path, part["xxh3_128"]) or (
            "rows" in part and _describe_other_rows(path, part, manifest)
        ):
            problems.append(f"{part['path']} {problem}")
    total = sum(part["rows"] for part in manifest.parts)
    if total != manifest.rows["out"]:
        problems.append(f"the parts hold {total:,} rows, the manifest says {manifest.rows['out']:,}")
    return problems


def _describe_other_rows(path: Path, part: JsonObject, manifest: Manifest) -> str:
    """Describe how schema or rows of a part differ from the manifest; "" if they do not. Text files have no schema."""
    form = manifest.data["output"]["format"]
    try:
        rows, schema = STORED[form](path) if form in STORED else (None, None)
    except (OSError, ValueError, pa.ArrowException) as error:
        return f"cannot be read as {form}: {str(error).splitlines()[0]}"
    if rows is None or schema is None:
        return ""
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


def _of_parquet(path: Path) -> tuple[int, pa.Schema]:
    with pa.OSFile(str(path)) as file:
        parquet = pq.ParquetFile(file)
        return parquet.metadata.num_rows, parquet.schema_arrow


def _of_arrow(path: Path) -> tuple[int, pa.Schema]:
    inspected = arrow.inspect(File(str(path), path.stat().st_size, 0), {})
    return inspected.rows, inspected.schema


def _of_orc(path: Path) -> tuple[int, pa.Schema]:
    file = pyarrow.orc.ORCFile(str(path))
    return file.nrows, file.schema


STORED = {"parquet": _of_parquet, "arrow": _of_arrow, "orc": _of_orc}


def _differs(path: Path, known: str) -> str:
    try:
        return "" if digest(path) == known else "has other content than when it was written (xxh3-128 differs)"
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
