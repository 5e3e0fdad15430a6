"""The verbs of expressions on numbers, booleans and times: one body for numpy and CuPy.

A column is a `Flat`: values, and which of them are valid; in place of a null there is any value. A literal is a Flat of
one row, which broadcasts. Callers set `numpy.errstate(all="ignore")`: overflow and division are defined here.

An integer beyond its type, and a value that a cast cannot represent, become null; `lost` has their rows and the step.
If the result is null for this reason, `evaluation` raises DataError for the integers and counts the failed casts.
"""

from __future__ import annotations

import operator as op
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from types import ModuleType

import pyarrow as pa

from tasks.engines.algorithms.reductions import all_true, any_true, extremes
from tasks.engines.expression.nodes import Typed
from tasks.engines.expression.type_families import NANOSECONDS, family, unit_of
from tasks.engines.types import Array

INT64_MIN = -(2**63)
INT64_MAX = 2**63 - 1
COMPARISONS = {"==": op.eq, "!=": op.ne, "<": op.lt, "<=": op.le, ">": op.gt, ">=": op.ge}
FEW_ITEMS = 8  # `in` compares with each of so few items; more items are sorted

Lost = tuple[tuple[Typed, Array], ...]  # (step, mask of the rows whose value the step lost)
Bounds = tuple[int, int]


@dataclass(frozen=True)
class Flat:
    """Values and where they are valid (None: everywhere), both arrays of one engine, of n rows or of one.

    `bounds` are a lower and an upper bound of all integers, if they are known without reading the values.
    """

    values: Array
    valid: Array | None = None
    lost: Lost = ()
    bounds: Bounds | None = None


def _meet(a: Array | None, b: Array | None) -> Array | None:
    return b if a is None else a if b is None else a & b


def nan_to_null(flat: Flat, xp: ModuleType) -> Flat:
    """NaN becomes null."""
    if flat.values.dtype.kind != "f":
        return flat
    nan = xp.isnan(flat.values)
    return Flat(flat.values, _meet(flat.valid, ~nan), flat.lost) if any_true(nan) else flat


def drop_answered_losses(flat: Flat) -> Flat:
    """The column, of which rows that are not null are lost no more: another value answered for them."""
    if flat.valid is None:
        return replace(flat, lost=())
    return replace(flat, lost=tuple((step, gone & ~flat.valid) for step, gone in flat.lost))


def numpy_dtype(dtype: pa.DataType) -> str:
    """The name of the numpy type of a Flat of an Arrow type: int64 for times."""
    if family(dtype) == "time":
        return "int64"
    return {"float": "float32", "double": "float64", "halffloat": "float32"}.get(str(dtype), str(dtype))


def arithmetic(step: Typed, a: Flat, b: Flat, xp: ModuleType) -> Flat:
    """+ - * / // % of two columns of one type."""
    verb = step.verb
    valid = _meet(a.valid, b.valid)
    lost = a.lost + b.lost
    whole = a.values.dtype.kind != "f"
    if verb in ("//", "%") and whole:
        return _divide_whole(step, a, b, valid, xp)
    body = {"+": xp.add, "-": xp.subtract, "*": xp.multiply, "/": xp.true_divide, "//": _floor, "%": _modulo}[verb]
    values = body(a.values, b.values, xp) if verb in ("//", "%") else body(a.values, b.values)
    if not whole:
        return nan_to_null(Flat(values, valid, lost), xp)
    bounds = _bounds_of(verb, bounds_of(a), bounds_of(b))
    if _holds(values.dtype, bounds, xp):
        return Flat(values, valid, lost, bounds)
    return _without(Flat(values, valid, lost), step, _leaves(verb, a.values, b.values, values, xp))


def bounds_of(flat: Flat) -> Bounds:
    """A lower and an upper bound of all integers."""
    if flat.bounds is not None:
        return flat.bounds
    if not len(flat.values):
        return 0, 0
    low, high = extremes(flat.values)
    return int(low), int(high)


def _bounds_of(verb: str, a: Bounds, b: Bounds) -> Bounds:
    if verb == "+":
        return a[0] + b[0], a[1] + b[1]
    if verb == "-":
        return a[0] - b[1], a[1] - b[0]
    products = [x * y for x in a for y in b]
    return min(products), max(products)


def _holds(dtype: object, bounds: Bounds, xp: ModuleType) -> bool:
    info = xp.iinfo(dtype)
    return int(info.min) <= bounds[0] and bounds[1] <= int(info.max)


def _leaves(verb: str, a: Array, b: Array, values: Array, xp: ModuleType) -> Array:
    """Where a sum, a difference or a product is beyond its type: `values` has wrapped around there."""
    signed = values.dtype.kind == "i"
    if verb == "+":
        return ((a ^ values) & (b ^ values)) < 0 if signed else values < a
    if verb == "-":
        return ((a ^ b) & (a ^ values)) < 0 if signed else a < b
    safe = xp.where(a == 0, xp.ones_like(a), a)
    wrong = xp.floor_divide(values, safe) != b
    if signed:
        least = values.dtype.type(INT64_MIN)
        wrong |= ((a == -1) & (b == least)) | ((b == -1) & (a == least))
    return (a != 0) & wrong


