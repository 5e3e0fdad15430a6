"""Times of texts in a written format, on Arrow arrays in host memory: for both engines."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.errors import near

MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
MICROSECONDS_A_DAY = 86_400_000_000

_NAMES = "|".join(month[:3] for month in MONTHS)
_OFFSET = r"Z|UTC|[+-]\d\d(?::?\d\d)?"
# Sign after % -> what it matches. Each is the name of a group, but those that are passed over: names of weekdays.
DIRECTIVES = {
    "Y": r"\d{4}",
    "y": r"\d{2}",
    "m": r"\d{1,2}",
    "d": r"\d{1,2}",
    "H": r"\d{1,2}",
    "I": r"\d{1,2}",
    "M": r"\d{1,2}",
    "S": r"\d{1,2}",
    "f": r"\d{1,9}",
    "j": r"\d{1,3}",
    "p": r"[AaPp]\.?[Mm]\.?",
    "b": f"(?i:(?:{_NAMES})[a-z]*\\.?)",
    "z": _OFFSET,
    "s": r"-?\d{1,12}",
}
_PASSED = {"a": r"[A-Za-z]+\.?", "A": r"[A-Za-z]+\.?"}
_SHORT = {"F": "%Y-%m-%d", "T": "%H:%M:%S", "R": "%H:%M", "D": "%m/%d/%y", "B": "%b", "e": "%d"}
ISO = (
    r"(?P<Y>\d{4})-(?P<m>\d\d)-(?P<d>\d\d)"
    r"(?:[T ](?P<H>\d\d):?(?P<M>\d\d)(?::?(?P<S>\d\d)(?:[.,](?P<f>\d{1,9}))?)?)?\s*(?P<z>" + _OFFSET + ")?"
)

# Formats beside ISO 8601 in which people write times, in the order in which they are tried.
DAYS = (
    "%d.%m.%Y",
    "%Y/%m/%d",
    "%m/%d/%Y",
    "%d/%m/%Y",
    "%d-%m-%Y",
    "%d %b %Y",
    "%b %d, %Y",
    "%b %d %Y",
    "%d-%b-%Y",
    "%d-%b-%y",
    "%a, %d %b %Y",
    "%a, %b %d, %Y",
    "%m/%d/%y",
    "%d/%m/%y",
)  # not %d.%m.%y: versions of software look like it
CLOCKS = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
# Whole moments: of mails (RFC 2822), of Twitter, of C's asctime and the command date, of web servers.
MOMENTS = (
    "%a, %d %b %Y %H:%M:%S %z",
    "%a, %d %b %Y %H:%M:%S GMT",
    "%a %b %d %H:%M:%S %z %Y",
    "%a %b %d %H:%M:%S %Y",
    "%d/%b/%Y:%H:%M:%S %z",
)


@dataclass(frozen=True)
class TimeFormat:
    """How a text writes a time: a pattern whose groups are the parts of the time."""

    pattern: str
    parts: frozenset[str]


def format_of(text: str | None) -> TimeFormat:
    """The format of a text with signs of `strptime`; None is ISO 8601. ValueError for one that gives no time.

    >>> sorted(format_of("%d.%m.%y %H:%M").parts)
    ['H', 'M', 'd', 'm', 'y']
    >>> format_of("%d.%q")
    Traceback (most recent call last):
    ...
    ValueError: there is no sign %q; there are %Y %y %m %d %H %I %M %S %f %j %p %b %z %s %a %A %F %T %R %D %B %e %%
    """
    if text is None:
        return TimeFormat(f"^{ISO}$", frozenset("YmdHMSfz"))
    for _ in range(2):
        text = re.sub(r"%([FTRDBe])", lambda sign: _SHORT[sign[1]], text)
    pattern = ""
    parts = list[str]()
    for piece in re.findall(r"%.|\s+|[^%\s]+|%$", text, re.DOTALL):
        sign = piece[1:]
        if piece.isspace():
            pattern += r"\s+"
        elif not piece.startswith("%"):
            pattern += re.escape(piece)
        elif sign == "%":
            pattern += "%"
        elif sign in _PASSED:
            pattern += _PASSED[sign]
        elif sign not in DIRECTIVES:
            known = " ".join(f"%{name}" for name in (*DIRECTIVES, *_PASSED, *_SHORT, "%"))
            raise ValueError(f"there is no sign %{sign}; there are {known}")
        elif sign in parts:
            raise ValueError(f"%{sign} stands twice")
        else:
            pattern = f"{pattern}(?P<{sign}>{DIRECTIVES[sign]})"
            parts = [*parts, sign]
    present = frozenset(parts)
    day = "j" in present or ("d" in present and bool(present & {"m", "b"}))
    if "s" not in present and not (day and present & {"Y", "y"}):
        raise ValueError("a time needs a year, a month and a day: %Y-%m-%d, %d.%m.%y, %d %b %Y, %Y%j, or %s")
    if ("I" in present) != ("p" in present):
        raise ValueError("%I (hours from 1 to 12) and %p (AM, PM) go together")
    return TimeFormat(f"^{pattern}$", present)


def check_zone(name: str) -> str:
    """The name of a zone; ValueError, with near names, for one that does not exist."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"there is no time zone {name!r}", near(name, sorted(available_timezones()))) from None
    return name


