"""Damage by seed: files, jobs and folders that were right, changed in many ways, and what rowmill says of each.

    python -m tests.faults.damaged KIND FIRST LAST FOLDER

works on the cases FIRST to LAST - 1 of a kind in this process, under a bound on its memory, and prints a line for each:
its number, and what came of it. Case n is the same everywhere. `outcomes` runs them in forks (`tests.faults.rounds`),
so that a crash is one more thing that can come of a case.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.faults.rounds import Rounds

MEMORY = 6 * 2**30  # bytes of address space
SECONDS = 120  # for one case
ROWS = 300
EDGES = [
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    2**63 - 1,
    2**63,
    2**64 - 1,
]


def outcomes(kind: str, numbers: Sequence[int], folder: Path, rounds: Rounds) -> dict[int, str]:
    """What comes of each case: refused, read, or what must not be: a raw error, a crash, or no end."""
    found: dict[int, str] = {}
    left, printed = list(numbers), folder / "printed.txt"
    while left:
        job = {"kind": kind, "first": left[0], "last": left[-1] + 1, "folder": str(folder)}
        done = rounds.run("tests.faults.damaged:work", job, printed)
        said = printed.read_text()
        printed.unlink()
        lines = [line.partition("\t") for line in said.splitlines()]
        found |= {int(number): text for number, _, text in lines if number.isdigit()}
        rest = [number for number in left if number not in found]
        if rest:  # the process ended with this case
            last = said.strip().splitlines()[-1:] or [""]
            found[rest[0]] = f"crash: {_ended(done.status)}: {last[0]}"
        left = rest[1:]
    return found


def _ended(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"


def wrong(found: dict[int, str]) -> dict[int, str]:
    """The cases that ended otherwise than by a result or by an error that says what to fix."""
    return {number: text for number, text in found.items() if not text.startswith(("read", "refused"))}


# mutations


def mutated(content: bytes, random: np.random.Generator) -> bytes:
    """The content with one to four changes: bits, bytes, numbers at the edges of their types, cuts, copies."""
    data = bytearray(content)
    for _ in range(int(random.integers(1, 5))):
        if not data:
            break
        CHANGES[int(random.integers(len(CHANGES)))](data, random)
    return bytes(data)


def flipped(content: bytes, random: np.random.Generator) -> bytes:
    """The content with one bit changed."""
    data = bytearray(content)
    _flip(data, random)
    return bytes(data)


def _place(data: bytearray, random: np.random.Generator) -> int:
    """Anywhere; half of the time near an end, where headers and footers are."""
    n = len(data)
    near = min(n, 400)
    return int(
        [random.integers(n), random.integers(n), random.integers(near), n - 1 - random.integers(near)][
            int(random.integers(4))
        ]
    )


def _flip(data: bytearray, random: np.random.Generator) -> None:
    data[_place(data, random)] ^= 1 << int(random.integers(8))


def _byte(data: bytearray, random: np.random.Generator) -> None:
    data[_place(data, random)] = int(random.integers(256))


def _edge(data: bytearray, random: np.random.Generator) -> None:
    """A number of 2, 4 or 8 bytes at the edge of its type."""
    width = int(random.choice([2, 4, 8]))
    value = int(EDGES[int(random.integers(len(EDGES)))]) % 2 ** (8 * width)
    place = _place(data, random) // width * width
    data[place : place + width] = value.to_bytes(width, "little")[: len(data) - place]


def _cut(data: bytearray, random: np.random.Generator) -> None:
    """Bytes in the middle are gone, or all from a place on."""
    place = _place(data, random)
    end = len(data) if random.random() < 0.3 else place + int(random.integers(1, 200))
    del data[place:end]


def _copy(data: bytearray, random: np.random.Generator) -> None:
    place, origin, length = _place(data, random), _place(data, random), int(random.integers(1, 200))
    data[place:place] = data[origin : origin + length]


def _zeros(data: bytearray, random: np.random.Generator) -> None:
    place, length = _place(data, random), int(random.integers(1, 64))
    data[place : place + length] = bytes(min(length, len(data) - place))


def _noise(data: bytearray, random: np.random.Generator) -> None:
    place, length = _place(data, random), int(random.integers(1, 64))
    data[place : place + length] = random.bytes(min(length, len(data) - place))


CHANGES = [_flip, _flip, _byte, _edge, _edge, _cut, _copy, _zeros, _noise]


# files


def table() -> Any:
    """A column of every kind that the formats share."""
    import pyarrow as pa

    random = np.random.default_rng(0)
    whole = random.integers(0, 50, ROWS)
    return pa.table(
        {
            "id": whole,
            "x": pa.array(random.normal(size=ROWS), mask=random.random(ROWS) < 0.1),
            "name": pa.array([f"name-{n}" for n in whole]),
            "flag": random.random(ROWS) < 0.5,
            "at": pa.array(whole * 10**9, pa.timestamp("us")),
        }
    )


def _lists(plain: Any) -> Any:
    import pyarrow as pa

    lists = pa.array([list(range(n % 4)) for n in range(ROWS)], pa.list_(pa.int32()))
    encoded = plain["name"].combine_chunks().dictionary_encode()
    structs = pa.array([{"a": n, "b": str(n)} for n in range(ROWS)])
    return plain.append_column("items", lists).append_column("kind", encoded).append_column("pair", structs)


def _parquet(path: Path, codec: str) -> None:
    import pyarrow.parquet as pq

    pq.write_table(_lists(table()), path, compression=codec, row_group_size=100)


def _arrow(path: Path, codec: str | None) -> None:
    import pyarrow as pa

    found = _lists(table())
    with pa.ipc.new_file(path, found.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as file:
        file.write_table(found, 100)


def _orc(path: Path, codec: str) -> None:
    import pyarrow.orc

    found = table()
    found = found.append_column("items", _lists(found)["items"])
    pyarrow.orc.write_table(found, path, compression=codec)


def _csv(path: Path) -> None:
    import pyarrow.csv

    pyarrow.csv.write_csv(table(), path)


def _json(path: Path) -> None:
    rows = _lists(table()).drop_columns(["at", "kind"]).to_pylist()
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _gzip(path: Path) -> None:
    import gzip

    _csv(path)
    path.write_bytes(gzip.compress(path.read_bytes(), mtime=0))


def _avro(path: Path, codec: str, wide: bool = False) -> None:
    import fastavro

    fields: list[dict[str, Any]] = [
        {"name": "id", "type": "long"}, {"name": "x", "type": ["null", "double"]}, {"name": "name", "type": "string"},
        {"name": "flag", "type": "boolean"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "kind", "type": {"type": "enum", "name": "kind", "symbols": ["a", "b", "c"]}},
    ]  # fmt: skip
    rows = table().to_pylist()
    for number, row in enumerate(rows):
        row["kind"] = "abc"[number % 3]
        if wide:
            row |= {"items": list(range(number % 4)), "pair": {"a": number, "b": str(number)}}
    if wide:
        pair = {
            "type": "record",
            "name": "pair",
            "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}],
        }
        fields += [{"name": "items", "type": {"type": "array", "items": "int"}}, {"name": "pair", "type": pair}]
    schema = {"type": "record", "name": "row", "fields": fields}
    with path.open("wb") as file:
        fastavro.writer(file, schema, rows, codec, sync_interval=400, sync_marker=b"0123456789abcdef")


FILES: dict[str, Callable[[Path], None]] = {
    "plain.arrow": lambda path: _arrow(path, None),
    "lz4.arrow": lambda path: _arrow(path, "lz4"),
    "zstd.arrow": lambda path: _arrow(path, "zstd"),
    "snappy.parquet": lambda path: _parquet(path, "snappy"),
    "none.parquet": lambda path: _parquet(path, "none"),
    "none.orc": lambda path: _orc(path, "uncompressed"),
    "zlib.orc": lambda path: _orc(path, "zlib"),
    "null.avro": lambda path: _avro(path, "null"),
    "deflate.avro": lambda path: _avro(path, "deflate"),
    "nested.avro": lambda path: _avro(path, "null", wide=True),
    "rows.csv": _csv,
    "rows.jsonl": _json,
    "rows.csv.gz": _gzip,
}


def damaged_file(number: int, folder: Path, change: Callable[..., bytes] = mutated) -> Path:
    """The file of case `number`: the formats take turns."""
    name = list(FILES)[number % len(FILES)]
    origin = folder / f"whole-{name}"
    if not origin.exists():
        FILES[name](origin)
    path = folder / name
    path.write_bytes(change(origin.read_bytes(), np.random.default_rng(number)))
    return path


def read_file(number: int, folder: Path) -> str:
    return _read(damaged_file(number, folder))


def read_flipped(number: int, folder: Path) -> str:
    return _read(damaged_file(number, folder, flipped))


def _read(path: Path) -> str:
    """Plan the source and read every partition, as ingest and transform do."""
    from tasks import engines
    from tasks.core.settings import Source
    from tasks.sources.planning import make_plan
    from tasks.sources.reader import read

    plan, engine = make_plan(Source(path=str(path))), engines.engine("pandas")
    rows = 0
    for partition in plan.partitions:
        found = read(plan, partition)
        found.validate(full=True)
        engine.from_arrow(found)
        rows += found.num_rows
    return f"read {rows} rows"


# jobs


JOB: dict[str, Any] = {
    "source": {"path": "in", "partition_size": "1MB", "null_values": ["", "NA"], "filter": "x > 0"},
    "features": [
        {"columns": ["x"], "ops": [{"op": "FillMedian"}, {"op": "Clip", "min_value": 0}, {"op": "Normalize"}]},
        {"columns": ["name"], "ops": [{"op": "Categorify", "freq_threshold": 2, "num_buckets": 3}]},
        {"columns": [["name", "kind"]], "ops": [{"op": "HashedCross", "num_buckets": 10}]},
        {"columns": ["x"], "ops": [{"op": "Lambda", "expression": "x * 2", "name": "twice"}], "keep": True},
    ],
    "label": ["flag"],
    "output": {"path": "out", "shuffle": "full", "seed": 0, "files": 2, "format": "parquet"},
    "cluster": {"kind": "cpu", "workers": 1, "threads_per_worker": 2},
    "run": {"retries": 1, "exchange": "auto"},
}
ODD: list[Any] = [
    None, True, -1, 0, 2**31, 2**63, 2**70, 1e308, float("inf"), float("nan"), "", " ", "\0", "x" * 10_000, "../..",
    "/", "*", "[", "a.b", "é", "\ud800", [], {}, [[]], {"": {}}, [None], {"op": None}, [[["x"]]], "1GB",
    "-1GB", "out", "in",
]  # fmt: skip


def changed_value(value: Any, random: np.random.Generator) -> Any:
    """The value with one to three of the values in it replaced, removed, doubled or wrapped."""
    found = json.loads(json.dumps(value))
    for _ in range(int(random.integers(1, 4))):
        _change_within(found, random)
    return found


def _change_within(value: Any, random: np.random.Generator) -> None:
    places: list[tuple[Any, Any]] = []
    todo = [value]
    while todo:
        here = todo.pop()
        keys = list(here) if isinstance(here, dict) else range(len(here)) if isinstance(here, list) else ()
        places += [(here, key) for key in keys]
        todo += [here[key] for key in keys if isinstance(here[key], (dict, list))]
    if not places:
        return
    holder, key = places[int(random.integers(len(places)))]
    what = int(random.integers(6))
    if what == 0:
        del holder[key]
    elif what == 1:
        holder[key] = [holder[key]]
    elif what == 2 and isinstance(holder, dict):
        holder[str(key) + "x"] = holder.pop(key)
    elif what == 3 and isinstance(holder, list):
        holder.append(json.loads(json.dumps(holder[key])))
    elif what == 4 and isinstance(holder[key], str):
        holder[key] = mutated(holder[key].encode(), random).decode(errors="replace")
    else:
        holder[key] = ODD[int(random.integers(len(ODD)))]


def read_job(number: int, folder: Path) -> str:
    """A job as values, or as the text of a file, bound to the columns of a source."""
    import yaml

    from flows.job.job import load_job, make_job
    from tasks.core.schema import Schema
    from tasks.graph.binding import Bound

    random = np.random.default_rng(number)
    if number % 2:
        job = make_job(changed_value(JOB, random))
    else:
        path = folder / "job.yaml"
        path.write_bytes(mutated(yaml.safe_dump(JOB).encode(), random))
        job = load_job(path)
    request = job.request("pandas")
    bound = Bound(request.final, Schema.from_arrow(_lists(table()).schema))
    return f"read {len(bound.output)} columns"


# folders


def _whole_output(folder: Path) -> Path:
    """An output with its fitted workflow, made once."""
    from flows.job.job import make_job
    from tests.faults.jobs import make_data
    from tests.stages import run_stages

    root = folder / "whole"
    if not (root / "out").exists():
        shutil.rmtree(root, ignore_errors=True)
        features = [
            {"columns": ["x"], "ops": [{"op": "FillMedian"}, {"op": "Normalize"}]},
            {"columns": ["name"], "ops": [{"op": "Categorify"}]},
            {"columns": [["name"]], "ops": [{"op": "TargetEncoding", "target": "label"}]},
            {"columns": ["x"], "ops": [{"op": "Rename", "postfix": "_2"}, {"op": "QuantileBucketize"}]},
        ]
        source = {"path": str(make_data(root / "in", files=1, rows=ROWS))}
        job = make_job({"source": source, "features": features, "label": ["label"],
                        "output": {"path": str(root / "out"), "files": 2}})  # fmt: skip
        run_stages(job.request("pandas"))
    return root / "out"


def sealed_again(name: str, data: Any) -> Any:
    """A manifest or workflow.json with the digest of what it now says: damage that is meant."""
    from tasks.storage.documents import seal

    return seal(data) if isinstance(data, dict) and "digest" in data else data


def read_folder(number: int, folder: Path) -> str:
    """An output of which one file is damaged: JSON by value (with right digests every second time) or by bytes."""
    import hashlib

    import pyarrow as pa
    from rich.console import Console

    from flows.commands import inspect
    from flows.commands.inspect import verify_output
    from tasks.manifest import Manifest
    from tasks.workflow import Workflow

    random, out = np.random.default_rng(number), folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(_whole_output(folder), out)
    names = ["_manifest.json", "_workflow/workflow.json", "_workflow/state.json"]
    if number % 5 == 4:
        names = sorted(str(p.relative_to(out)) for p in out.rglob("*") if p.is_file())
    path = out / names[int(random.integers(len(names)))]
    if path.suffix == ".json" and number % 5 != 4:
        data = changed_value(json.loads(path.read_bytes()), random)
        path.write_text(json.dumps(sealed_again(path.name, data) if number % 2 else data))
        if path.name == "state.json" and number % 2:
            workflow = json.loads((path.parent / "workflow.json").read_bytes())
            workflow["state"] = hashlib.sha256(path.read_bytes()).hexdigest()
            (path.parent / "workflow.json").write_text(json.dumps(sealed_again("workflow.json", workflow)))
    else:
        path.write_bytes(mutated(path.read_bytes(), random))
    from tasks.errors import RowmillError

    said: list[str] = []
    frame = pa.table({"x": [0.5, None], "name": ["n1", "n9999"], "row": [1, 2], "label": [True, False]})
    steps: list[Callable[[], Any]] = [
        lambda: said.extend(verify_output(out)[1]),
        lambda: Manifest.load(out).partitioning,
        lambda: inspect.show_folder(out, console=Console(file=open(os.devnull, "w"))),  # noqa: PTH123, SIM115
        lambda: Workflow.load(out).transform(frame),
        lambda: Workflow.load(out).embeddings(),
    ]
    for step in steps:
        try:
            step()
        except RowmillError as error:
            said.append(error.what)
    return f"refused: {said[0]}" if said else "read as if nothing were damaged"


KINDS: dict[str, Callable[[int, Path], str]] = {
    "files": read_file,
    "bits": read_flipped,
    "jobs": read_job,
    "folders": read_folder,
}


def work(kind: str, first: int, last: int, folder: str) -> None:
    from tasks.errors import RowmillError

    place = Path(folder)

    def late(*_: object) -> None:
        raise TimeoutError(f"no end after {SECONDS} s")

    import tasks.dataset  # noqa: F401

    if kind == "folders":
        _whole_output(place)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, late)
    for number in range(first, last):
        signal.alarm(SECONDS)
        try:
            text = KINDS[kind](number, place)
        except RowmillError as error:
            text = f"refused: {type(error).__name__}: {error.what}"
        except BaseException as error:
            line = traceback.extract_tb(error.__traceback__)[-1]
            text = f"raw: {type(error).__name__}: {error} ({Path(line.filename).name}:{line.lineno})"
        signal.alarm(0)
        print(f"{number}\t{' '.join(text.split())}", flush=True)
    shutil.rmtree(place / "work", ignore_errors=True)


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
