"""The nodes of a graph: `columns >> op`, `+`, `-`, `[...]`, and a graph as data; what the names mean is bound
elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.core.nvtabular import KnownFromNVTabular
from tasks.core.plan import File
from tasks.core.schema import Tags
from tasks.core.strict_json import JsonObject
from tasks.errors import JobError
from tasks.ops.base import Operator, make_operator
from tasks.storage.credentials import storage
from tasks.storage.store import MissingFileError
from tasks.storage.stores import list_files

LONGEST = 400  # operators that follow one another


@dataclass(frozen=True, eq=False)
class Node(KnownFromNVTabular):
    """A step: `op` applied to its one parent, or (without op) columns picked from, joined of or dropped from its
    parents.

    kind is pick (selection from the parents, the last one that has a name wins, else from the source), apply, join,
    drop.
    """

    _known_as = "Node"

    kind: str
    parents: tuple[Node, ...] = ()
    op: Operator | None = None
    selection: tuple[Any, ...] = ()
    name: str = ""

    def __rshift__(self, op: Operator | type[Operator]) -> Node:
        if isinstance(op, type) and issubclass(op, Operator):
            op = op()
        if not isinstance(op, Operator):
            raise JobError(f">> takes an operator, not {op!r}", do="for example: ['x'] >> ops.Normalize()")
        return Node("apply", (self,), op)

    def __add__(self, other: object) -> Node:
        return Node("join", (self, as_node(other)))

    def __radd__(self, other: object) -> Node:
        return Node("join", (as_node(other), self))

    def __sub__(self, names: str | Tags | Iterable[Any]) -> Node:
        return Node("drop", (self,), selection=_entries([names] if isinstance(names, (str, Tags)) else names))

    def __getitem__(self, names: str | Tags | Iterable[Any]) -> Node:
        return Node("pick", (self,), selection=_entries([names] if isinstance(names, (str, Tags)) else names))

    def __repr__(self) -> str:
        what = repr(self.op) if self.op else ", ".join(map(str, self.selection))
        return f"Node({self.kind}{': ' + what if what else ''})"


def as_node(columns: Any) -> Node:
    """Make a node of a column name, a list of names, groups (nested lists), tags and nodes; return a node as it is."""
    if isinstance(columns, Node):
        return columns
    items = [columns] if isinstance(columns, (str, Tags)) else list(columns)
    if any(isinstance(item, Node) for item in items):
        return Node("join", tuple(i if isinstance(i, Node) else Node("pick", selection=_entries([i])) for i in items))
    return Node("pick", selection=_entries(items))


def _entries(items: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(tuple(item) if isinstance(item, (list, tuple)) else item for item in items)


def operator_rrshift(self: Operator, columns: object) -> Node:
    return as_node(columns) >> self


Operator.__rrshift__ = operator_rrshift  # type: ignore[method-assign]


def topological(final: Node) -> list[Node]:
    """List all nodes under `final`, parents before children, in a fixed order.

    A JobError for more than `LONGEST` that follow one another.
    """
    seen: dict[int, Node] = {}

    def visit(node: Node, depth: int) -> None:
        if depth > LONGEST:
            raise JobError(
                f"more than {LONGEST} operators follow one another",
                where="features",
                why="each of them works on the result of the one before",
                do="use fewer",
            )
        if id(node) not in seen:
            for parent in node.parents:
                visit(parent, depth + 1)
            seen[id(node)] = node

    visit(final, 0)
    return list(seen.values())


def side_paths(final: Node) -> list[str]:
    """List the files and folders that the operators of a graph read, besides the source."""
    return [str(path) for node in topological(final) if node.op for path in node.op.files]


def list_side_files(final: Node) -> list[File]:
    """List the files that the operators of a graph read besides the source, those of a folder too, as they are now.

    A file that is missing has the size -1.
    """
    files: list[File] = []
    for node in topological(final):
        if node.op is None:
            continue
        for path in node.op.files:
            options = storage(node.op.storage, f"storage_options of {type(node.op).__name__} in {node.name}")
            try:
                files += list_files(str(path), options).files
            except MissingFileError:
                files.append(File(str(path), -1, 0))
    return files


def graph_to_json(final: Node) -> list[JsonObject]:
    nodes = topological(final)
    number = {id(node): i for i, node in enumerate(nodes)}
    out = []
    for node in nodes:
        item: JsonObject = {"kind": node.kind, "parents": [number[id(p)] for p in node.parents]}
        if node.op:
            item["op"] = node.op.to_json()
        if node.selection:
            item["selection"] = [
                list(e) if isinstance(e, tuple) else {"tag": e.value} if isinstance(e, Tags) else e
                for e in node.selection
            ]
        if node.name:
            item["name"] = node.name
        out.append(item)
    return out


def graph_from_json(items: Sequence[JsonObject], make: Callable[[int, JsonObject], Operator] | None = None) -> Node:
    """Build a saved graph; return its last node. `make(number, entry)` makes the operator of a node, in place of its
    class."""
    nodes: list[Node] = []
    for number, item in enumerate(items):
        selection = tuple(
            Tags(e["tag"]) if isinstance(e, dict) else tuple(e) if isinstance(e, list) else e
            for e in item.get("selection", ())
        )
        op = None
        if "op" in item:
            op = make(number, item["op"]) if make else make_operator(item["op"])
        nodes.append(Node(item["kind"], tuple(nodes[p] for p in item["parents"]), op, selection, item.get("name", "")))
    return nodes[-1]


def title(node: Node) -> str:
    """Name an entry of a job by its name, and a step made in Python by its operator and columns."""
    if node.name:
        return f"{node.name}{f' ({type(node.op).__name__})' if node.op else ''}"
    if node.op:
        return f"{type(node.op).__name__} of {title(node.parents[0])}"
    what = ", ".join("+".join(e) if isinstance(e, tuple) else str(getattr(e, "value", e)) for e in node.selection)
    return {"pick": what, "drop": f"all but {what}"}.get(node.kind) or " + ".join(title(p) for p in node.parents)
