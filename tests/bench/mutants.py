"""Would the tests notice? Draws changes of single expressions in lines that tests cover, and runs those tests on each.

    pytest -p tests.bench.contexts && coverage combine     # which test covers which line
    python -m tests.bench.mutants draw .coverage --seed 39 --count 200 --out mutants.json
    python -m tests.bench.mutants run .coverage mutants.json --workers 2 --out result.json

The changes are those of cosmic-ray (pip install cosmic-ray): another operator, comparison or number, `or` for `and`, a
loop without a turn, a missing decorator. One list serves two versions of the tests. A mutant is killed if a test fails;
it survives if all tests that cover its line pass. A mutant whose tests do not end is counted as a time-out.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOMS = ("tasks/ops", "tasks/learning", "tasks/graph", "tasks/shuffle", "tasks/storage", "tasks/stages",
         "tasks/sources", "tasks/gate", "tasks/job", "flows/job", "flows/run")  # fmt: skip
# What tests import and no mutant changes is loaded once, and inherited by the process of each mutant. Prefect reads its
# settings when it is imported: tests/conftest.py sets them first.
LOADED = ("numpy", "pandas", "pyarrow.compute", "pyarrow.parquet", "pyarrow.dataset", "pyarrow.csv", "dask",
          "distributed", "hypothesis", "scipy.stats", "pydantic", "typer", "yaml", "fsspec", "pytest")  # fmt: skip
# A mutant whose tests take so many times as long as without it, and a minute more, does not end.
SLOWER = 5
START_SECONDS = 60
BROKEN = 70  # exit status of a process whose tests did not begin


@dataclass(frozen=True)
class Mutant:
    """One change of one expression: that of the `occurrence`-th place in the file to which an operator applies."""

    file: str
    line: int
    operator: str
    occurrence: int
    change: str  # the lines that differ, for people


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant, the test that killed it, and the seconds of the last run of its tests."""

    verdict: str
    by: str
    seconds: float


def annotation_lines(source: str) -> set[tuple[int, int]]:
    """(line, column) of every character of an annotation: a change there changes nothing."""
    places: set[tuple[int, int]] = set()
    for node in ast.walk(ast.parse(source)):
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if annotation is None:
                continue
            for line in range(annotation.lineno, annotation.end_lineno + 1):
                begin = annotation.col_offset if line == annotation.lineno else 0
                end = annotation.end_col_offset if line == annotation.end_lineno else 400
                places.update((line, column) for column in range(begin, end))
    return places


def covered_lines(coverage_file: str, files: Container[str] | None = None) -> dict[str, dict[int, list[str]]]:
    """File -> line -> node ids of the tests that run it, but those that only import it; of `files`, or of all files of
    the rooms."""
    from coverage import CoverageData

    data = CoverageData(coverage_file)
    data.read()
    root = f"{Path.cwd()}{os.sep}"
    lines: dict[str, dict[int, list[str]]] = {}
    for path in data.measured_files():
        file = path.removeprefix(root)
        wanted = file.startswith(tuple(f"{room}/" for room in ROOMS)) if files is None else file in files
        if wanted:
            contexts = data.contexts_by_lineno(path)
            lines[file] = {line: sorted(filter(None, tests)) for line, tests in contexts.items() if any(tests)}
    return lines


def possible_mutants(file: str) -> Iterator[tuple[int, str, int]]:
    """(line, operator, occurrence) of every change of a file."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    source = Path(file).read_text()
    annotations = annotation_lines(source)
    nodes = list(ast_nodes(get_ast(source)))
    for name in operator_names():
        operator = get_operator(name)
        if operator.arguments():
            continue
        instance = operator()
        positions = (start for node in nodes for start, _ in instance.mutation_positions(node))
        for occurrence, start in enumerate(positions):
            if start not in annotations:
                yield start[0], name, occurrence


def mutate(file: str, operator: str, occurrence: int) -> tuple[str, str]:
    """The text of a file before and after a change."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    source = Path(file).read_text()
    return source, mutate_code(source, get_operator(operator)(), occurrence)


