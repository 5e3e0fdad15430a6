"""Large vocabularies of fitted workflows in files that processes map into memory together, with what looks them up.

A saved workflow holds its tables compressed, and each process that applies it builds a hash table of each vocabulary.
Here both lie ready: a table as an Arrow file, and what an operator's `prepare` made of it as arrays (`.npy` and Arrow
files) and a description of the objects around them (JSON). The first process that needs one writes it, under a name
made of digests; all others map it, and share its pages.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from tasks.core.strict_json import JsonObject
from tasks.core.versions import rowmill_version
from tasks.engines.cpu.lookup import LOOKUP_CLASSES

LEAST_ROWS = 1 << 16  # a smaller table costs a process less than its files would
CLASSES = {cls.__name__: cls for cls in LOOKUP_CLASSES}
T = TypeVar("T")


class UnmappableError(TypeError):
    """An object is not made of what can be mapped: numbers, texts, arrays, and the classes of the CPU's lookups."""


class MappedTables:
    """A folder of this host with mapped tables and lookups, for all saved workflows and any number of processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open_table(self, digests: list[str], read: Callable[[], pa.Table]) -> pa.Table:
        """Map the table of the files with these digests; `read` reads it where it is not there yet."""
        name = _name("table", digests)

        def write(folder: Path) -> None:
            _write_arrow(folder / "table.arrow", read())

        self._provide(name, write)
        return _map_arrow(self.folder / name / "table.arrow")

    def open_lookup(self, identity: list[Any], build: Callable[[], T]) -> T:
        """Map the object that `build` builds, which `identity` (JSON values) names together with this version.

        An object that cannot be mapped is returned as it was built.
        """
        name = _name("lookup", [rowmill_version(), *identity])
        built: list[T] = []

        def write(folder: Path) -> None:
            built.append(build())
            arrays = list[Any]()
            description = _describe(built[0], arrays)
            for number, values in enumerate(arrays):
                _write_array(folder, number, values)
            (folder / "lookup.json").write_text(json.dumps(description))

        try:
            self._provide(name, write)
        except UnmappableError:
            return built[0]
        folder = self.folder / name
        opened: T = _restore(json.loads((folder / "lookup.json").read_text()), folder)
        return opened

    def _provide(self, name: str, write: Callable[[Path], None]) -> None:
        """Have `write` fill the folder `name`, unless it is there; one process of the host at a time."""
        if (self.folder / name).exists():
            return
        with self._hold_lock():
            if (self.folder / name).exists():
                return
            unfinished = Path(tempfile.mkdtemp(dir=self.folder, prefix=".unfinished-"))
            try:
                write(unfinished)
                unfinished.rename(self.folder / name)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
                pa.default_memory_pool().release_unused()  # this process goes on with the mapped files alone

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _name(kind: str, identity: list[Any]) -> str:
    return f"{kind}-{hashlib.sha256(json.dumps(identity).encode()).hexdigest()}"


def _write_arrow(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def _map_arrow(path: Path) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def _write_array(folder: Path, number: int, values: np.ndarray | pa.Array) -> None:
    if isinstance(values, np.ndarray):
        np.save(folder / f"{number}.npy", values, allow_pickle=False)
    else:
        _write_arrow(folder / f"{number}.arrow", pa.table({"": values}))


def _describe(value: object, arrays: list[Any]) -> JsonObject:
    """Describe an object as JSON, and collect the arrays in it; an UnmappableError for a class that is not known."""
    match value:
        case None | bool() | int() | float() | str():
            return {"plain": value}
        case np.generic():
            return {"number": value.item(), "dtype": value.dtype.str}
        case np.ndarray():
            arrays.append(value)
            return {"array": len(arrays) - 1}
        case pa.Array():
            arrays.append(value)
            return {"arrow": len(arrays) - 1}
        case pa.DataType():
            arrays.append(pa.array([], value))
            return {"type": len(arrays) - 1}
        case tuple() | list():
            return {type(value).__name__: [_describe(item, arrays) for item in value]}
    if CLASSES.get(type(value).__name__) is not type(value):
        raise UnmappableError(type(value).__name__)
    cached = {name for name, item in vars(type(value)).items() if isinstance(item, cached_property)}  # made when needed
    fields = {name: _describe(item, arrays) for name, item in vars(value).items() if name not in cached}
    return {"object": type(value).__name__, "fields": fields}


def _restore(description: JsonObject, folder: Path) -> Any:
    """Restore an object from its description; arrays are views of mapped files, which cannot be written."""
    match description:
        case {"plain": value}:
            return value
        case {"number": value, "dtype": dtype}:
            return np.dtype(dtype).type(value)
        case {"array": number}:
            mapped = np.load(folder / f"{number}.npy", mmap_mode="r", allow_pickle=False)
            return mapped.view(np.ndarray)
        case {"arrow": number}:
            column = _map_arrow(folder / f"{number}.arrow").column(0)
            return column.chunk(0) if column.num_chunks else pa.array([], column.type)
        case {"type": number}:
            return _map_arrow(folder / f"{number}.arrow").column(0).type
        case {"tuple": items}:
            return tuple(_restore(item, folder) for item in items)
        case {"list": items}:
            return [_restore(item, folder) for item in items]
        case {"object": name, "fields": fields}:
            restored = object.__new__(CLASSES[name])
            vars(restored).update({field: _restore(item, folder) for field, item in fields.items()})
            return restored
    raise ValueError(f"the description of a lookup in {folder} is damaged")