def _without(flat: Flat, step: Typed, gone: Array) -> Flat:
    """The column with null in the rows `gone`, which the step lost."""
    gone = gone if flat.valid is None else gone & flat.valid
    if not any_true(gone):
        return flat
    return Flat(flat.values, _meet(flat.valid, ~gone), (*flat.lost, (step, gone)))


def _floor(a: Array, b: Array, xp: ModuleType) -> Array:
    return xp.floor(a / b)


def _modulo(a: Array, b: Array, xp: ModuleType) -> Array:
    """Python's %: the exact remainder, with the sign of the divisor, also where it is zero."""
    rest = xp.fmod(a, b)
    return xp.where(rest == 0, xp.copysign(rest, b), xp.where((rest < 0) != (b < 0), rest + b, rest))


def _divide_whole(step: Typed, left: Flat, right: Flat, valid: Array | None, xp: ModuleType) -> Flat:
    """// and % of integers, rounding down; null for a divisor of zero. Division by -1 is a negation."""
    verb = step.verb
    a = left.values
    b = right.values
    minus = (b == -1) if b.dtype.kind == "i" else xp.zeros_like(b, dtype=bool)
    safe = xp.where((b == 0) | minus, xp.ones_like(b), b)
    if verb == "//":
        values = xp.where(minus, xp.negative(a), xp.floor_divide(a, safe))
    else:
        values = xp.where(minus, xp.zeros_like(a), xp.remainder(a, safe))
    zero = b == 0
    quotient = Flat(values, _meet(valid, ~zero) if any_true(zero) else valid, left.lost + right.lost)
    if verb == "//" and any_true(minus):
        return _without(quotient, step, minus & (a == a.dtype.type(INT64_MIN)))
    return quotient


def compare(verb: str, a: Flat, b: Flat) -> Flat:
    return Flat(COMPARISONS[verb](a.values, b.values), _meet(a.valid, b.valid), a.lost + b.lost)


def is_in(a: Flat, items: Sequence[Flat], xp: ModuleType) -> Flat:
    """Whether each value equals one of the literals, which have the same type."""
    if len(items) > FEW_ITEMS:
        return Flat(xp.isin(a.values, xp.concatenate([item.values for item in items])), a.valid, a.lost)
    nowhere = xp.zeros(a.values.shape, dtype=bool)
    return Flat(reduce(lambda so_far, item: so_far | (a.values == item.values), items, nowhere), a.valid, a.lost)


def logic(verb: str, args: Sequence[Flat], xp: ModuleType) -> Flat:
    """`and`, `or` of any number of columns, `not` of one column, in three-valued logic."""
    if verb == "not":
        return Flat(~args[0].values, args[0].valid, args[0].lost)
    return reduce(lambda a, b: _kleene(verb == "and", a, b), args)


def _kleene(both: bool, a: Flat, b: Flat) -> Flat:
    """A non-null side that decides alone (false for `and`, true for `or`) decides; else null if a side is null."""
    values = (a.values & b.values) if both else (a.values | b.values)
    if a.valid is None and b.valid is None:
        return Flat(values)
    decides = [~s.values if both else s.values for s in (a, b)]
    known = [~(s.values ^ s.values) if s.valid is None else s.valid for s in (a, b)]
    decided = (decides[0] & known[0]) | (decides[1] & known[1])
    return drop_answered_losses(Flat(~decided if both else decided, decided | (known[0] & known[1]), a.lost + b.lost))


def function(step: Typed, a: Flat, xp: ModuleType) -> Flat:
    """negate, abs, log, exp, sqrt, sin, cos and round of one column."""
    if step.verb == "round":
        return Flat(_round(a.values, step.value[0], xp), a.valid, a.lost)
    body = getattr(xp, {"negate": "negative"}.get(step.verb, step.verb))
    computed = Flat(body(a.values), a.valid, a.lost)
    if computed.values.dtype.kind != "i":
        return nan_to_null(computed, xp)
    low, high = bounds_of(a)
    if low > INT64_MIN:
        return replace(computed, bounds=(-high, -low) if step.verb == "negate" else (0, max(abs(low), abs(high))))
    return _without(computed, step, a.values == a.values.dtype.type(INT64_MIN))


def _round(values: Array, digits: int, xp: ModuleType) -> Array:
    """Values rounded to `digits` digits, halves to even; values too large for such a fraction stay."""
    power = 10.0**digits
    scaled = values * power
    return xp.where(xp.abs(scaled) < 2.0**52, xp.rint(scaled) / power, values)


def extreme(verb: str, sides: Sequence[Flat], xp: ModuleType) -> Flat:
    """`least` or `greatest` of several columns; nulls are passed over."""
    best = sides[0]
    for side in sides[1:]:
        values = (xp.minimum if verb == "least" else xp.maximum)(best.values, side.values)
        lost = best.lost + side.lost
        if best.valid is None and side.valid is None:
            best = Flat(values, None, lost)
            continue
        a, b = (xp.ones(1, dtype=bool) if s.valid is None else s.valid for s in (best, side))
        best = Flat(xp.where(a & b, values, xp.where(a, best.values, side.values)), a | b, lost)
    return best


