"""One class per decision: fix the data, fix the job, try again, give up."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MillraceError(Exception):
    """What went wrong, where, why, and what to do next, as one readable message."""

    def __init__(self, what: str, *, where: str = "", why: str = "", do: str = "") -> None:
        self.what, self.where, self.why, self.do = what, where, why, do
        lines = [what, *(f"{label}: {text}" for label, text in (("where", where), ("why", why), ("do", do)) if text)]
        super().__init__("\n  ".join(lines))

    def __reduce__(self):  # keyword-only arguments do not survive Exception's own pickling
        return _rebuild, (type(self), self.what, self.where, self.why, self.do)


def _rebuild(kind: type[MillraceError], what: str, where: str, why: str, do: str) -> MillraceError:
    return kind(what, where=where, why=why, do=do)


class DataError(MillraceError):
    """The data must be mended; running again with the same data fails again."""


class JobError(MillraceError):
    """The job, an operator's parameters or a path must be mended; nothing was started or written."""


class TransientError(MillraceError):
    """What may pass: a worker that was lost, memory that was short. Run again."""


class GiveUpError(MillraceError):
    """The host cannot do it as asked: no space, no GPU, no cluster."""


DELIMITERS = "|;,\t\x01"  # that text files are written with


def near(name: str, known: Iterable[str]) -> str:
    """A hint that names what exists: the nearest names first, else all of them.

    >>> near("prise", ["price", "brand"]), near("brand", ["price|brand"])[-27:]
    ("did you mean 'price'?", "set source.delimiter to '|'")
    """
    known = [str(k) for k in known]
    between = next((c for c in DELIMITERS if len(known) == 1 and c in known[0] and name in known[0].split(c)), "")
    if between:
        return f"the only one is called {known[0][:40]!r}: if it is several, set source.delimiter to {between!r}"
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    if close:
        return "did you mean " + " or ".join(repr(k) for k in close) + "?"
    return "there are: " + (", ".join(known[:30]) + (", .." if len(known) > 30 else "") if known else "none")