def draw(coverage_file: str, seed: int, count: int) -> list[Mutant]:
    """Mutants of `count` lines, each covered line as likely as any other that a change applies to."""
    places = defaultdict(list)
    for file, lines in sorted(covered_lines(coverage_file).items()):
        for line, operator, occurrence in possible_mutants(file):
            if line in lines:
                places[file, line].append((operator, occurrence))
    draws = random.Random(seed)
    mutants = []
    for file, line in draws.sample(sorted(places), count):
        operator, occurrence = draws.choice(places[file, line])
        before, after = mutate(file, operator, occurrence)
        difference = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
        changed = [text for text in difference if not text.startswith(("---", "+++", "@@"))]
        mutants.append(Mutant(file, line, operator, occurrence, "\n".join(changed)))
    return sorted(mutants, key=lambda mutant: (mutant.file, mutant.line))


class OnlyThese:
    """A plugin of pytest: of all collected tests those of one mutant, in their order."""

    def __init__(self, names: list[str]) -> None:
        self.order = {name: number for number, name in enumerate(names)}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        chosen = [item for item in items if item.nodeid in self.order]
        items[:] = sorted(chosen, key=lambda item: self.order[item.nodeid])


def run_tests(tree: Path, names: list[str], log: Path) -> int:
    """The exit status of pytest for these tests, in this process, which is a fork that ends with it."""
    os.setsid()
    with log.open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]  # of this checkout: the tree has its own
    sys.path[:] = [str(tree), *(path for path in sys.path if path not in ("", str(Path.cwd())))]
    os.chdir(tree)
    import pytest

    files = sorted({name.partition("::")[0] for name in names})
    # Hypothesis, which is loaded already, is a plugin of pytest: its modules are not rewritten.
    without_warning = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    options = ["-n", "0", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:benchmark"]
    arguments = [*without_warning, *options, "-m", "system or not system"]
    return int(pytest.main([*arguments, *files], plugins=[OnlyThese(names)]))


class Tree:
    """A copy of the checkout in which one mutant after the other stands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "tree"
        self.log = folder / "log.txt"
        ignored = shutil.ignore_patterns(".git", ".venv", ".gpu", ".pytest_cache", ".coverage*")
        shutil.copytree(Path.cwd(), self.folder, ignore=ignored)
        subprocess.run([sys.executable, "-m", "compileall", "-q", "flows", "infra", "tasks", "tests"], cwd=self.folder)

    def run(self, mutant: Mutant | None, names: list[str], seconds: float) -> tuple[str, float]:
        """What became of a mutant, or of the tests without one, and the seconds that this took."""
        with self.changed(mutant):
            began = time.monotonic()
            child = os.fork()
            if not child:
                status = BROKEN
                try:
                    status = run_tests(self.folder, names, self.log)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(status)  # what this process would tidy up is its parent's
            status = wait(child, seconds)
            took = time.monotonic() - began
        if status is None:
            return "timeout", took
        return {0: "survived", 5: "no test", BROKEN: "broken"}.get(status, "killed"), took

    def failed_test(self) -> str:
        """The node id of the test that failed in the last run; empty where none did."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        failed = next((line for line in lines if line.startswith(("FAILED ", "ERROR "))), "")
        return failed.partition(" ")[2].partition(" - ")[0]

    def judge(self, mutant: Mutant, names: list[str], seconds: float) -> Verdict:
        """Run the tests of a mutant. A test that fails without the mutant, too, kills nothing."""
        while names:
            verdict, took = self.run(mutant, names, seconds)
            by = self.failed_test() if verdict == "killed" else ""
            if by not in names or self.run(None, [by], seconds)[0] == "survived":
                return Verdict(verdict, by, took)
            names = [name for name in names if name != by]
        return Verdict("no test", "", 0.0)

    @contextlib.contextmanager
    def changed(self, mutant: Mutant | None) -> Iterator[None]:
        if mutant is None:
            yield
            return
        path = self.folder / mutant.file
        before, after = mutate(mutant.file, mutant.operator, mutant.occurrence)
        compiled = path.parent / "__pycache__"
        try:
            path.write_text(after)
            forget(compiled, path.stem)
            yield
        finally:
            path.write_text(before)
            forget(compiled, path.stem)


def forget(compiled: Path, module: str) -> None:
    """Remove the bytecode of a module: it is told from another by its size and second alone."""
    for path in compiled.glob(f"{module}.*.pyc"):
        path.unlink()


def wait(child: int, seconds: float) -> int | None:
    """The exit status of a process; None after so many seconds, which it and its children do not outlive."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def run_share(options: argparse.Namespace) -> None:
    """Run every n-th mutant that has no result yet, one after the other; each result is a line of JSON."""
    for name in LOADED:
        importlib.import_module(name)
    number, workers = map(int, options.share.split("/"))
    done = {key_of(row) for row in read_rows(Path(options.out))}
    mutants = [Mutant(**row) for row in json.loads(Path(options.mutants).read_text())[number::workers]]
    costs = {}
    if options.cost:
        costs = {row["name"]: row["cpu"] for row in json.loads(Path(options.cost).read_text())["tests"]}
    lines = covered_lines(options.coverage, {mutant.file for mutant in mutants})
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, Path(options.out).open("a") as results:
        tree = Tree(Path(folder))
        for mutant in mutants:
            if key_of(asdict(mutant)) in done:
                continue
            names = lines.get(mutant.file, {}).get(mutant.line, [])
            names.sort(key=lambda name: costs.get(name, 1.0))  # the cheapest first: most mutants end there
            expected = sum(costs.get(name, 1.0) for name in names)
            verdict = tree.judge(mutant, names, START_SECONDS + SLOWER * expected)
            row = asdict(mutant) | asdict(verdict) | {"tests": len(names)}
            print(json.dumps(row), file=results, flush=True)


def run_shares(options: argparse.Namespace) -> None:
    """Run all mutants in processes of this program; what they had done when they were stopped is not done again."""
    parts = [f"{options.out}.{number}" for number in range(options.workers)]
    cost = ["--cost", options.cost] if options.cost else []

    def work(number: int) -> None:
        command = [sys.executable, "-m", "tests.bench.mutants", "run", options.coverage, options.mutants, *cost]
        share = ["--share", f"{number}/{options.workers}", "--out", parts[number]]
        subprocess.run([*command, *share], check=True)

    with ThreadPoolExecutor(options.workers) as pool:
        list(pool.map(work, range(options.workers)))
    rows = sorted((row for part in parts for row in read_rows(Path(part))), key=key_of)
    verdicts = Counter(row["verdict"] for row in rows)
    found = {"command": " ".join(sys.argv), "verdicts": verdicts, "mutants": rows}
    Path(options.out).write_text(json.dumps(found, indent=1) + "\n")
    print(dict(verdicts))


def key_of(row: dict[str, Any]) -> tuple[str, int, str, int]:
    return row["file"], row["line"], row["operator"], row["occurrence"]


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw", help="draw mutants of covered lines")
    drawing.add_argument("coverage", help="a data file of coverage.py with a context for each test")
    drawing.add_argument("--seed", type=int, default=39)
    drawing.add_argument("--count", type=int, default=200)
    drawing.add_argument("--out", required=True)
    running = commands.add_parser("run", help="run the tests of each mutant")
    running.add_argument("coverage", help="a data file of coverage.py with a context for each test")
    running.add_argument("mutants", help="what `draw` wrote")
    running.add_argument("--cost", help="what each test costs, as pytest --cost writes it")
    running.add_argument("--workers", type=int, default=1)
    running.add_argument("--share", help=argparse.SUPPRESS)  # NUMBER/WORKERS, of a process that this program starts
    running.add_argument("--out", required=True)
    options = parser.parse_args()
    if options.command == "draw":
        mutants = draw(options.coverage, options.seed, options.count)
        Path(options.out).write_text(json.dumps([asdict(mutant) for mutant in mutants], indent=1) + "\n")
    elif options.share:
        run_share(options)
    else:
        run_shares(options)


if __name__ == "__main__":
    main()