def where(condition: Flat, a: Flat, b: Flat, xp: ModuleType) -> Flat:
    """a where the condition is true, b where it is false, null where it is null."""
    values = xp.where(condition.values, a.values, b.values)
    lost = (*condition.lost, *choose_losses(condition, a.lost, b.lost))
    if a.valid is None and b.valid is None:
        return drop_answered_losses(Flat(values, condition.valid, lost))
    valid = [xp.ones(1, dtype=bool) if side.valid is None else side.valid for side in (a, b)]
    return drop_answered_losses(
        Flat(values, _meet(xp.where(condition.values, valid[0], valid[1]), condition.valid), lost)
    )


def choose_losses(condition: Flat, a: Lost, b: Lost) -> Lost:
    """What is lost of two columns between which a condition chooses: nothing where it is null."""
    chosen = [_meet(values, condition.valid) for values in (condition.values, ~condition.values)]
    return tuple((step, gone & taken) for lost, taken in zip((a, b), chosen, strict=True) for step, gone in lost)


def convert(step: Typed, flat: Flat, xp: ModuleType) -> Flat:
    """Numbers, booleans or times in another type; values that it cannot hold become null."""
    here = step.args[0].dtype
    there = step.dtype
    if family(here) == "none":
        return Flat(xp.zeros(1, dtype=numpy_dtype(there)), xp.zeros(1, dtype=bool))
    if family(here) == family(there) == "time":
        flat = _change_unit(step, flat, unit_of(here), unit_of(there), xp)
        return _to_integer(step, flat, -(2**31), 2**31 - 1, "int64", xp) if unit_of(there) == "day" else flat
    if family(there) == "bool":
        return Flat(flat.values != 0, flat.valid, flat.lost)
    if family(there) == "float":
        return _to_float(step, flat, numpy_dtype(there), xp)
    info = xp.iinfo("int32" if pa.types.is_date32(there) else numpy_dtype(there))
    return _to_integer(step, flat, int(info.min), int(info.max), numpy_dtype(there), xp)


def _to_float(step: Typed, flat: Flat, name: str, xp: ModuleType) -> Flat:
    converted = Flat(flat.values.astype(name), flat.valid, flat.lost)
    if name == "float64" or flat.values.dtype.kind != "f":
        return converted
    infinite = xp.isinf(converted.values)
    return _without(converted, step, infinite & xp.isfinite(flat.values)) if any_true(infinite) else converted


def _to_integer(step: Typed, flat: Flat, least: int, most: int, name: str, xp: ModuleType) -> Flat:
    values = flat.values
    if values.dtype.kind == "f":
        values = xp.trunc(values)
        fits = (values >= float(least)) & (values < float(most + 1))
    elif values.dtype.kind == "b":
        return Flat(values.astype(name), flat.valid, flat.lost, (0, 1))
    else:
        info = xp.iinfo(values.dtype)
        bounds = flat.bounds or (int(info.min), int(info.max))
        if least <= bounds[0] and bounds[1] <= most:
            wide = values.dtype.itemsize < 8 or flat.bounds is not None
            return Flat(values.astype(name), flat.valid, flat.lost, bounds if wide else None)
        fits = (values >= max(least, int(info.min))) & (values <= min(most, int(info.max)))
    if all_true(fits):
        return Flat(values.astype(name), flat.valid, flat.lost)
    return _without(
        Flat(xp.where(fits, values, xp.zeros_like(values)).astype(name), flat.valid, flat.lost), step, ~fits
    )


def _change_unit(step: Typed, flat: Flat, here: str, there: str, xp: ModuleType) -> Flat:
    """Times in another unit: rounded down in a coarser one, null where a finer one cannot hold the count."""
    multiply, divide = _factors(here, there)
    if multiply == 1:
        return Flat(flat.values // divide if divide > 1 else flat.values, flat.valid, flat.lost)
    fits = (flat.values >= -(INT64_MAX // multiply)) & (flat.values <= INT64_MAX // multiply)
    if all_true(fits):
        return Flat(flat.values * multiply, flat.valid, flat.lost)
    return _without(Flat(xp.where(fits, flat.values, 0) * multiply, flat.valid, flat.lost), step, ~fits)


def ticks(flat: Flat, here: str, there: str, xp: ModuleType) -> Flat:
    """Times as counts of a unit that is as fine or finer, clipped to int64, for comparisons."""
    multiply, _ = _factors(here, there)
    if multiply == 1:
        return flat
    ends = -(INT64_MAX // multiply), INT64_MAX // multiply
    return Flat(xp.clip(flat.values, *ends) * multiply, flat.valid, flat.lost)


def _factors(here: str, there: str) -> tuple[int, int]:
    """(multiplier, divisor) from counts of one unit to counts of another."""
    a = NANOSECONDS[here]
    b = NANOSECONDS[there]
    return (a // b, 1) if a >= b else (1, b // a)