def times_in(texts: pa.Array, written: TimeFormat, zone: str = "UTC") -> pa.Array:
    """Times, timestamp[us] in UTC, of texts; null where a text is not a time in this format.

    A text without an offset is a time of day in `zone`: of one that the clock shows twice the first, of one that it
    skips the first moment after.

    >>> times_in(pa.array(["31.12.19 22:00", "31.02.19 22:00"]), format_of("%d.%m.%y %H:%M")).to_pylist()
    [datetime.datetime(2019, 12, 31, 22, 0), None]
    """
    trimmed = pc.utf8_trim_whitespace(texts)
    matched = pc.extract_regex(trimmed, written.pattern)
    valid = matched.is_valid().to_numpy(zero_copy_only=False)
    fields = {matched.type.field(i).name: matched.field(i) for i in range(matched.type.num_fields)}
    parts = {name: _whole(field) for name, field in fields.items() if name not in ("b", "p", "z", "f")}
    if "s" in parts:
        ticks = parts["s"] * 10**6 + _fraction(fields.get("f"), len(texts))
        return _built(ticks, valid)
    days, real = _days(parts, fields, len(texts))
    hours = parts.get("H", np.zeros(len(texts), np.int64))
    if "I" in parts:
        real &= (parts["I"] >= 1) & (parts["I"] <= 12)
        late = pc.starts_with(pc.utf8_lower(pc.fill_null(fields["p"], "")), "p").to_numpy(zero_copy_only=False)
        hours = parts["I"] % 12 + 12 * late
    minutes, seconds = (parts.get(name, np.zeros(len(texts), np.int64)) for name in "MS")
    real &= (hours < 24) & (minutes < 60) & (seconds < 60)
    ticks = ((hours * 60 + minutes) * 60 + seconds) * 10**6 + _fraction(fields.get("f"), len(texts))
    local = _built(np.where(real, days * MICROSECONDS_A_DAY + ticks, 0), valid & real)
    return _in_utc(local, fields.get("z"), zone)


def _built(ticks: np.ndarray, valid: np.ndarray) -> pa.Array:
    return pa.array(ticks, mask=~valid).view(pa.timestamp("us"))


def _whole(field: pa.Array) -> np.ndarray:
    """The digits of a group as int64; 0 for an empty group."""
    texts = pc.fill_null(field, "")
    return pc.if_else(pc.equal(texts, ""), "0", texts).cast(pa.int64()).to_numpy(zero_copy_only=False)


def _fraction(field: pa.Array | None, rows: int) -> np.ndarray:
    """Microseconds of the digits behind the point; further digits are cut off."""
    if field is None:
        return np.zeros(rows, np.int64)
    return _whole(pc.utf8_slice_codeunits(pc.utf8_rpad(pc.fill_null(field, ""), 6, "0"), 0, 6))


def _days(parts: dict[str, np.ndarray], fields: dict[str, pa.Array], rows: int) -> tuple[np.ndarray, np.ndarray]:
    """(days since 1970, which dates exist)."""
    years = parts.get("Y")
    if years is None:
        years = parts["y"] + np.where(parts["y"] < 69, 2000, 1900)  # as POSIX does
    first = years.astype(np.int64) - 1970
    if "j" in parts:
        start = first.astype("M8[Y]").astype("M8[D]").astype(np.int64)
        length = (first + 1).astype("M8[Y]").astype("M8[D]").astype(np.int64) - start
        return start + parts["j"] - 1, (years >= 1) & (parts["j"] >= 1) & (parts["j"] <= length)
    months = parts["m"] if "m" in parts else _month_numbers(fields["b"])
    real = (years >= 1) & (months >= 1) & (months <= 12) & (parts["d"] >= 1)
    since = first * 12 + np.where(real, months, 1) - 1
    start = since.astype("M8[M]").astype("M8[D]").astype(np.int64)
    length = (since + 1).astype("M8[M]").astype("M8[D]").astype(np.int64) - start
    return start + parts["d"] - 1, real & (parts["d"] <= length)


def _month_numbers(field: pa.Array) -> np.ndarray:
    """1 to 12 of English names, whole or of three letters; 0 for others."""
    names = pc.utf8_rtrim(pc.utf8_lower(pc.fill_null(field, "")), ".")
    whole = pc.index_in(names, pa.array(MONTHS))
    short = pc.index_in(names, pa.array([m[:3] for m in MONTHS]))
    return pc.add(pc.fill_null(pc.coalesce(whole, short), -1), 1).cast(pa.int64()).to_numpy(zero_copy_only=False)


