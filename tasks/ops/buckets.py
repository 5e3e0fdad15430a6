"""Values to a fixed number of buckets: by boundaries, or by hash."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pydantic import model_validator

from tasks import engines
from tasks.core.schema import Column, Schema, Tags
from tasks.errors import JobError, near
from tasks.ops.base import Columns, Context, Operator, Series, Unit

MOST = 2**31 - 1  # ids are int32


class Bucketize(Operator):
    """Replace each value by the number of boundaries at or below it, int32; null stays null.

    Parameters
    ----------
    boundaries : list of float, or dict of str to list of float
        Edges in the column's own unit, ascending: [0, 10, 100] makes four buckets, numbered 0 to 3. A list holds for
        all columns, a dict has a list for each column.

    Notes
    -----
    There are no values between equal boundaries. In list columns, the elements are put into buckets: a null element and
    a null list stay null. Integers are compared exactly with any boundary, floats and decimals as float64. Infinities
    are below or above every finite boundary; a boundary may be infinite itself.

    Errors: a JobError for boundaries that are empty, descend or contain NaN, and for a column that the dict lacks.

    Source: numpy.digitize(right=False).

    Examples
    --------
    >>> from rowmill import Workflow
    >>> table = pa.table({"age": [5, 10, 99, None]})
    >>> Workflow(["age"] >> Bucketize([10, 20])).fit(table).transform(table).to_pydict()
    {'age': [0, 1, 2, None]}
    >>> Bucketize([20, 10])
    Traceback (most recent call last):
    ...
    tasks.errors.JobError: Bucketize: boundaries must ascend: [20, 10]
    """

    boundaries: list[int | float] | dict[str, list[int | float]]
    in_float64 = True
    takes = frozenset({"number", "bool"})
    leaves = True
    adds_tags = frozenset({Tags.CATEGORICAL.value})

    @model_validator(mode="after")
    def _ascending(self) -> Bucketize:
        for edges in self.boundaries.values() if isinstance(self.boundaries, dict) else [self.boundaries]:
            if not edges:
                raise ValueError("boundaries must not be empty")
            if any(math.isnan(edge) for edge in edges) or any(a > b for a, b in pairwise(edges)):
                raise ValueError(f"boundaries must ascend: {edges}")
        return self

    def _edges(self, name: str) -> list[int | float]:
        if not isinstance(self.boundaries, dict):
            return self.boundaries
        if name not in self.boundaries:
            raise JobError(f"Bucketize has no boundaries for column {name!r}", do=near(name, self.boundaries))
        return self.boundaries[name]

    def outputs(self, unit: Unit, schema: Schema, fitted: object) -> list[Column]:
        return [with_cardinality(self.output(schema[name]), len(self._edges(name)) + 1) for name in unit]

    def dtype_out(self, column: Column) -> pa.DataType:
        return pa.int32()

    def apply(self, columns: Columns, unit: Unit, fitted: object, context: Context) -> Columns:
        out = {}
        for name in unit:
            column = columns[name]
            edges = self._edges(name)
            if context.engine.is_list(column):
                codes = bucket(context.engine.leaves(column), edges)
                out[name] = context.engine.with_leaves(column, codes)
            else:
                out[name] = bucket(column, edges)
        return out


def bucket(column: Series, edges: Sequence[int | float]) -> Series:
    """Count the edges at or below each value, int32; null stays. Integers are compared exactly with any edge."""
    engine = engines.engine_of(column)
    values, valid = engine.numbers(column)
    if values.dtype.kind in "iu":
        low = np.iinfo(values.dtype).min
        high = np.iinfo(values.dtype).max
        table = engine.xp.asarray([low if e < low else math.ceil(e) for e in edges if e <= high], dtype=values.dtype)
    else:
        table = engine.xp.asarray(edges, dtype="float64")
        values = values.astype("float64")
    places = engine.xp.searchsorted(table, values, side="right") if len(table) else engine.xp.zeros(len(values))
    return engine.from_numbers(places.astype("int32"), valid)


class HashBucket(Operator):
    """Replace each value by its hash mod `num_buckets`, int32: the same on CPU, GPU and in every version.

    Parameters
    ----------
    num_buckets : int, or dict of str to int
        Number of buckets, 1 to 2^31 - 1: one for all columns, or a dict with one for each column.

    Notes
    -----
    There is no vocabulary, so different values may share a bucket. A null has the hash 0xFFFFFFFF, so the output has no
    null; of list columns the elements are hashed, and null lists stay null. An infinity is a value like any other.

    The hash is MurmurHash3_x86_32 (seed 0) of the value's canonical bytes: integers, booleans and times (in
    microseconds) as int64, dates as days in int64, whole floats as the integer that they are, other floats as float64,
    decimals as text, text as UTF-8. So an id has one bucket whether a file stores it as 7 or as 7.0. A workflow that
    was fitted by an older version of rowmill hashes every float as float64, also in refits.

    Errors: a JobError for `num_buckets` out of range, and for a column that the dict lacks.

    Source: Appleby, MurmurHash3.

    Examples
    --------
    >>> from rowmill import Workflow
    >>> table = pa.table({"user": [10, 11, None]})
    >>> Workflow(["user"] >> HashBucket(100)).fit(table).transform(table).to_pydict()
    {'user': [76, 7, 95]}
    >>> HashBucket(0)
    Traceback (most recent call last):
    ...
    tasks.errors.JobError: HashBucket: num_buckets is 1 to 2,147,483,647, not 0
    """

    num_buckets: int | dict[str, int]
    takes = frozenset({"number", "string", "bool", "time"})
    leaves = True
    encoded = plain_too = True
    adds_tags = frozenset({Tags.CATEGORICAL.value})

    @model_validator(mode="after")
    def _check_parameters(self) -> HashBucket:
        _check_buckets(self.num_buckets)
        return self

    def outputs(self, unit: Unit, schema: Schema, fitted: object) -> list[Column]:
        return [with_cardinality(self.output(schema[n]), _buckets_of(self.num_buckets, n, "HashBucket")) for n in unit]

    def dtype_out(self, column: Column) -> pa.DataType:
        return pa.int32()

    def apply(self, columns: Columns, unit: Unit, fitted: object, context: Context) -> Columns:
        engine = context.engine
        out = {}
        for name in unit:
            column = columns[name]
            buckets = _buckets_of(self.num_buckets, name, "HashBucket")
            if engine.is_list(column):
                out[name] = engine.with_leaves(column, hash_to_buckets([engine.leaves(column)], buckets, context))
            else:
                out[name] = hash_to_buckets([column], buckets, context)
        return out


class HashedCross(Operator):
    """Replace a group (nested list) by the hash of its values mod `num_buckets`: column `a_X_b`, int32, never null.

    Parameters
    ----------
    num_buckets : int, or dict of str to int
        Number of buckets, 1 to 2^31 - 1: one for all groups, or a dict by the name of the new column.

    Notes
    -----
    The composite hash is MurmurHash3_x86_32 (seed 0) of the columns' own hashes (as in HashBucket), written one after
    another as 4 little-endian bytes each. A null takes part with its hash 0xFFFFFFFF. An infinity is a value like any
    other.

    Errors: a JobError for a column that stands alone, for `num_buckets` out of range, and for a new column that the
    dict lacks.

    Examples
    --------
    >>> from rowmill import Workflow
    >>> table = pa.table({"shop": [1, 1, 2], "brand": ["a", "b", "a"]})
    >>> Workflow([["shop", "brand"]] >> HashedCross(1000)).fit(table).transform(table).to_pydict()
    {'shop_X_brand': [905, 161, 824]}
    >>> Workflow(["shop"] >> HashedCross(1000)).fit(table)
    Traceback (most recent call last):
    ...
    tasks.errors.JobError: HashedCross needs a group of columns, 'shop' stands alone ...
    """

    num_buckets: int | dict[str, int]
    takes = frozenset({"number", "string", "bool", "time"})
    encoded = plain_too = True
    grouped = True
    adds_tags = frozenset({Tags.CATEGORICAL.value})

    @model_validator(mode="after")
    def _check_parameters(self) -> HashedCross:
        _check_buckets(self.num_buckets)
        return self

    def check(self, unit: Unit, schema: Schema) -> None:
        super().check(unit, schema)
        if len(unit) < 2:
            raise JobError(
                f"HashedCross needs a group of columns, {unit[0]!r} stands alone",
                do=f"write a nested list, [[{unit[0]}, other]], or use HashBucket for one column",
            )

    def outputs(self, unit: Unit, schema: Schema, fitted: object) -> list[Column]:
        name = "_X_".join(unit)
        return [
            with_cardinality(
                Column(name, pa.int32(), self.adds_tags), _buckets_of(self.num_buckets, name, "HashedCross")
            )
        ]

    def apply(self, columns: Columns, unit: Unit, fitted: object, context: Context) -> Columns:
        name = "_X_".join(unit)
        buckets = _buckets_of(self.num_buckets, name, "HashedCross")
        return {name: hash_to_buckets([columns[n] for n in unit], buckets, context)}


def hash_to_buckets(columns: Sequence[Series], buckets: int, context: Context) -> Series:
    """Compute the hash of each row mod `buckets`, int32."""
    xp = context.engine.xp
    return context.engine.from_numbers((context.hashes(columns) % xp.uint32(buckets)).astype(xp.int32))


def _check_buckets(num_buckets: int | dict[str, int]) -> None:
    for buckets in num_buckets.values() if isinstance(num_buckets, dict) else [num_buckets]:
        if not 1 <= buckets <= MOST:
            raise ValueError(f"num_buckets is 1 to {MOST:,}, not {buckets}")


def _buckets_of(num_buckets: int | dict[str, int], name: str, op: str) -> int:
    if not isinstance(num_buckets, dict):
        return num_buckets
    if name not in num_buckets:
        raise JobError(f"{op} has no num_buckets for column {name!r}", do=near(name, num_buckets))
    return num_buckets[name]


def with_cardinality(column: Column, ids: int) -> Column:
    """The column with the properties of its ids that a model needs: cardinality and domain."""
    return column.with_properties(cardinality=ids, domain={"min": 0, "max": ids - 1})
