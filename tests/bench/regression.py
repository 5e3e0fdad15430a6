"""Whether rowmill has become slower: its costs next to those of other tools, compared with recorded ratios.

    python -m tests.bench.regression --folder /dev/shm/regression             # ten minutes on two cores
    python -m tests.bench.regression --folder /dev/shm/regression --record    # writes the ratios of this machine

Each case does the same work with rowmill and with a peer, in alternating pairs, after a pair that does not count:

    toy         the recipe on a Dask worker, as a flow runs it; Polars streaming
    criteo      the recipe on threads of this process, as `to_parquet` runs it; Polars streaming
    text        CSV files are read, and the recipe toy is learned from them; Polars streaming
    read back   an output is read in shuffled batches by `loader`; pyarrow reads the same files in order
    1 row, 1,000 rows   frames of criteo are transformed in process; the same columns in pandas

What counts is the CPU time of all processes of either side: on a machine that others use, wall times of pairs differ by
half. Others prolong CPU time, too, by a tenth or more, but never shorten it: a pair is the least of several turns of
either side. `--clock wall` compares seconds, and so finds work that waits, on a machine that nobody else uses. Of a
recipe its stages are compared, too. A measure is suspicious if the median ratio of its pairs is more than 10 % above
the recorded one. Its case is then measured again; if the measure is still suspicious, the program names it and ends
with status 1.

`--slow 'toy statistics=0.3'` adds 30 % to the work of rowmill in this measure, to see that it is found.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from flows.sample import criteo
from tasks.cluster.pool import Pool
from tests.bench import compare
from tests.bench.costs import WHOLE, describe, measure, measure_run, run_worker
from tests.bench.peers import quiet
from tests.bench.record import write_record
from tests.cost import Cost

RECORD = Path(__file__).parent / "results" / "regression-cpu.json"
WORSE = 1.1  # times the recorded ratio
STAGES = ("statistics", "transform", "shuffle_write")  # the ingest of these sources takes no time to speak of
FILES = 8
SETTINGS = ["output.files_per_worker=null", f"output.files={FILES}", "output.on_existing=replace", "run.report=false"]
BATCH_ROWS = 65_536
ENVIRONMENT = compare.own_environment()  # of peers: a cluster sets variables of its workers in this process, too
CALLS = {1: 5, 1_000: 5}  # rows of a frame: how often it is transformed in a turn

Costs = dict[str, Cost]  # by measure: the name of a case, or of a case and a stage
Ratios = dict[str, list[float]]  # by measure: one of each pair


@dataclass(frozen=True)
class Case:
    """The same work done by rowmill, which may have several measures, and by a peer; `turns` of both make a pair."""

    name: str
    ours: Callable[[], Costs]
    peer: Callable[[], Cost]
    turns: int = 3


@dataclass(frozen=True)
class Slowdown:
    """A measure that was above its limit twice."""

    measure: str
    recorded: float
    twice: list[list[float]]


# ---- recipes


def run_recipe(recipe: str, source: Path, target: Path, pool: Pool | None) -> Costs:
    """Run a recipe from ingest to the committed output, on the workers of a pool or on threads of this process."""
    from flows.job.job import load_job

    job = load_job(recipe, [*SETTINGS, f"source.path={source}", f"output.path={target}"])
    costs, _ = measure_run(job, pool)
    return {recipe: costs[WHOLE], **{f"{recipe} {stage}": costs[stage] for stage in STAGES}}


def run_polars(recipe: str, source: Path, target: Path) -> Cost:
    """Run a recipe's script, which measures itself, since imports do not count."""
    command = compare.script_command(compare.PEERS[recipe]["polars-streaming"], source, target, FILES)
    found = compare.measured(command, ENVIRONMENT)
    shutil.rmtree(target)
    return Cost(found["cpu_seconds"], found["seconds"])


# ---- text


def learn_from_text(source: Path) -> None:
    from flows.job.job import load_job
    from tasks.dataset import Dataset
    from tasks.workflow import Workflow

    Workflow(load_job("toy").graph()).fit(Dataset(f"{source}/*.csv"))


def learn_with_polars(source: Path) -> None:
    import polars as pl

    rows = pl.scan_csv(source / "*.csv")
    moments = [moment(column) for column in ("x", "y") for moment in (pl.mean, pl.std)]
    scaled = rows.select(expression.name.suffix(f"_{i}") for i, expression in enumerate(moments))
    counts = [rows.group_by(column).len().sort(["len", column], descending=[True, False]) for column in ("id", "name")]
    pl.collect_all([scaled, *counts], engine="streaming")


# ---- reading back


def read_batches(output: Path) -> None:
    from tasks.loading import loader

    for _ in loader(str(output), batch_size=BATCH_ROWS):
        pass


def read_with_pyarrow(output: Path) -> None:
    files = sorted(map(str, output.glob("part-*.parquet")))
    for _ in ds.dataset(files).to_batches(batch_size=BATCH_ROWS):
        pass


# ---- serving


