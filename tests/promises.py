"""What the documents promise, and the tests that keep it: `python -m tests.promises [WORDS]` lists them.

A test names the words that it makes true with `@pytest.mark.promise("words")`; one promise of each section of the
manuals names the section too: `@pytest.mark.promise("words", "flows/NIGHTS.md#dates-in-paths")`. A test with the mark
`nightly` runs too rarely to keep a promise.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Promise(NamedTuple):
    words: str
    section: str  # DOCUMENT#ANCHOR, or nothing
    test: str


def promises() -> list[Promise]:
    """Read the marks of all tests, without importing them."""
    return [promise for path in sorted((ROOT / "tests").rglob("test_*.py")) for promise in promises_of(path)]


def promises_of(path: Path) -> Iterator[Promise]:
    """Read the marks of one module of tests; those of its `pytestmark` belong to the module."""
    yield from promises_in(ast.parse(path.read_text()).body, str(path.relative_to(ROOT)))


def promises_in(body: list[ast.stmt], place: str) -> Iterator[Promise]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            if any(ast.unparse(mark) == "pytest.mark.nightly" for mark in node.decorator_list):
                continue
            yield from marks_of(node.decorator_list, f"{place}::{node.name}")
            if isinstance(node, ast.ClassDef):
                yield from promises_in(node.body, f"{place}::{node.name}")
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            yield from marks_of(node.value.elts if isinstance(node.value, ast.List) else [node.value], place)


def marks_of(marks: list[ast.expr], test: str) -> Iterator[Promise]:
    for mark in marks:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.promise":
            words, section = [*map(ast.literal_eval, mark.args), ""][:2]
            yield Promise(words, section, test)


def listing(part: str) -> str:
    """Write each promise that has these words, with its section and its tests below it."""
    tests: dict[str, list[str]] = {}
    for promise in promises():
        if part.lower() in f"{promise.words} {promise.section} {promise.test}".lower():
            lines = tests.setdefault(promise.words, [])
            lines += [f"    {line}" for line in (promise.section, promise.test) if line]
    return "\n".join("\n".join([words, *dict.fromkeys(lines)]) for words, lines in tests.items())


if __name__ == "__main__":
    print(listing(" ".join(sys.argv[1:])))
