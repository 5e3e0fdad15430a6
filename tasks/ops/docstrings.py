"""The docstring of an operator as data: what the reference, the JSON schema and `rowmill ops NAME` say of it."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass

HEADING = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)
PARAMETER = re.compile(r"^(\w+) : (.+?)(?:, default (.+))?\n((?: +\S.*\n?)+)", re.MULTILINE)


@dataclass(frozen=True)
class ListedParameter:
    """One entry of the section Parameters; `default` is None where a value is required."""

    name: str
    type: str
    default: str | None
    meaning: str


@dataclass(frozen=True)
class Docstring:
    """The parts of a docstring in numpydoc's form; without headings the notes are all paragraphs but the first."""

    summary: str
    parameters: dict[str, ListedParameter]
    notes: str
    examples: str


def docstring_of(cls: type) -> Docstring:
    """Read the docstring of a class.

    >>> class Twice:
    ...     '''Multiply by a number.
    ...
    ...     Parameters
    ...     ----------
    ...     factor : float, default 2.0
    ...         Factor of each value.
    ...
    ...     Notes
    ...     -----
    ...     Null stays null.
    ...
    ...     Examples
    ...     --------
    ...     >>> 2 * 2
    ...     4
    ...     '''
    >>> docstring_of(Twice).parameters["factor"]
    ListedParameter(name='factor', type='float', default='2.0', meaning='Factor of each value.')
    >>> docstring_of(Twice).notes, docstring_of(Twice).examples
    ('Null stays null.', '>>> 2 * 2\\n4')
    """
    head, *rest = HEADING.split(inspect.cleandoc(cls.__doc__ or ""))
    sections = dict(zip(rest[::2], rest[1::2], strict=True))
    entries = PARAMETER.findall(sections.pop("Parameters", "") + "\n")
    parameters = {
        name: ListedParameter(name, kind, default or None, _one_line(meaning))
        for name, kind, default, meaning in entries
    }
    head, mark, examples = head.partition("\n>>> ")
    examples = sections.pop("Examples", mark + examples).strip()
    summary, _, more = head.partition("\n\n")
    notes = [more, sections.pop("Notes", ""), *(f"{title}: {_one_line(text)}" for title, text in sections.items())]
    return Docstring(_one_line(summary), parameters, "\n\n".join(filter(None, map(str.strip, notes))), examples)


def _one_line(text: str) -> str:
    return " ".join(text.split())
