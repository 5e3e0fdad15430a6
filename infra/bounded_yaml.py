"""Reads YAML from outside, and refuses early what is too long, too deeply nested, or stands for too many values.

An alias stands for all that its anchor holds, so that ten lines can mean 10^9 values; deeply nested values exhaust the
stack; a number of a million digits takes minutes.

Plain words mean what they mean in YAML 1.2: `true` and `false` are booleans, while `on`, `off`, `yes`, `no`, `y` and
`n` are texts, as are 18:30, which PyYAML reads as 1110, and times finer than microseconds. Other numbers stay those of
YAML 1.1, as in every file that PyYAML reads: 017 is octal, and 1_000 is 1000. Keys are texts:
`{on: x, 1: y}` has "on" and "1".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

Resolver = tuple[str, re.Pattern[str]]
MOST_TEXT = 2**20  # characters
MOST_VALUES = 100_000  # with those that aliases stand for
MOST_DEPTH = 64  # of values in values
MOST_DIGITS = 1000  # of a number
IN_PROGRESS = -1  # the count of a node whose values are being counted
BOOL_TAG, INT_TAG, FLOAT_TAG, TIME_TAG, TEXT_TAG, MERGE_TAG = (
    f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float", "timestamp", "str", "merge")
)
NUMBER_TAGS = (INT_TAG, FLOAT_TAG)
# Which texts without quotes are of which type, in place of PyYAML's patterns: these have other booleans, and numbers of
# base 60 such as 18:30.
PLAIN_PATTERNS = {
    BOOL_TAG: "true|True|TRUE|false|False|FALSE",
    INT_TAG: "[-+]?0b[01_]+|[-+]?0[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+",
    FLOAT_TAG: r"[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
    # PyYAML would drop the digits of a second behind the sixth, so a time that has more of them stays text
    TIME_TAG: r"\d{4}-\d\d-\d\d|\d{4}-\d\d?-\d\d?(?:[Tt]|[ \t]+)\d\d?:\d\d:\d\d(?:\.\d{0,6})?"
    r"(?:[ \t]*(?:Z|[-+]\d\d?(?::\d\d)?))?",
}


def _replace_patterns(resolvers: Mapping[str, Sequence[Resolver]]) -> dict[str, list[Resolver]]:
    """Put PLAIN_PATTERNS into the resolvers of a loader, which are listed by the first character of a text."""

    def replace_pattern(tag: str, pattern: re.Pattern[str]) -> Resolver:
        return tag, re.compile(rf"^(?:{PLAIN_PATTERNS[tag]})$") if tag in PLAIN_PATTERNS else pattern

    return {
        character: [replace_pattern(tag, pattern) for tag, pattern in listed] for character, listed in resolvers.items()
    }


class _Bounded(yaml.SafeLoader):
    """PyYAML's safe loader with a limit of the depth, the plain words of YAML 1.2, and keys as texts."""

    depth = 0
    yaml_implicit_resolvers = _replace_patterns(yaml.SafeLoader.yaml_implicit_resolvers)

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
    """Turn the key of a map into a text, as it is written; `<<` and keys that are not scalars stay."""
    if not isinstance(key, yaml.ScalarNode) or key.tag in (TEXT_TAG, MERGE_TAG):
        return key
    return yaml.ScalarNode(TEXT_TAG, key.value, key.start_mark, key.end_mark, key.style)


def compose(text: str) -> yaml.Node | None:
    """Parse a text into nodes; a yaml.YAMLError where it is not YAML, or too much of it."""
    if len(text) > MOST_TEXT:
        raise _make_yaml_error(f"the text has {len(text):,} characters, more than {MOST_TEXT:,}", None)
    node: yaml.Node | None = yaml.compose(text, Loader=_Bounded)
    if node is not None and (count := _count_values(node, {})) > MOST_VALUES:
        why = f"it stands for {count:,}" if count < 10**15 else f"it stands for {count:.0e}"
        raise _make_yaml_error(
            f"{why} values, more than {MOST_VALUES:,}, with what its aliases repeat", node.start_mark
        )
    return node


def construct(node: yaml.Node | None) -> object:
    """Make the values of nodes; a yaml.YAMLError for a value that is not of the type that its tag names."""
    if node is None:
        return None
    try:
        return yaml.SafeLoader("").construct_document(node)  # the nodes have their tags: this loader reads no text
    except (AttributeError, LookupError, OverflowError, TypeError) as error:  # of `!!timestamp x`, `!!bool z`
        raise _make_yaml_error(f"a value is not what its tag says ({error})", node.start_mark) from None


def load(text: str) -> object:
    """Read the values of a text; a yaml.YAMLError where it is not YAML, or too much of it."""
    return construct(compose(text))


def _count_values(node: yaml.Node, counts: dict[int, int]) -> int:
    """Count the values that a node stands for; `counts` has those of the nodes that were met before, by their ids.

    A yaml.YAMLError for a node that contains itself, and for a number of too many digits.
    """
    if isinstance(node, yaml.ScalarNode):
        if node.tag in NUMBER_TAGS and len(node.value) > MOST_DIGITS:
            raise _make_yaml_error(f"a number has {len(node.value):,} digits", node.start_mark)
        return 1
    if id(node) in counts:
        if counts[id(node)] == IN_PROGRESS:
            raise _make_yaml_error("a value holds itself", node.start_mark)
        return counts[id(node)]
    counts[id(node)] = IN_PROGRESS
    children = node.value
    if isinstance(node, yaml.MappingNode):
        children = [child for pair in node.value for child in pair]
    counts[id(node)] = 1 + sum(_count_values(child, counts) for child in children)
    return counts[id(node)]


def _make_yaml_error(problem: str, mark: yaml.Mark | None) -> yaml.YAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
