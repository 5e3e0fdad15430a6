"""What is to become of each column, and why."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flows.draft.names import is_amount_name, is_code_name, is_id_name, is_time_name
from flows.draft.whole_numbers import are_codes, are_row_numbers, numbers_of
from flows.draft.written_values import TIME, all_match, detect_number_signs, marks_in, writes
from tasks.core.dtypes import dtype_name, is_list, leaf_type
from tasks.core.schema import Column
from tasks.engines.algorithms.text_times import find_time_format, is_written
from tasks.engines.algorithms.written_numbers import SIGNS
from tasks.engines.expression.text_functions import parse_number

OWN_VALUE = "take it in if a part of it means something"
LARGE = 5_000  # values of the sample from which a vocabulary gets a limit
UNIQUE_FROM = 20  # values that must all differ before a column counts as unique
FREE_TEXT = 60  # characters of a text on average
SKEWED = 2.0
INDEX = re.compile(r"(Unnamed: 0|index|__index_level_0__)?")  # as pandas writes the numbers of rows
EITHER = {"%m/%d/%Y": "%d/%m/%Y", "%m/%d/%y": "%d/%m/%y"}  # formats that the same texts may have
SHARED = 0.5  # of the values of the smaller of two columns, from which both columns get one vocabulary
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
YEARS = 631_152_000, 4_102_444_800  # seconds from 1970 to 1990 and to 2100
# Times that are written by digits alone, and how many they have. The hour of Avazu is 14102100.
DIGITS = {"%Y%m%d": 8, "%y%m%d": 6, "%y%m%d%H": 8, "%Y%m%d%H": 10, "%Y%m%d%H%M": 12, "%Y%m%d%H%M%S": 14}
SURE_OF_DIGITS = 3  # distinct values: fewer seconds since 1970 may look like 2033-12-01 10h by chance
# years of times that are written by digits
EARLIEST = 1800
LATEST = 2100
SEPARATORS = ("|", ";", ", ", ",", " ")
LISTING = 0.2  # of the distinct texts that have one of them, before they count as lists
NEARLY_UNIQUE = 0.9  # of the rows: texts with so many values are names or numbers of rows, not codes
OPAQUE = r"^[!-~]+$"  # hashes, keys and addresses: texts without blanks
DAY_PARTS = ["weekday", "day", "month", "year"]
ALL_PARTS = ["hour", "minute", *DAY_PARTS]


@dataclass(frozen=True)
class Decision:
    """What is to become of one column, and why. Without `ops` the draft leaves the column out. The columns of `group`
    share a vocabulary."""

    name: str
    why: str
    ops: tuple[Mapping[str, Any], ...] = ()
    group: tuple[str, ...] = ()


def decide(column: Column, sample: pa.ChunkedArray, whole: bool, number_texts: bool = False) -> Decision:
    """What is to become of a column, by its name, its type and a sample; `whole`: the sample is all rows;
    `number_texts`: its numbers stay text."""
    name = column.name
    dtype = leaf_type(column.dtype)
    if is_list(dtype_of := column.dtype) and is_list(dtype_of.value_type):
        return Decision(name, f"no operator takes {dtype_name(dtype_of)}")
    kind = f"{'list of ' if is_list(column.dtype) else ''}{dtype_name(dtype)}"
    values = (pc.list_flatten(sample) if is_list(column.dtype) else sample).drop_null()
    nulls = len(sample) - len(values) if not is_list(column.dtype) else 0
    where = "" if whole else " of the sample"
    if not len(values):
        return Decision(name, f"every value{where} is null")
    is_time = pa.types.is_timestamp(dtype) or pa.types.is_date(dtype)
    if not (is_number(dtype) or pa.types.is_decimal(dtype) or pa.types.is_string(dtype) or is_time):
        hint = "; source.explode makes rows of its elements" if is_list(column.dtype) else ""
        return Decision(name, f"the draft has no operator for {dtype_name(column.dtype)}{hint}")
    distinct = len(pc.unique(values))
    if distinct == 1 and not nulls and len(sample) > 1:
        if whole:
            return Decision(name, "every row has the same value")
        kind += ", the same value in every row of the sample (if all rows have it, leave it out)"
    if is_time or (pa.types.is_string(dtype) and all_match(values, TIME)):
        if is_list(column.dtype):
            return Decision(name, f"DateParts takes no {kind}s")
        days = pa.types.is_date(dtype) or (pa.types.is_string(dtype) and pc.max(pc.utf8_length(values)).as_py() == 10)
        parts: dict[str, Any] = {"parts": DAY_PARTS} if days else {}
        what = "a date: its parts" if days else "a time: its parts, in UTC"
        return Decision(name, f"{kind}, {what}", ({"op": "DateParts", **parts},))
    named_id = number_texts or (is_id_name(name) and not _has_fractions(values))
    text = pa.types.is_string(dtype)
    if not is_list(column.dtype) and is_time_name(name) and (decision := _decide_numeric_time(name, values)):
        return decision
    if text and not named_id and not is_list(column.dtype) and (decision := _in_texts(name, values, nulls, whole)):
        return decision
    if INDEX.fullmatch(name) and is_number(dtype) and distinct == len(values) and not nulls:
        return Decision(name, f"it looks like the index of a frame: every row{where} has a number of its own")
    if text and distinct > len(values) // 2 and _is_free_text(values):
        return Decision(name, f"free text: {distinct:,} values of {FREE_TEXT} characters and more on average")
    if (text or named_id) and distinct == len(values) >= UNIQUE_FROM and not is_list(column.dtype):
        return Decision(name, f"every row{where} has a value of its own; {OWN_VALUE}")
    nearly_unique = len(values) >= UNIQUE_FROM and distinct > NEARLY_UNIQUE * len(values)
    if text and not named_id and whole and not is_list(column.dtype) and nearly_unique:
        return Decision(name, f"{distinct:,} values in {len(values):,} rows: nearly every row has a value of its own")
    seen = f"{kind}, {distinct:,} value(s){where}"
    if distinct == 1 and nulls:
        return _category(name, f"{seen}, else null, which gets an id of its own", distinct, False, values)
    if text or pa.types.is_boolean(dtype) or named_id:
        return _category(name, seen, distinct, False, values)
    if _are_whole(values, nulls) and len(values) >= UNIQUE_FROM:
        numbers = numbers_of(values)
        if not is_list(column.dtype) and not _has_own_meaning(name) and are_row_numbers(numbers):
            return Decision(name, f"it counts the rows{where}, from which nothing can be learned")
        if is_code_name(name) and distinct == len(values):
            return Decision(name, f"every row{where} has a value of its own; {OWN_VALUE}")
        if are_codes(name, numbers):
            return _category(name, seen, distinct, True, values)
    return _amount(name, kind, values.cast(pa.float64(), safe=False), nulls, whole, is_list(column.dtype))


def _has_fractions(values: pa.ChunkedArray) -> bool:
    """Tell whether numbers are not all whole, as ids are."""
    if not pa.types.is_floating(values.type):
        return False
    return not pc.all(pc.equal(values, pc.trunc(values))).as_py()


def _has_own_meaning(name: str) -> bool:
    """Tell whether a name says that numbers tell more than which row it is."""
    return is_time_name(name) or is_amount_name(name)


def _are_whole(values: pa.ChunkedArray, nulls: int) -> bool:
    """Whether numbers are whole; floats only where there are nulls, for which pandas makes floats of whole numbers."""
    if pa.types.is_integer(values.type):
        return not pa.types.is_uint64(values.type) or pc.max(values).as_py() < 2**63
    return pa.types.is_floating(values.type) and nulls > 0 and not _has_fractions(values) and _is_int64(values)


def _is_int64(values: pa.ChunkedArray) -> bool:
    low, high = pc.min_max(values).as_py().values()
    return bool(low >= -(2**53) and high <= 2**53)


def _is_free_text(values: pa.ChunkedArray) -> bool:
    """Tell whether texts are sentences: long, and with blanks in them."""
    long = pc.mean(pc.utf8_length(values)).as_py() > FREE_TEXT
    return bool(long) and not all_match(values, OPAQUE)


def _in_texts(name: str, values: pa.ChunkedArray, nulls: int, whole: bool) -> Decision | None:
    """What is to become of texts that write times or numbers; None for other texts."""
    others, marks = marks_in(values)
    lost = f"; {', '.join(map(json.dumps, marks))} in it becomes null" if marks else ""
    if written := find_time_format(others):
        day = written.split(" %H")[0].split(" %I")[0]
        either = EITHER.get(day)
        if either and is_written(pc.unique(others), written.replace(day, either)):
            lost += f"; it might be {either}, too: look which it is"
        parse = {"op": "Lambda", "expression": f"parse_time(_, {written!r})"}
        parts: dict[str, Any] = {"parts": DAY_PARTS} if written == day else {}
        why = f"string, a time as {written}: its parts, in UTC{lost}"
        return Decision(name, why, (parse, {"op": "DateParts", **parts}))
    if signs := detect_number_signs(others):
        decimal, group = signs
        if other := next((s for s in SIGNS if s != signs and writes(pc.unique(others), s)), None):
            lost += f"; it might be decimal={other[0]!r}, too: look which it is"
        arguments = f"decimal={decimal!r}" + (f", group={group!r}" if group else "")
        numbers = pa.chunked_array([parse_number(others.combine_chunks(), decimal, group)[0]])
        amount = _amount(
            name, f"string, a number with {arguments}", numbers, nulls + len(values) - len(others), whole, False
        )
        parse = {"op": "Lambda", "expression": f"parse_number(_, {arguments})"}
        return Decision(name, f"{amount.why}{lost}", (parse, *amount.ops) if amount.ops else ())
    return _decide_delimited_list(name, values, whole)


def _decide_delimited_list(name: str, values: pa.ChunkedArray, whole: bool) -> Decision | None:
    """What is to become of texts such as Comedy|Drama, which list a few values; None for other texts."""
    distinct = pc.unique(values)
    for sign in SEPARATORS:
        listing = pc.match_substring(distinct, sign)
        if len(distinct) < UNIQUE_FROM or pc.mean(listing).as_py() < LISTING:
            continue
        if sign == "," and pc.any(pc.match_substring(distinct, ", ")).as_py():
            continue  # sentences, or values with a comma in them
        lists = pc.split_pattern(distinct, sign)
        parts = pc.unique(pc.list_flatten(lists))
        if _are_lists(lists, parts, sign):
            seen = f"string, lists of {len(parts):,} value(s){'' if whole else ' of the sample'} with {sign!r} between"
            category = _category(name, seen, len(parts), False, pa.chunked_array([parts]))
            split = {"op": "Lambda", "expression": f"split(_, {sign!r})"}
            lost = "; if each text is one value, write Categorify alone" if sign == " " else ""
            return Decision(name, f"{category.why}{lost}", (split, *category.ops))
    return None


def _are_lists(lists: pa.Array, parts: pa.Array, sign: str) -> bool:
    """Tell whether texts with a sign between their parts list values: there are fewer values than texts."""
    if sign == " ":
        return _are_words_of_lists(lists)
    if sign == ", " and len(pc.unique(pc.list_value_length(lists))) < 2:
        return False  # Rome, Italy; Doe, Jane
    return 2 * len(parts) <= len(lists)


def _are_words_of_lists(lists: pa.Array) -> bool:
    """Whether words with spaces between are values of lists, not names or sentences: none has other signs than letters,
    digits, - and _, none stands twice in a text, most occur in several texts, and most of those that begin a text stand
    behind others, too."""
    words = pc.list_flatten(lists)
    if not pc.all(pc.match_substring_regex(words, r"^[\p{L}\d_-]+$")).as_py() or 2 * len(pc.unique(words)) > len(words):
        return False
    texts = [text for text in lists.to_pylist() if text]
    if any(len({*text}) < len(text) for text in texts) or len({*map(len, texts)}) < 2:
        return False
    first = {text[0] for text in texts}
    behind = {word for text in texts for word in text[1:]}
    return 2 * len(first & behind) > len(first)


def _decide_numeric_time(name: str, values: pa.ChunkedArray) -> Decision | None:
    """What is to become of numbers, or texts of digits, that count time since 1970 or write a time by digits alone,
    such as 20260131 or 14102100; None for others."""
    kind = dtype_name(values.type)
    if pa.types.is_string(values.type):
        if not all_match(values, "^[0-9]{8,18}$"):
            return None
        numbers = values.cast(pa.int64())
        number = "cast(_, 'int64')"
        text = "_"
    elif pa.types.is_integer(values.type):
        numbers = values
        number = "_"
        text = "cast(_, 'string')"
    elif pa.types.is_floating(values.type) and pc.all(pc.is_finite(values)).as_py():
        numbers = values
        number = "cast(_, 'int64')"
        text = f"cast({number}, 'string')"
    else:
        return None
    if not _has_fractions(numbers) and (written := _digits_of_time(numbers)):
        read = {"op": "Lambda", "expression": f"parse_time({text}, {written!r})"}
        if "%H" in written:
            return Decision(name, f"{kind}, a time as {written}: its parts", (read, {"op": "DateParts"}))
        parts = {"op": "DateParts", "parts": DAY_PARTS}
        return Decision(name, f"{kind}, a day as {written}: its parts", (read, parts))
    low, high = pc.min_max(numbers).as_py().values()
    for unit, ticks in UNITS.items():
        if YEARS[0] * ticks <= low and high < YEARS[1] * ticks:
            read = {"op": "Lambda", "expression": f"cast({number}, 'timestamp[{unit}]')"}
            why = f"{kind}, named like a time and counting {unit} from 1970: its parts, in UTC"
            return Decision(name, why, (read, {"op": "DateParts"}))
    return None


def _digits_of_time(numbers: pa.ChunkedArray) -> str | None:
    """Return the format of whole numbers that write a time by digits alone; None for others."""
    low, high = (int(end) for end in pc.min_max(numbers).as_py().values())
    if not 0 < low <= high < 2**63:
        return None
    distinct = pc.unique(numbers)
    for written, length in DIGITS.items():
        if not len(str(low)) == len(str(high)) == length:
            continue
        years = int(str(low)[:4]), int(str(high)[:4])
        if written.startswith("%Y") and not EARLIEST <= years[0] <= years[1] < LATEST:
            continue
        if "%H" in written and len(distinct) < SURE_OF_DIGITS:
            continue
        if is_written(distinct.cast(pa.int64()).cast(pa.string()), written):
            return written
    return None


def _category(name: str, seen: str, distinct: int, codes: bool, values: pa.ChunkedArray) -> Decision:
    spec: dict[str, Any] = {"op": "Categorify"}
    if distinct > LARGE:
        spec |= {"freq_threshold": 2, "max_size": 1_000_000}
        seen += ": values that occur once share an id, and there are 1,000,000 ids at most"
    elif codes and not pa.types.is_boolean(values.type):
        seen += ": taken as codes; if it is an amount, write Normalize"
    if pa.types.is_string(values.type) and (marks := marks_in(values)[1]):
        seen += f"; {', '.join(map(json.dumps, marks))} in it may mean null: if so, name it in source.null_values"
    return Decision(name, seen, (spec,))


def _amount(name: str, kind: str, values: pa.ChunkedArray, nulls: int, whole: bool, lists: bool) -> Decision:
    finite = values.filter(pc.is_finite(values))
    if len(finite) < len(values):
        return Decision(name, "it has infinities, which Normalize refuses: fix them, or begin with Clip")
    ops: list[Mapping[str, Any]] = []
    words = []
    if nulls:
        median = pc.quantile(values, 0.5, interpolation="lower")[0].as_py()
        zeros = median == 0 <= pc.min(values).as_py()
        ops.append({"op": "FillMissing"} if zeros else {"op": "FillMedian"})
        seen = f"{nulls:,} null(s){'' if whole else ' in the sample'}"
        words.append(f"filled with {'0, its most common value' if zeros else 'the median'}")
    else:
        seen = "no null" if whole else "no null in the sample"
        if not whole or lists:
            ops.append({"op": "FillMissing"})
            words.append("others are filled with 0")
    skew = pc.skew(values).as_py()
    if pc.min(values).as_py() >= 0 and skew is not None and skew > SKEWED:
        ops.append({"op": "LogOp"})
        words.append(f"logarithm (skewness {skew:.1f})")
    ops.append({"op": "Normalize"})
    return Decision(name, f"{kind}, {seen}: {', '.join([*words, 'scaled'])}", tuple(ops))


def without_clashes(decisions: Iterable[Decision], names: Sequence[str]) -> list[Decision]:
    """Return the same decisions; parts of times get another prefix where a column has their name already."""
    taken = set(names)
    result = []
    for decision in decisions:
        if decision.ops and decision.ops[-1]["op"] == "DateParts":
            prefix = decision.name
            while any(f"{prefix}_{part}" in taken for part in ALL_PARTS):
                prefix += "_part"
            if prefix != decision.name:
                decision = Decision(
                    decision.name, decision.why, (*decision.ops[:-1], {**decision.ops[-1], "prefix": prefix})
                )
        result.append(decision)
    return result


def joint(decisions: Sequence[Decision], sample: pa.Table) -> list[Decision]:
    """Return the same decisions; columns of ids that share most of their values share a vocabulary.

    Numbers count from 1 in every table: they share one only where their names end alike, such as user_id and
    friend_user_id.
    """
    values = {
        d.name: pc.unique(sample.column(d.name).drop_null())
        for d in decisions
        if d.ops and d.ops[0]["op"] == "Categorify" and not is_list(sample.schema.field(d.name).type)
    }
    groups: dict[str, list[str]] = {}
    for name in values:
        for other in values:
            if other == name:
                groups[name] = [name]
                break
            if groups[other][0] == other and _shares(name, other, values):
                groups[name] = groups[other]
                groups[name].append(name)
                break
    specs = {d.name: d.ops[0] for d in decisions if d.ops}
    result = []
    for decision in decisions:
        members = tuple(groups.get(decision.name, ()))
        if len(members) > 1:
            largest = max((specs[member] for member in members), key=len)
            decision = Decision(decision.name, decision.why, (largest,), members)
        result.append(decision)
    return result


def _shares(name: str, other: str, values: Mapping[str, pa.Array]) -> bool:
    one = values[name]
    two = values[other]
    if one.type != two.type or min(len(one), len(two)) < UNIQUE_FROM:
        return False
    if not pa.types.is_string(one.type) and not (name.endswith(f"_{other}") or other.endswith(f"_{name}")):
        return False
    smaller, larger = sorted((one, two), key=len)
    return bool(pc.sum(pc.is_in(smaller, value_set=larger)).as_py() >= SHARED * len(smaller))


def is_number(dtype: pa.DataType) -> bool:
    return pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_boolean(dtype)
