"""YAML that people wrote: its values, and the line on which each of them stands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import yaml

from infra.bounded_yaml import compose, construct
from tasks.errors import JobError, RowmillError

Path = tuple[str | int, ...]


def parse_yaml(text: str, where: str) -> object:
    """Parse the values of a YAML text; a JobError shows the line that is not YAML."""
    try:
        node = compose(text)
        _refuse_twice(node, set())
        return construct(node)
    except (yaml.YAMLError, ValueError) as error:  # a ValueError of a date that does not exist
        mark = getattr(error, "problem_mark", None)
        place = f"{where}, line {mark.line + 1}, column {mark.column + 1}" if mark else where
        shown = text.splitlines()[mark.line] if mark and mark.line < len(text.splitlines()) else ""
        shown = shown if len(shown) <= 200 else shown[:200] + " .."
        why = f"{getattr(error, 'problem', error)}{f': {shown.strip()!r}' if shown.strip() else ''}"
        what = "features is" if where == "features" else "the job is"
        raise JobError(f"{what} not valid YAML", where=place, why=why, do="fix that line; indent with spaces") from None


def _refuse_twice(node: yaml.Node | None, seen: set[int]) -> None:
    """Refuse a key that stands twice in a map: the second value would silently replace the first."""
    if node is None or id(node) in seen or isinstance(node, yaml.ScalarNode):
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_twice(item, seen)
        return
    names = set()
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode) and key.value != "<<":
            if key.value in names:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value!r} appears twice", problem_mark=key.start_mark)
            names.add(key.value)
        _refuse_twice(value, seen)


class Lines:
    """Where the values of YAML texts stand, for messages; later texts hide earlier ones, changed values have no line.

    >>> lines = Lines().of("label: [a]\\noutput:\\n  seed: x\\n", "job.yaml")
    >>> lines.place(("output", "seed"))
    ' (line 3 of job.yaml)'
    >>> lines.forget_line("output.seed").place(("output", "seed"))
    ''
    """

    def __init__(self) -> None:
        self._texts: list[tuple[Path, str, yaml.Node]] = []
        self._changed: set[Path] = set()

    def of(self, text: str, name: str, root: Path = ()) -> Lines:
        """These, and those of a valid YAML text that is the value at `root`."""
        node = compose(text)
        if node is not None:
            self._texts.insert(0, (root, name, node))
        return self

    def forget_line(self, key: str) -> Lines:
        """The value at a dotted key is not that of the text any more."""
        self._changed.add(tuple(key.split(".")))
        return self

    def place(self, path: Iterable[str | int]) -> str:
        """` (line 7 of job.yaml)`: of the value at a path, else of what it would be in; empty where that is unknown."""
        whole = tuple(path)
        if any(whole[: len(change)] == change for change in self._changed):
            return ""
        for root, name, node in self._texts:
            if whole[: len(root)] == root and (line := _line(node, whole[len(root) :], inside=bool(root))):
                return f" (line {line} of {name})"
        return ""

    def add_line(self, error: RowmillError) -> RowmillError:
        """The same error; when it begins its place with one in the job, `features[0].ops[1]`, the line is added."""
        first, newline, rest = error.where.partition("\n")
        line = self.place(job_path(first))
        return (
            type(error)(error.what, where=first + line + newline + rest, why=error.why, do=error.do) if line else error
        )


def job_path(text: str) -> Path:
    """Return the path that a message writes.

    >>> job_path("features[0].ops[1]")
    ('features', 0, 'ops', 1)
    """
    return (
        tuple(int(number) if number else name for name, number in re.findall(r"([^.\[\]]+)|\[(\d+)\]", text))
        if (re.fullmatch(r"\w+(\.\w+|\[\d+\])*", text))
        else ()
    )


def _line(node: yaml.Node, path: Sequence[str | int], inside: bool) -> int | None:
    """The line of the value at a path, or of the nearest value around it; None where nothing of the path is there."""
    line = node.start_mark.line + 1 if inside else None
    for key in path:
        child = _child(node, key)
        if child is None:
            break
        line, node = child
    return line


def _child(node: yaml.Node, key: str | int) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        pairs = [(name, value) for name, value in node.value if getattr(name, "value", None) == str(key)]
        return (pairs[-1][0].start_mark.line + 1, pairs[-1][1]) if pairs else None
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
        item = node.value[key]
        return item.start_mark.line + 1, item
    return None