class PandasCriteo:
    """The recipe criteo for frames, as somebody writes it who has pandas."""

    def __init__(self, training: pd.DataFrame) -> None:
        logs = self._scale(training)
        self._mean = logs.mean()
        self._std = logs.std()
        self._values = {}
        for column in criteo.CARDINALITY:
            counts = training[column].value_counts()
            self._values[column] = counts.index[counts >= 15]

    def _scale(self, frame: pd.DataFrame) -> pd.DataFrame:
        return np.log1p(frame[list(criteo.COUNTS)].fillna(0).clip(lower=0))

    def transform(self, frame: pd.DataFrame) -> pd.DataFrame:
        scaled = (self._scale(frame) - self._mean) / self._std
        ids = {column: values.get_indexer(frame[column]) + 1 for column, values in self._values.items()}
        return scaled.assign(**ids)


def make_serving_cases(source: Path) -> Iterator[Case]:
    """Learn criteo from a source; transform frames of one row and of a thousand."""
    from flows.job.job import load_job
    from tasks.dataset import Dataset
    from tasks.workflow import Workflow

    workflow = Workflow(load_job("criteo").graph()).fit(Dataset(str(source)))
    rows = pq.read_table(source).select(list(workflow.input_schema))
    theirs = PandasCriteo(rows.to_pandas())
    for count, calls in CALLS.items():
        name = f"{count:,} row{'s' * (count > 1)}"
        frame = rows.slice(0, count).to_pandas()
        ours = measure_calls(workflow.transform, frame, calls)
        peer = measure_calls(theirs.transform, frame, calls)
        yield Case(name, lambda name=name, ours=ours: {name: ours()}, peer, turns=16)


def measure_calls(transform: Callable[[Any], Any], frame: pd.DataFrame, calls: int) -> Callable[[], Cost]:
    """Make the measurement of so many calls with one frame."""

    def call() -> None:
        for _ in range(calls):
            transform(frame)

    return lambda: measure(call)


# ---- pairs


