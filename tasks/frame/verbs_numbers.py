"""The verbs of expressions on numbers, truth values and times: one body for numpy and CuPy.

A column is flat here: plain values, and where they are valid. What stands in a null's place is any value. A literal is
a flat column of one row, which broadcasts. Run under `numpy.errstate(all="ignore")`: overflow and division are defined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from types import ModuleType
from typing import Any

import pyarrow as pa

from tasks.frame.expression_types import NANOSECONDS, family, unit_of
from tasks.frame.whole import all_true, any_true

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
FEW_ITEMS = 8


@dataclass(frozen=True)
class Flat:
    """Values and where they are valid (None: everywhere), both arrays of one engine, of n rows or of one."""

    values: Any
    valid: Any | None = None


def _meet(a: Any | None, b: Any | None) -> Any | None:
    return b if a is None else a if b is None else a & b


def nan_to_null(flat: Flat, xp: ModuleType) -> Flat:
    """NaN becomes null."""
    if flat.values.dtype.kind != "f":
        return flat
    nan = xp.isnan(flat.values)
    return Flat(flat.values, _meet(flat.valid, ~nan)) if any_true(nan) else flat


def numpy_dtype(dtype: pa.DataType) -> str:
    """The name of the numpy type in which values of an Arrow type are flat: int64 for times."""
    if family(dtype) == "time":
        return "int64"
    return {"float": "float32", "double": "float64", "halffloat": "float32"}.get(str(dtype), str(dtype))


def arithmetic(verb: str, a: Flat, b: Flat, xp: ModuleType) -> Flat:
    """+ - * / // % of two columns of one type."""
    valid = _meet(a.valid, b.valid)
    if verb in ("//", "%") and a.values.dtype.kind != "f":
        return _divide_whole(verb, a.values, b.values, valid, xp)
    body = {"+": xp.add, "-": xp.subtract, "*": xp.multiply, "/": xp.true_divide, "//": _floor, "%": _modulo}[verb]
    values = body(a.values, b.values, xp) if verb in ("//", "%") else body(a.values, b.values)
    return nan_to_null(Flat(values, valid), xp)


def _floor(a: Any, b: Any, xp: ModuleType) -> Any:
    return xp.floor(a / b)


def _modulo(a: Any, b: Any, xp: ModuleType) -> Any:
    """Python's %: the exact remainder, with the sign of the divisor."""
    rest = xp.fmod(a, b)
    return xp.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


def _divide_whole(verb: str, a: Any, b: Any, valid: Any | None, xp: ModuleType) -> Flat:
    """Whole division rounding down; by zero null. By -1 it is a negation, which wraps."""
    minus = (b == -1) if b.dtype.kind == "i" else xp.zeros_like(b, dtype=bool)
    safe = xp.where((b == 0) | minus, xp.ones_like(b), b)
    if verb == "//":
        values = xp.where(minus, xp.negative(a), xp.floor_divide(a, safe))
    else:
        values = xp.where(minus, xp.zeros_like(a), xp.remainder(a, safe))
    zero = b == 0
    return Flat(values, _meet(valid, ~zero) if any_true(zero) else valid)


def compare(verb: str, a: Flat, b: Flat, xp: ModuleType) -> Flat:
    body = {
        "==": xp.equal,
        "!=": xp.not_equal,
        "<": xp.less,
        "<=": xp.less_equal,
        ">": xp.greater,
        ">=": xp.greater_equal,
    }
    return Flat(body[verb](a.values, b.values), _meet(a.valid, b.valid))


def is_in(a: Flat, items: Sequence[Flat], xp: ModuleType) -> Flat:
    """Whether a value is one of the literals, which have its type."""
    if len(items) > FEW_ITEMS:
        return Flat(xp.isin(a.values, xp.concatenate([item.values for item in items])), a.valid)
    found = xp.zeros(a.values.shape, dtype=bool)
    return Flat(reduce(lambda so_far, item: so_far | (a.values == item.values), items, found), a.valid)


def logic(verb: str, args: Sequence[Flat], xp: ModuleType) -> Flat:
    """and, or of any number of columns and not of one, in three-valued logic."""
    if verb == "not":
        return Flat(~args[0].values, args[0].valid)
    return reduce(lambda a, b: _kleene(verb == "and", a, b), args)


