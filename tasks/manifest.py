"""What an output says of itself, and whether it is true."""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import xxhash

from tasks.commit import MANIFEST, read_json
from tasks.errors import DataError
from tasks.files import LATEST
from tasks.schema import Schema
from tasks.settings import Output
from tasks.shuffle import PERMUTATION_VERSION

FORMAT = 1
PACKAGES = ("prefect", "dask", "distributed", "pandas", "pyarrow", "numpy", "cudf-cu13", "cudf-cu12")


@dataclass(frozen=True)
class Manifest:
    """The manifest of an output folder: rows, parts with their digests, schema, settings, versions and times."""

    path: str
    data: Mapping[str, Any] = field(repr=False)

    @property
    def rows(self) -> dict[str, int]:
        return dict(self.data["rows"])

    @property
    def parts(self) -> list[dict[str, Any]]:
        return list(self.data["parts"])

    @property
    def partitioning(self) -> Any:
        """What `partition_on` made, with the exact types, for pyarrow and pandas: `pandas.read_parquet(out,
        partitioning=..)`.

        Without it readers guess the types from the folders' names. None for an output without such folders.
        """
        import pyarrow.dataset as ds

        names = self.data["output"].get("partition_on")
        if not names:
            return None
        schema = Schema.from_json(self.data["schema"])
        return ds.partitioning(Schema(schema[name] for name in names).to_arrow(), flavor="hive")

    @property
    def seconds(self) -> float:
        return float(self.data["seconds"])

    @staticmethod
    def load(folder: str | Path) -> Manifest:
        """The manifest of an output (of its latest version); DataError if the folder is not one."""
        path = current(Path(folder))
        data = read_json(path / MANIFEST)
        if not isinstance(data, dict) or "parts" not in data:
            raise DataError(
                "this is not an output of millrace",
                where=str(folder),
                why=f"it has no readable {MANIFEST}",
                do="give the folder that a finished run wrote",
            )
        if data.get("format", 0) > FORMAT:
            raise DataError(
                f"the manifest has format {data['format']}, this version reads up to {FORMAT}",
                where=str(path),
                do="upgrade millrace",
            )
        return Manifest(str(path), data)


def current(folder: Path) -> Path:
    """The folder itself, or the version that its `_latest` names."""
    latest = folder / LATEST
    return folder / latest.read_text().strip() if latest.is_file() else folder


def outputs(folder: Path) -> list[Path]:
    """The output folders behind a path: itself, or `train` and `valid` in it."""
    folder = current(folder)
    if (folder / MANIFEST).exists():
        return [folder]
    return [folder / name for name in ("train", "valid") if (folder / name / MANIFEST).exists()]


def digest(path: str | Path) -> str:
    """xxh3-128 of a file's bytes, hexadecimal."""
    if not Path(path).stat().st_size:
        return xxhash.xxh3_128(b"").hexdigest()
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return xxhash.xxh3_128(content).hexdigest()


def damages(folder: Path) -> list[str]:
    """What differs from the manifest, a line per part; [] if the output is whole."""
    manifest = Manifest.load(folder)
    found = []
    for part in [*manifest.parts, *manifest.data.get("footers", ())]:
        path = Path(manifest.path) / part["path"]
        if not path.is_file():
            found.append(f"{part['path']} is missing")
        elif path.stat().st_size != part["bytes"]:
            found.append(f"{part['path']} has {path.stat().st_size:,} bytes, the manifest says {part['bytes']:,}")
        elif problem := _differs(path, part["xxh3_128"]):
            found.append(f"{part['path']} {problem}")
    total = sum(part["rows"] for part in manifest.parts)
    if total != manifest.rows["out"]:
        found.append(f"the parts hold {total:,} rows, the manifest says {manifest.rows['out']:,}")
    return found


def _differs(path: Path, known: str) -> str:
    try:
        return "" if digest(path) == known else "has other content than when it was written (xxh3-128 differs)"
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"


def describe(
    rows_in: int, records: Sequence[dict[str, Any]], schema: Schema, output: Output, engine: str, **more: Any
) -> dict[str, Any]:
    """The manifest's content; `more` are run, labels, fingerprints, exchange, seconds and stages."""
    rows_out = sum(r["rows"] for r in records)
    return {
        "format": FORMAT,
        "millrace": millrace_version(),
        "run": more.pop("run", ""),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "rows": {
            "in": rows_in,
            "dropped": max(rows_in - rows_out, 0),
            "added": max(rows_out - rows_in, 0),
            "out": rows_out,
        },
        "parts": list(records),
        "schema": schema.to_json(),
        "labels": list(more.pop("labels", ())),
        "output": output.model_dump(exclude={"path"}) | {"files": len({Path(r["path"]).name for r in records})},
        "seed": output.seed,
        "permutation": PERMUTATION_VERSION,
        "versions": versions(),
        "engine": engine,
        **more,
    }


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """The versions of those packages that are installed."""
    return {package: found for package in packages if (found := _version(package))}


@cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def millrace_version() -> str:
    return _version("millrace") or "0.1.0"


def stable_json(data: Any) -> str:
    return json.dumps(data, sort_keys=True, default=str)
