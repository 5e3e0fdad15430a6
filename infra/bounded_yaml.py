"""YAML from outside: refused quickly where a few lines would become more values than any file means.

An alias stands for all that its anchor holds, so that ten lines can mean 10^9 values; values in values exhaust the
stack; a number of a million digits takes minutes.

Plain words mean what they mean in YAML 1.2: `true` and `false` are booleans, while `on`, `off`, `yes`, `no`, `y` and
`n` are texts, as are 18:30, which PyYAML reads as 1110, and times finer than microseconds. Keys are texts: `{on: x}`.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

MOST_TEXT = 2**20  # characters
MOST_VALUES = 100_000  # with what aliases stand for
MOST_DEPTH = 64
MOST_DIGITS = 1000
BOOL, INT, FLOAT, TIME, TEXT, MERGE = (
    f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float", "timestamp", "str", "merge")
)
NUMBERS = (INT, FLOAT)
PLAIN = {  # instead of PyYAML's patterns, which are those of YAML 1.1
    BOOL: "true|True|TRUE|false|False|FALSE",
    INT: "[-+]?0b[01_]+|[-+]?0[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+",
    FLOAT: r"[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
    # of a time with more than six digits, which stays text, PyYAML drops the others
    TIME: r"\d{4}-\d\d-\d\d|\d{4}-\d\d?-\d\d?(?:[Tt]|[ \t]+)\d\d?:\d\d:\d\d(?:\.\d{0,6})?"
    r"(?:[ \t]*(?:Z|[-+]\d\d?(?::\d\d)?))?",
}


class _Bounded(yaml.SafeLoader):
    """Composes nodes up to a depth."""

    depth = 0
    yaml_implicit_resolvers = {
        letter: [(tag, re.compile(rf"^(?:{PLAIN[tag]})$") if tag in PLAIN else pattern) for tag, pattern in resolvers]
        for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.depth > MOST_DEPTH:
            raise _make_yaml_error(
                f"values are nested more than {MOST_DEPTH} levels deep", self.peek_event().start_mark
            )
        self.depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        node.value = [(_as_text(key), value) for key, value in node.value]
        return node


def _as_text(key: yaml.Node) -> yaml.Node:
    """The key of a map as a text, as it is written; `<<` and keys that are no scalars stay."""
    if not isinstance(key, yaml.ScalarNode) or key.tag in (TEXT, MERGE):
        return key
    return yaml.ScalarNode(TEXT, key.value, key.start_mark, key.end_mark, key.style)


def compose(text: str) -> yaml.Node | None:
    """The nodes of a text; a yaml.YAMLError where it is not YAML, or too much of it."""
    if len(text) > MOST_TEXT:
        raise _make_yaml_error(f"the text has {len(text):,} characters, more than {MOST_TEXT:,}", None)
    node: yaml.Node | None = yaml.compose(text, Loader=_Bounded)
    if node is not None and (count := _values(node, {})) > MOST_VALUES:
        why = f"it stands for {count:,}" if count < 10**15 else f"it stands for {count:.0e}"
        raise _make_yaml_error(
            f"{why} values, more than {MOST_VALUES:,}, with what its aliases repeat", node.start_mark
        )
    return node


def construct(node: yaml.Node | None) -> object:
    """The values of nodes; a yaml.YAMLError for a value that is not of the type that its tag names."""
    if node is None:
        return None
    try:
        return yaml.SafeLoader("").construct_document(node)
    except (AttributeError, LookupError, OverflowError, TypeError) as error:  # of `!!timestamp x`, `!!bool z`
        raise _make_yaml_error(f"a value is not what its tag says ({error})", node.start_mark) from None


def load(text: str) -> object:
    """The values of a text; a yaml.YAMLError where it is not YAML, or too much of it."""
    return construct(compose(text))


def _values(node: yaml.Node, known: dict[int, int]) -> int:
    """Count the values that a node stands for; a node that contains itself is an error."""
    if isinstance(node, yaml.ScalarNode):
        if node.tag in NUMBERS and len(node.value) > MOST_DIGITS:
            raise _make_yaml_error(f"a number has {len(node.value):,} digits", node.start_mark)
        return 1
    if id(node) in known:
        if known[id(node)] < 0:
            raise _make_yaml_error("a value holds itself", node.start_mark)
        return known[id(node)]
    known[id(node)] = -1
    inner = node.value if isinstance(node, yaml.SequenceNode) else [one for pair in node.value for one in pair]
    known[id(node)] = 1 + sum(_values(one, known) for one in inner)
    return known[id(node)]


def _make_yaml_error(problem: str, mark: yaml.Mark | None) -> yaml.YAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