def _kleene(both: bool, a: Flat, b: Flat) -> Flat:
    """A known side that decides (false for and, true for or) decides; else null if one side is null."""
    values = (a.values & b.values) if both else (a.values | b.values)
    if a.valid is None and b.valid is None:
        return Flat(values)
    decides = [~s.values if both else s.values for s in (a, b)]
    known = [~(s.values ^ s.values) if s.valid is None else s.valid for s in (a, b)]
    decided = (decides[0] & known[0]) | (decides[1] & known[1])
    return Flat(~decided if both else decided, decided | (known[0] & known[1]))


def function(verb: str, a: Flat, digits: int | None, xp: ModuleType) -> Flat:
    """negate, abs, log, exp, sqrt and round of one column."""
    if verb == "round":
        return Flat(_round(a.values, digits or 0, xp), a.valid)
    body = {"negate": xp.negative, "abs": xp.absolute, "log": xp.log, "exp": xp.exp, "sqrt": xp.sqrt}[verb]
    return nan_to_null(Flat(body(a.values), a.valid), xp)


def _round(values: Any, digits: int, xp: ModuleType) -> Any:
    """Halves to even, of values times a power of ten; values without a fraction at that size stay."""
    power = 10.0**digits
    scaled = values * power
    return xp.where(xp.abs(scaled) < 2.0**52, xp.rint(scaled) / power, values)


def where(condition: Flat, a: Flat, b: Flat, xp: ModuleType) -> Flat:
    """a where the condition is true, b where it is false, null where it is null."""
    values = xp.where(condition.values, a.values, b.values)
    if a.valid is None and b.valid is None:
        return Flat(values, condition.valid)
    valid = [xp.ones(1, dtype=bool) if side.valid is None else side.valid for side in (a, b)]
    return Flat(values, _meet(xp.where(condition.values, valid[0], valid[1]), condition.valid))


def convert(flat: Flat, here: pa.DataType, there: pa.DataType, xp: ModuleType) -> Flat:
    """Another type for numbers, truth values and times; values that it cannot hold become null."""
    if family(here) == "none":
        return Flat(xp.zeros(1, dtype=numpy_dtype(there)), xp.zeros(1, dtype=bool))
    if family(here) == family(there) == "time":
        flat = _change_unit(flat, unit_of(here), unit_of(there), xp)
        return _to_integer(flat, -(2**31), 2**31 - 1, "int64", xp) if unit_of(there) == "day" else flat
    if family(there) == "bool":
        return Flat(flat.values != 0, flat.valid)
    if family(there) == "float":
        return Flat(flat.values.astype(numpy_dtype(there)), flat.valid)
    info = xp.iinfo("int32" if pa.types.is_date32(there) else numpy_dtype(there))
    return _to_integer(flat, int(info.min), int(info.max), numpy_dtype(there), xp)


def _to_integer(flat: Flat, least: int, most: int, name: str, xp: ModuleType) -> Flat:
    values = flat.values
    if values.dtype.kind == "f":
        values = xp.trunc(values)
        fits = (values >= float(least)) & (values < float(most + 1))
    elif values.dtype.kind == "b":
        return Flat(values.astype(name), flat.valid)
    else:
        info = xp.iinfo(values.dtype)
        if least <= int(info.min) and int(info.max) <= most:
            return Flat(values.astype(name), flat.valid)
        fits = (values >= max(least, int(info.min))) & (values <= min(most, int(info.max)))
    values = xp.where(fits, values, xp.zeros_like(values)).astype(name)
    return Flat(values, _meet(flat.valid, fits) if not all_true(fits) else flat.valid)


def _change_unit(flat: Flat, here: str, there: str, xp: ModuleType) -> Flat:
    """Times in another unit: a coarser one rounds down, what is out of range of a finer one becomes null."""
    multiply, divide = _factors(here, there)
    if multiply == 1:
        return Flat(flat.values // divide if divide > 1 else flat.values, flat.valid)
    fits = (flat.values >= -(INT64_MAX // multiply)) & (flat.values <= INT64_MAX // multiply)
    return Flat(
        xp.where(fits, flat.values, 0) * multiply, _meet(flat.valid, fits) if not all_true(fits) else flat.valid
    )


def ticks(flat: Flat, here: str, there: str, xp: ModuleType) -> Flat:
    """Times as counts of a unit that is as fine or finer, held within int64, for comparing."""
    multiply, _ = _factors(here, there)
    if multiply == 1:
        return flat
    return Flat(xp.clip(flat.values, -(INT64_MAX // multiply), INT64_MAX // multiply) * multiply, flat.valid)


def _factors(here: str, there: str) -> tuple[int, int]:
    """By how much counts are multiplied and then divided."""
    a, b = NANOSECONDS[here], NANOSECONDS[there]
    return (a // b, 1) if a >= b else (1, b // a)