def make_cases(folder: Path, rows: int, pool: Pool) -> Iterator[Case]:
    """Make the sources and what the cases need before they are measured, one case after the other."""
    from flows.sample import make_sample

    toy, criteo, text, frames = (folder / name for name in ("toy", "criteo", "text", "frames"))
    make_sample("toy", toy, rows, files=FILES)
    make_sample("criteo", criteo, rows // 8, files=FILES)
    make_sample("toy", text, rows // 2, files=FILES, format="csv")
    make_sample("criteo", frames, 50_000)
    ours, theirs = folder / "ours", folder / "theirs"
    yield Case("toy", lambda: run_recipe("toy", toy, ours, pool), lambda: run_polars("toy", toy, theirs))
    if not ours.exists():
        run_recipe("toy", toy, ours, pool)
    yield Case(
        "read back",
        lambda: {"read back": measure(lambda: read_batches(ours))},
        lambda: measure(lambda: read_with_pyarrow(ours)),
        turns=6,
    )
    shutil.rmtree(ours)
    yield Case("criteo", lambda: run_recipe("criteo", criteo, ours, None), lambda: run_polars("criteo", criteo, theirs))
    yield Case(
        "text",
        lambda: {"text": measure(lambda: learn_from_text(text))},
        lambda: measure(lambda: learn_with_polars(text)),
    )
    yield from make_serving_cases(frames)


def slow_down(case: Case, name: str, share: float) -> Case:
    """Add work to a measure of rowmill, as a slower product would: a share of what it costs."""

    def work_longer() -> Costs:
        costs = case.ours()
        added = measure(lambda: burn(share * costs[name].cpu))
        for longer in {name, case.name}:
            costs[longer] = Cost(costs[longer].cpu + added.cpu, costs[longer].wall + added.wall)
        return costs

    return replace(case, ours=work_longer)


def burn(seconds: float) -> None:
    """Use a core for so many CPU seconds."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(1000))


def measure_pairs(case: Case, pairs: int, clock: str, warm: bool = False) -> tuple[Ratios, list[dict[str, Any]]]:
    """Measure pairs; the ratios, and the costs of each pair. Unless the case is warm, a first turn does not count."""
    if not warm:
        take_turn(case, 0)
    ratios: Ratios = {}
    costs = []
    for _ in range(pairs):
        turns = [take_turn(case, number) for number in range(case.turns)]
        ours = {name: find_least([of_ours[name] for of_ours, _ in turns]) for name in turns[0][0]}
        peer = find_least([of_peer for _, of_peer in turns])
        costs.append({"ours": {name: describe(cost) for name, cost in ours.items()}, "peer": describe(peer)})
        for name, cost in ours.items():
            ratios.setdefault(name, []).append(round(getattr(cost, clock) / getattr(peer, clock), 3))
    return ratios, costs


def take_turn(case: Case, number: int) -> tuple[Costs, Cost]:
    """Measure rowmill and the peer, each turn in the other order than the one before."""
    if number % 2:
        peer = case.peer()
        return case.ours(), peer
    return case.ours(), case.peer()


def find_least(costs: Sequence[Cost]) -> Cost:
    return Cost(min(cost.cpu for cost in costs), min(cost.wall for cost in costs))


def find_suspicious(ratios: Ratios, recorded: dict[str, float]) -> list[str]:
    """The measures that are more than 10 % above what is recorded; a measure without a record is not."""
    return [name for name, of in ratios.items() if statistics.median(of) > WORSE * recorded.get(name, np.inf)]


def check_case(case: Case, pairs: int, clock: str, recorded: dict[str, float]) -> list[Slowdown]:
    """Measure a case, again if a measure is suspicious; the measures that are suspicious twice."""
    first, _ = measure_pairs(case, pairs, clock)
    print_ratios(first, recorded)
    suspicious = find_suspicious(first, recorded)
    if not suspicious:
        return []
    print(f"again, for {', '.join(suspicious)}:", flush=True)
    second, _ = measure_pairs(case, pairs, clock, warm=True)
    print_ratios(second, recorded)
    twice = [name for name in find_suspicious(second, recorded) if name in suspicious]
    return [Slowdown(name, recorded[name], [first[name], second[name]]) for name in twice]


def print_ratios(ratios: Ratios, recorded: dict[str, float]) -> None:
    for name, of in ratios.items():
        median = statistics.median(of)
        change = f"{median / recorded[name] - 1:+7.1%}" if name in recorded else "not recorded"
        print(f"{name:22} {median:7.3f}  {change}   {' '.join(f'{ratio:.3f}' for ratio in of)}", flush=True)


def explain(slowdown: Slowdown) -> str:
    first, second = ([f"{ratio:.3f}" for ratio in ratios] for ratios in slowdown.twice)
    medians = " and ".join(f"{statistics.median(ratios):.3f}" for ratios in slowdown.twice)
    return (
        f"{slowdown.measure} is slower: {medians} times its peer, {slowdown.recorded:.3f} recorded "
        f"({', '.join(first)}; {', '.join(second)})"
    )


def parse_slowdown(text: str) -> tuple[str, float]:
    name, _, share = text.partition("=")
    return name, float(share)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where data are made and outputs lie; a tmpfs")
    parser.add_argument("--rows", type=int, default=4_000_000, help="of toy; criteo and text have fewer")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--cases", nargs="*", help="names of cases; all unless given")
    parser.add_argument("--clock", choices=["cpu", "wall"], default="cpu")
    parser.add_argument("--slow", type=parse_slowdown, metavar="MEASURE=SHARE", help="a slowdown that is to be found")
    parser.add_argument("--record", action="store_true", help="write the record: each case is measured twice")
    parser.add_argument("--against", "--out", type=Path, default=RECORD, help="the record")
    parser.add_argument("--commit", help="with --record: what is measured")
    args = parser.parse_args(arguments)
    recorded = {} if args.record else json.loads(args.against.read_text())[args.clock]
    slowdowns: list[Slowdown] = []
    measured: dict[str, list[dict[str, Any]]] = {}
    start = time.perf_counter()
    window = quiet.Window()
    with run_worker() as pool:
        for case in make_cases(args.folder, args.rows, pool):
            if args.cases and case.name not in args.cases:
                continue
            if args.slow and args.slow[0].startswith(case.name):
                case = slow_down(case, *args.slow)
            if args.record:
                ratios, measured[case.name] = measure_pairs(case, 2 * args.pairs, args.clock)
                print_ratios(ratios, recorded)
            else:
                slowdowns += check_case(case, args.pairs, args.clock, recorded)
        others = round(window.others(), 3)
    seconds = round(time.perf_counter() - start)
    print(f"{seconds} s, in which other programs used {others:.0%} of the machine")
    if args.record:
        record = {
            "what": __doc__.partition("\n")[0] if __doc__ else "",
            "command": " ".join(["python -m tests.bench.regression", *(arguments or sys.argv[1:])]),
            "commit": args.commit,
            "date": time.strftime("%Y-%m-%d"),
            "machine": compare.machine(),
            "seconds": seconds,
            "others_cpu_share": others,
            "cpu": median_ratios(measured, "cpu"),
            "wall": median_ratios(measured, "wall"),
            "pairs": measured,
        }
        write_record(record, args.against)
    for slowdown in slowdowns:
        print(explain(slowdown))
    if slowdowns and others > compare.BUSY:
        print("other programs may be the cause: measure again on a quiet machine")
    sys.exit(1 if slowdowns else 0)


def median_ratios(measured: dict[str, list[dict[str, Any]]], clock: str) -> dict[str, float]:
    """The median ratio of each measure over the pairs of its case."""
    medians = {}
    for pairs in measured.values():
        for name in pairs[0]["ours"]:
            ratios = [pair["ours"][name][clock] / pair["peer"][clock] for pair in pairs]
            medians[name] = round(statistics.median(ratios), 3)
    return medians


if __name__ == "__main__":
    main()