def _in_utc(local: pa.Array, offsets: pa.Array | None, zone: str) -> pa.Array:
    times = local
    if zone != "UTC":
        assumed = pc.assume_timezone(local, zone, ambiguous="earliest", nonexistent="latest")
        times = assumed.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))
    if offsets is None:
        return times
    written = pc.fill_null(offsets, "").dictionary_encode()
    shifts = [_shift(text) for text in written.dictionary.to_pylist()]
    codes = written.indices.to_numpy(zero_copy_only=False)
    own = np.array([shift is not None for shift in shifts], dtype=bool)[codes]
    moved = np.array([shift or 0 for shift in shifts], dtype=np.int64)[codes]
    ticks = local.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    valid = local.is_valid().to_numpy(zero_copy_only=False) & (moved != _WRONG)
    return pc.if_else(pa.array(own), _built(np.where(valid, ticks - moved, 0), valid), times)


_WRONG = 2**62  # stands for an offset that does not exist, +25:00


def _shift(text: str) -> int | None:
    """Microseconds that an offset is ahead of UTC; None without one."""
    if not text:
        return None
    if text in ("Z", "UTC"):
        return 0
    hours = int(text[1:3])
    minutes = int(text[3:].lstrip(":") or 0)
    if hours > 23 or minutes > 59:
        return _WRONG
    sign = -1 if text[0] == "-" else 1
    return sign * int(datetime.timedelta(hours=hours, minutes=minutes) / datetime.timedelta(microseconds=1))


def find_time_format(values: pa.Array | pa.ChunkedArray) -> str | None:
    """The format of texts that are all times, but not of ISO 8601; None for other texts.

    >>> find_time_format(pa.chunked_array([["31.01.2026 12:30", "01.02.2026 00:00"]]))
    '%d.%m.%Y %H:%M'
    """
    distinct = pc.unique(values)
    formats = [*(f"{day}{clock}" for day in DAYS for clock in CLOCKS), *MOMENTS]
    return next((f for f in formats if len(distinct) and is_written(distinct, f)), None)


def is_written(distinct: pa.Array, format: str | None) -> bool:
    first = distinct.slice(0, 100)
    return not any(times_in(texts, format_of(format)).null_count for texts in (first, distinct))


def are_sorted_like_times(distinct: pa.Array, written: str | None) -> bool:
    """Tell whether texts that are all times in a format, None for ISO 8601, have the order of time by their bytes.

    Those that begin with the year do, without offsets, of one form up to where some end earlier.

    >>> are_sorted_like_times(pa.array(["2024-01-31", "2024-01-31T12:00"]), None)
    True
    """
    if written and (not written.startswith("%Y") or "%I" in written):
        return False
    forms = sorted(pc.unique(pc.replace_substring_regex(distinct, "[0-9]", "9")).to_pylist(), key=len)
    one = all(after.startswith(form) for form, after in pairwise(forms))
    return one and not any(":" in form and re.search(r"[+-]99(:?99)?$", form) for form in forms)


class Unsorted(NamedTuple):
    """Texts that are times and do not sort as times: one of them, the time that an expression makes of it, and why."""

    text: str
    time: str
    expression: str
    why: str
    format: str | None = None

    @property
    def tried(self) -> str:
        """What the expression makes of the text."""
        return f"makes {self.time} of {self.text!r}"


def find_unsorted_times(texts: pa.Array, sorted_too: bool = False) -> Unsorted | None:
    """What to do about texts that are times, of which the order of bytes is not the order of time; with `sorted_too`
    about any texts that are times. None for other texts.

    >>> find_unsorted_times(pa.array(["31.12.2023", "01.01.2024"])).why
    "texts are compared byte by byte: '31.12.2023' comes after '01.01.2024'"
    """
    distinct = pc.unique(texts.drop_null())
    distinct = distinct.filter(pc.match_substring_regex(distinct, "[0-9]"))
    written = find_time_format(distinct)
    if not len(distinct) or (written is None and not is_written(distinct, None)):
        return None
    if not sorted_too and are_sorted_like_times(distinct, written):
        return None
    ordered = distinct.take(pc.sort_indices(distinct))
    why = "texts are compared byte by byte"
    times = times_in(ordered, format_of(written))
    if (back := pc.index(pc.greater(times[:-1], times[1:]), pa.scalar(True)).as_py()) >= 0:
        why += f": {ordered[back + 1].as_py()!r} comes after {ordered[back].as_py()!r}"
    either = (written or "").replace("%d", "%_").replace("%m", "%d").replace("%_", "%m")
    if "%d" in either and not either.startswith("%Y") and is_written(distinct, either):
        why += f"; the format may be {either!r} too: no value tells days from months"
    expression = f"parse_time(_, {written!r})" if written else "parse_time(_)"
    return Unsorted(ordered[0].as_py(), str(times[0]), expression, why, written)
