"""Counts what the house looks like, from the syntax trees: who imports whom, circles, floors.

Every import counts: at the top, in functions, for type checkers, and modules that a string names ("tasks.engines.cpu").
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

Graph = dict[str, set[str]]
TOPS = ("tasks", "flows", "infra")
NAMED = re.compile(rf"({'|'.join(TOPS)})(\.\w+)+(:\w+)?")  # a module, or what is in one, as text
WITH_BODY = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """The syntax tree of a module, itself first, then all that is in it; parsed once for all rules."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def imports(root: Path, tops: tuple[str, ...] = TOPS) -> Graph:
    """Module -> the modules of these packages that it imports, or names in a string; all by their dotted names."""
    paths = {_name(root, path): path for top in tops for path in sorted((root / top).rglob("*.py"))}
    found = {name: {_module(text, paths) for text in _texts(path)} for name, path in paths.items()}
    return {name: {other for other in others if other and other != name} for name, others in found.items()}


def _name(root: Path, path: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def _texts(path: Path) -> Iterator[str]:
    """Dotted names of what a module imports or names in a string that is not a docstring."""
    docstrings = {id(node.body[0].value) for node in nodes(path)
                  if isinstance(node, WITH_BODY) and node.body and isinstance(node.body[0], ast.Expr)}  # fmt: skip
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield from [node.value.partition(":")[0]] if NAMED.fullmatch(node.value) else []


def _module(text: str, known: Mapping[str, object]) -> str:
    """The module that has what a dotted name names, "" for one of no package of ours."""
    while text and text not in known:
        text = text.rpartition(".")[0]
    return text


def rooms(graph: Graph, root: Path, depth: int | None = None) -> Graph:
    """The graph between rooms: a folder is a room, and so is a module that stands in a top folder.

    `depth` 2 counts the folders within a room to it (tasks/engines/cpu to tasks/engines).
    """

    def room(module: str) -> str:
        parts = module.split(".")
        folder = parts if root.joinpath(*parts).is_dir() else parts[:-1] if len(parts) > 2 else parts
        return "/".join(folder[:depth])

    found: Graph = {}
    for module, others in graph.items():
        found.setdefault(room(module), set()).update(room(other) for other in others)
    return {name: others - {name} for name, others in found.items()}


def circle(graph: Graph) -> list[str]:
    """A circle in the graph, its first member again at its end; [] where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def floors(graph: Graph) -> dict[str, int]:
    """How many stand on each other below each member, itself counted. CycleError where there is a circle."""
    found: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():
        found[name] = 1 + max((found[other] for other in graph.get(name, ())), default=0)
    return found


def lazily_registered(root: Path) -> list[str]:
    """Where `register_lazy("tasks.. ", ..)` has Dask import tasks: an import upwards that no graph shows."""
    calls = [(path, node) for path in sorted(root.rglob("*.py")) for node in nodes(path)
             if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("register_lazy")]  # fmt: skip
    ours = [(path, node) for path, node in calls if any("tasks" in ast.unparse(argument) for argument in node.args[:1])]
    return [f"{path.relative_to(root)}:{node.lineno}" for path, node in ours]


def docstrings(path: Path) -> Iterator[str]:
    """The docstrings of a module, and of the classes and functions in it."""
    for node in nodes(path):
        if isinstance(node, WITH_BODY):
            yield ast.get_docstring(node) or ""


def identifiers(path: Path) -> Iterator[str]:
    """The names in a module: variables, arguments, functions, classes and attributes."""
    for node in nodes(path):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
