"""How the cost of a run grows with rows, columns, partitions, files and the rows of one key.

    python -m tests.bench.scaling --folder /dev/shm/scaling --out scaling-cpu.json
    python -m tests.bench.scaling --folder /dev/shm/scaling --base 400MB --repeats 3     # with less memory

Each series is one job on sources that differ in one thing; its first point is what the others are compared with:

    rows         the recipe toy: x 1, 2, 4, 8
    columns      x 1, 4, 16, 64 columns, in as many fewer rows
    partitions   x 100, of 65,536 rows
    files        10,000 small files, next to a tenth of them
    folders      32,000 files in 4,000 folders of `output.partition_on`, next to an eighth, with as many rows in each
    sort by, folders of, group by, statistics of a key    one key has half of all rows, next to a hundredth

A point is the CPU time of all processes by decoded byte, since other programs disturb wall time more; `--clock wall`
compares seconds. What no rows cost is subtracted: the time of the series' job on a thousand rows. All points of a
series run in turn on one worker, as a flow starts it, after each of them has run once without being counted. Points
more than 20 % above the first are marked.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from dask.utils import parse_bytes

from tasks.cluster.pool import Pool
from tests.bench import compare
from tests.bench.costs import WHOLE, describe, measure_run, run_worker
from tests.bench.record import write_record
from tests.cost import Cost

TOLERANCE = 1.2  # times the cost by byte of the first point
FEW_ROWS = 1_000
GROUP_ROWS = 65_536  # of a row group and the smallest partition: blocks are not cut below
PAIR_BYTES = 16  # of a row of an id and a number
KEY_BYTES = 24  # of a row of a key and two numbers
TOY_BYTES = 37  # of a row of toy
IDS = 1_000  # different values of a column of ids
KEYS = 100  # of the series with a key
SMALL_FILES = 10_000
FOLDERS = 4_000
FILES = 8

Sections = dict[str, Any]  # of a job, without source.path and output.path


@dataclass(frozen=True)
class Point:
    """A job, and what writes its source into a folder."""

    name: str
    job: Sections
    write: Callable[[Path], None]


@dataclass(frozen=True)
class Series:
    """Points that should cost the same by byte. `write_few` writes a thousand rows, for what no rows cost."""

    name: str
    points: Sequence[Point]
    write_few: Callable[[Path], None]


# ---- sources


def cut_files(folder: Path, rows: int, files: int) -> Iterator[tuple[Path, int]]:
    """The files of a folder, with their rows."""
    folder.mkdir()
    for number in range(files):
        count = (number + 1) * rows // files - number * rows // files
        yield folder / f"part-{number:05d}.parquet", count


def write_pairs(folder: Path, rows: int, files: int = FILES, pairs: int = 1) -> None:
    """Write pairs of columns, an id and a number each."""
    draws = np.random.default_rng(0)
    for path, count in cut_files(folder, rows, files):
        columns: dict[str, Any] = {}
        for number in range(pairs):
            columns[f"id{number}"] = draws.integers(0, IDS, count)
            columns[f"x{number}"] = draws.random(count)
        pq.write_table(pa.table(columns), path, row_group_size=GROUP_ROWS)


def write_keys(folder: Path, rows: int, keys: int, half: bool = False) -> None:
    """Write a key and two numbers; one key has half of all rows, or all keys have about as many."""
    draws = np.random.default_rng(0)
    for path, count in cut_files(folder, rows, FILES):
        key = draws.integers(0, keys, count)
        if half:
            key[draws.random(count) < 0.5] = 0
        columns = {"key": key, "x": draws.random(count), "y": draws.random(count)}
        pq.write_table(pa.table(columns), path, row_group_size=GROUP_ROWS)


def write_toy(folder: Path, rows: int, files: int) -> None:
    from flows.sample import make_sample

    make_sample("toy", folder, rows, files=files)


def link_toy(folder: Path, largest: int, files: int, share: int) -> None:
    """Link the first files of the largest sample, which is made once: `share` of 8 equal parts."""
    whole = folder.with_name("toy")
    if not whole.exists():
        write_toy(whole, largest, 8 * files)
    folder.mkdir()
    for path in sorted(whole.glob("part-*.parquet"))[: share * files]:
        (folder / path.name).hardlink_to(path)


# ---- series


def encode_and_scale(ids: Sequence[str], numbers: Sequence[str]) -> list[dict[str, Any]]:
    """The features of pairs."""
    return [
        {"columns": [*ids], "ops": [{"op": "Categorify"}]},
        {"columns": [*numbers], "ops": [{"op": "FillMissing"}, {"op": "Normalize"}]},
    ]


def job_of_pairs(pairs: int = 1, **source: Any) -> Sections:
    ids = [f"id{number}" for number in range(pairs)]
    numbers = [f"x{number}" for number in range(pairs)]
    return {"source": source, "features": encode_and_scale(ids, numbers), "output": {"files": FILES}}


def vary_rows(base: int) -> Series:
    rows = base // TOY_BYTES
    files = max(1, rows // 2_000_000)
    shares = (1, 2, 4, 8)
    job = {"recipe": "toy", "output": {"files_per_worker": None}}
    points = [
        Point(f"x {share}", job, partial(link_toy, largest=8 * rows, files=files, share=share)) for share in shares
    ]
    return Series("rows", points, partial(write_toy, rows=FEW_ROWS, files=1))


def vary_columns(base: int) -> Series:
    """Four columns of 8 bytes, and up to 256 in as many fewer rows."""
    points = []
    for times in (1, 4, 16, 64):
        rows = base // (2 * PAIR_BYTES * times)
        write = partial(write_pairs, rows=rows, pairs=2 * times)
        points.append(Point(f"x {times}", job_of_pairs(2 * times), write))
    return Series("columns", points, partial(write_pairs, rows=FEW_ROWS, pairs=2))


def vary_partitions(base: int) -> Series:
    """Partitions of one row group, and of a hundred."""
    write = partial(write_pairs, rows=base // PAIR_BYTES)
    smallest = GROUP_ROWS * PAIR_BYTES
    points = [Point(f"x {times}", job_of_pairs(partition_size=100 // times * smallest), write) for times in (1, 100)]
    return Series("partitions", points, partial(write_pairs, rows=FEW_ROWS))


def vary_files(base: int) -> Series:
    rows = base // PAIR_BYTES
    points = []
    for files in (SMALL_FILES // 10, SMALL_FILES):
        write = partial(write_pairs, rows=rows * files // SMALL_FILES, files=files)
        points.append(Point(f"{files:,}", job_of_pairs(), write))
    return Series("files", points, partial(write_pairs, rows=FEW_ROWS))


def vary_folders(base: int) -> Series:
    rows = base // KEY_BYTES
    job = job_of_keys(output={"partition_on": ["key"], "files": FILES})
    points = []
    for share in (1, 8):
        write = partial(write_keys, rows=rows * share // 8, keys=FOLDERS * share // 8)
        points.append(Point(f"{FILES * FOLDERS * share // 8:,} files", job, write))
    return Series("folders", points, partial(write_keys, rows=FEW_ROWS, keys=1))


def job_of_keys(**sections: Any) -> Sections:
    features = [{"columns": ["key"]}, *encode_and_scale([], ["x", "y"])[1:]]
    return {"features": features, "output": {"files": FILES}} | sections


SKEWED = {
    "sort by a key": job_of_keys(output={"shuffle": "key", "keys": ["key"], "sort_by": ["x"], "files": FILES}),
    "folders of a key": job_of_keys(output={"partition_on": ["key"], "files": FILES}),
    "group by a key": job_of_keys(
        source={"keys": ["key"], "sort_by": ["x"]},
        features=[
            {"columns": ["key"]},
            {"columns": ["y"], "ops": [{"op": "DifferenceLag", "partition_cols": "key", "shift": 1}]},
        ],
    ),
    "statistics of a key": job_of_keys(
        features=[
            {"columns": ["key"], "ops": [{"op": "TargetEncoding", "target": "y", "kfold": 3}]},
            {"columns": ["key"], "ops": [{"op": "JoinGroupby", "cont_cols": ["x"], "stats": ["count", "mean", "std"]}]},
            {"columns": ["key"], "ops": [{"op": "Categorify"}]},
        ],
    ),
}


def skew(name: str, base: int) -> Series:
    """One key with half of all rows, next to keys of the same size."""
    rows = base // KEY_BYTES
    points = [
        Point(which, SKEWED[name], partial(write_keys, rows=rows, keys=KEYS, half=which == "half"))
        for which in ("even", "half")
    ]
    return Series(name, points, partial(write_keys, rows=FEW_ROWS, keys=KEYS))


SERIES: dict[str, Callable[[int], Series]] = {
    "rows": vary_rows,
    "columns": vary_columns,
    "partitions": vary_partitions,
    "files": vary_files,
    "folders": vary_folders,
    **{name: partial(skew, name) for name in SKEWED},
}


# ---- measurements


@dataclass(frozen=True)
class Run:
    """A run of a point."""

    costs: dict[str, Cost]
    nbytes: int
    rows: int
    partitions: int


def run_job(job: Sections, source: Path, target: Path, pool: Pool) -> Run:
    """Run a job once and remove its output."""
    from flows.job.job import make_job, overlay_job

    where = {"source": {"path": str(source)}, "output": {"path": str(target)}, "run": {"report": False}}
    costs, (ingest, *_) = measure_run(make_job(overlay_job(job, where)), pool)
    shutil.rmtree(target)
    return Run(costs, ingest.nbytes, ingest.rows, ingest.partitions)


def measure_series(series: Series, folder: Path, repeats: int, clock: str, pool: Pool) -> dict[str, Any]:
    """Run all points of a series in turn; describe them."""
    folder.mkdir()
    few, target = folder / "few", folder / "out"
    series.write_few(few)
    sources = [folder / f"source-{number}" for number in range(len(series.points))]
    for point, source in zip(series.points, sources, strict=True):
        point.write(source)
    runs: dict[str, list[Run]] = {point.name: [] for point in series.points}
    without_rows: list[Run] = []
    for turn in range(repeats + 1):
        run = run_job(series.points[0].job, few, target, pool)
        without_rows += [run] if turn else []
        for point, source in zip(series.points, sources, strict=True):
            run = run_job(point.job, source, target, pool)
            runs[point.name] += [run] if turn else []
    shutil.rmtree(folder)
    described = describe_series(runs, without_rows, clock)
    for described_point in described["points"]:
        print(line_of(series.name, described_point), flush=True)
    return described


def describe_series(runs: Mapping[str, Sequence[Run]], without_rows: Sequence[Run], clock: str) -> dict[str, Any]:
    """The cost by byte of each point, without what no rows cost, and that of the first point next to it."""
    fixed = take_medians(without_rows, clock)
    points: list[dict[str, Any]] = []
    for name, of_point in runs.items():
        medians = take_medians(of_point, clock)
        nanoseconds = (medians[WHOLE] - fixed[WHOLE]) / of_point[0].nbytes * 1e9
        first = points[0]["nanoseconds_per_byte"] if points else nanoseconds
        point = {
            "name": name,
            "bytes": of_point[0].nbytes,
            "rows": of_point[0].rows,
            "partitions": of_point[0].partitions,
            "seconds": medians,
            "nanoseconds_per_byte": nanoseconds,
            "of_the_first": round(nanoseconds / first, 2),
            "runs": [{stage: describe(cost) for stage, cost in run.costs.items()} for run in of_point],
        }
        points.append(point)
    return {"without_rows": fixed, "points": points}


def take_medians(runs: Sequence[Run], clock: str) -> dict[str, float]:
    """The median of each stage and of the whole run."""
    costs = [run.costs for run in runs]
    return {stage: round(statistics.median(getattr(of[stage], clock) for of in costs), 3) for stage in costs[0]}


def line_of(series: str, point: Mapping[str, Any]) -> str:
    """A point as a row of the table in README.md."""
    growth = f"{point['of_the_first']:.2f}" + (" !" if point["of_the_first"] > TOLERANCE else "")
    figures = f"{point['bytes'] / 1e6:,.0f} | {point['partitions']:,} | {point['seconds'][WHOLE]:.2f}"
    return f"| {series} {point['name']} | {figures} | {point['nanoseconds_per_byte']:.2f} | {growth} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where data are made and outputs lie; a tmpfs")
    parser.add_argument("--base", type=parse_bytes, default="1GB", help="decoded bytes of the first point of rows")
    parser.add_argument("--series", nargs="*", choices=[*SERIES], default=[*SERIES])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clock", choices=["cpu", "wall"], default="cpu")
    parser.add_argument("--commit", help="for the record: what is measured")
    parser.add_argument("--out", type=Path, help="the record; it gets a series as soon as it is done")
    args = parser.parse_args(arguments)
    args.folder.mkdir(parents=True, exist_ok=True)
    record = {
        "what": __doc__.partition("\n")[0] if __doc__ else "",
        "command": " ".join(["python -m tests.bench.scaling", *(arguments or sys.argv[1:])]),
        "commit": args.commit,
        "date": time.strftime("%Y-%m-%d"),
        "machine": compare.machine(),
        "clock": args.clock,
        "series": {},
    }
    with run_worker() as pool:
        for name in args.series:
            series = SERIES[name](args.base)
            measured = measure_series(series, args.folder / name, args.repeats, args.clock, pool)
            record["series"] |= {name: measured}
            if args.out:
                write_record(record, args.out)


if __name__ == "__main__":
    main()
