"""Texts joined by a separator such that other values give another text: which values need an escape, and how."""

from __future__ import annotations

from typing import Literal

Test = tuple[Literal["contains", "starts", "ends"], str]


def escapes(sep: str) -> tuple[list[Test], list[tuple[str, str]]]:
    """(what of a value needs an escape, the literal replacements that make it, in their order).

    A row in which a value passes a test has all its values escaped; every other row stays as it is, with as many
    separators as joints. The escape is a backslash (a slash, if the separator has a backslash) before each escape and
    each letter of the separator. A separator of several letters may also begin or end in a value.

    >>> escapes("_")
    ([('contains', '_')], [('\\\\', '\\\\\\\\'), ('_', '\\\\_')])
    """
    letters = list(dict.fromkeys(sep))
    escape = next((e for e in "\\/~" if e not in sep), "\x1b")
    tests: list[Test] = [("contains", sep)] if sep else []
    if len(sep) > 1:
        tests += [("starts", letter) for letter in letters]
        tests += [("ends", letter) for letter in (*letters, escape)]
        tests += [("contains", escape + letter) for letter in letters]
    return tests, [(letter, escape + letter) for letter in (escape, *letters)]
