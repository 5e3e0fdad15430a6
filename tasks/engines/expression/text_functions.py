"""The functions of expressions on texts that Arrow computes in host memory: the same on both engines.

A function gets distinct texts and its parameters, and gives a value for each, null for null. A function that reads
(`parse_..`) gives an Answer: null where it cannot read, too, which the caller counts.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.engines.algorithms.text_times import format_of, times_in
from tasks.engines.algorithms.written_numbers import number_pattern
from tasks.engines.expression import list_functions

Answer = tuple[pa.Array, np.ndarray | None]  # the values; which texts could not be read (None: all could)


def strip(texts: pa.Array, characters: str | None) -> pa.Array:
    return pc.utf8_trim_whitespace(texts) if characters is None else pc.utf8_trim(texts, characters)


def split_part(texts: pa.Array, separator: str, index: int) -> pa.Array:
    return list_functions.get(pc.split_pattern(texts, separator), index)


def regex_extract(texts: pa.Array, pattern: str, group: int) -> pa.Array:
    whole = rf"\A(?s:.*?)({pattern})(?s:.*)\z"
    extracted = pc.replace_substring_regex(texts, whole, rf"\{group + 1}")
    return pc.if_else(pc.match_substring_regex(texts, pattern), extracted, pa.scalar(None, pa.string()))


def parse_time(texts: pa.Array, written: str | None, zone: str) -> Answer:
    times = times_in(texts, format_of(written), zone)
    return times, _unread(texts, times)


def parse_number(texts: pa.Array, decimal: str, group: str | None) -> Answer:
    trimmed = pc.utf8_trim_whitespace(texts)
    right = pc.match_substring_regex(trimmed, number_pattern(decimal, group))
    plain = pc.replace_substring(trimmed, group, "") if group else trimmed
    plain = plain if decimal == "." else pc.replace_substring(plain, decimal, ".")
    plain = pc.replace_substring_regex(plain, r"^\+", "")
    numbers = pc.if_else(right, plain, pa.scalar(None, pa.string())).cast(pa.float64())
    return numbers, _unread(texts, numbers)


def parse_json(texts: pa.Array, steps: tuple[str | int, ...]) -> Answer:
    values: list[str | None] = []
    unread = np.zeros(len(texts), dtype=bool)
    for row, text in enumerate(texts.to_pylist()):
        try:
            values.append(None if text is None else _at(_decoder.decode(text), steps))
        except (ValueError, RecursionError):
            values.append(None)
            unread[row] = True
    return pa.array(values, pa.string()), unread if unread.any() else None


def json_path(path: str) -> tuple[str | int, ...]:
    """The names and numbers of a path such as `$.items[0].name` or `items[-1]["the name"]`; ValueError for others.

    >>> json_path('$.items[0]["the name"].x')
    ('items', 0, 'the name', 'x')
    """
    rest = path[1:] if path.startswith("$") else path
    steps: list[str | int] = []
    while rest:
        step = re.match(r"""\.?([^.\[\]"'$]+)|\[(-?\d+)\]|\["([^"]*)"\]|\['([^']*)'\]""", rest)
        if not step:
            raise ValueError(f"it cannot be read from {rest!r} on", "write names with points, places as [0]")
        name, number, *quoted = step.groups()
        steps.append(int(number) if number is not None else next(t for t in (name, *quoted) if t is not None))
        rest = rest[step.end() :]
    return tuple(steps)


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_constant)


def _at(value: object, steps: tuple[str | int, ...]) -> str | None:
    """What lies at the end of the path as text; None where the path leads nowhere or to null."""
    for step in steps:
        if isinstance(value, dict) and isinstance(step, str):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and -len(value) <= step < len(value):
            value = value[step]
        else:
            return None
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    text.encode()  # ValueError for half a pair of surrogates, which is not text
    return text


def _unread(texts: pa.Array, values: pa.Array) -> np.ndarray | None:
    if values.null_count == texts.null_count:
        return None
    return pc.and_(texts.is_valid(), values.is_null()).to_numpy(zero_copy_only=False)


ON_HOST: dict[str, Callable[..., pa.Array | Answer]] = {
    "strip": strip,
    "replace": pc.replace_substring,
    "substring": pc.utf8_slice_codeunits,
    "split": pc.split_pattern,
    "split_part": split_part,
    "endswith": pc.ends_with,
    "matches": pc.match_substring_regex,
    "regex_extract": regex_extract,
    "regex_replace": pc.replace_substring_regex,
    "parse_time": parse_time,
    "parse_number": parse_number,
    "parse_json": parse_json,
}


def apply(name: str, texts: pa.Array, parameters: tuple[Any, ...]) -> Answer:
    """The values of a function by its name; each distinct text is worked on once."""
    encoded = texts if pa.types.is_dictionary(texts.type) else texts.dictionary_encode()
    answer = ON_HOST[name](encoded.dictionary, *parameters)
    values, unread = answer if isinstance(answer, tuple) else (answer, None)
    if unread is not None:
        places = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
        unread = unread[places] & encoded.indices.is_valid().to_numpy(zero_copy_only=False)
    return values.take(encoded.indices), unread


@functools.cache
def regex_error(pattern: str, new: str | None = None) -> str:
    """Why RE2 does not take a pattern, or the text that replaces it; "" if it does."""
    try:
        if new is None:
            pc.match_substring_regex(pa.array([""]), pattern)
        else:
            pc.replace_substring_regex(pa.array([""]), pattern, new)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        return str(error).removeprefix("Invalid regular expression: ")
    return ""


def regex_size(pattern: str) -> int:
    """The characters of a pattern, those of `{n,m}` counted m times: about what RE2 compares each letter with.

    >>> regex_size("[ab]c{2,10}"), regex_size("(ab{3}){1000}")
    (20, 9006)
    """
    # of the groups that are open, and of the part that a repetition repeats
    sizes = [0]
    last = 0
    for part in re.findall(r"\\.|\[(?:\\.|[^\]\\])*\]|\{\d+(?:,\d*)?\}|.", pattern, re.DOTALL):
        if part == "(":
            sizes.append(1)
        elif part == ")" and len(sizes) > 1:
            last = sizes.pop() + 1
            sizes[-1] += last
        elif len(part) > 1 and part[0] == "{":
            sizes[-1] += last * max(0, max(int(n) for n in re.findall(r"\d+", part)) - 1) + len(part)
        else:
            last = len(part)
            sizes[-1] += last
    return sum(sizes)


@functools.cache
def regex_groups(pattern: str) -> int:
    """The number of groups of a pattern that RE2 takes."""
    groups = 0
    while groups < 10 and not regex_error(pattern, rf"\{groups}"):
        groups += 1
    return groups - 1
