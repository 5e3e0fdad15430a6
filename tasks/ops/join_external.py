"""Columns of a side table, joined to the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import pyarrow as pa
from pydantic import model_validator

from tasks import engines
from tasks.core.dtypes import dtype_name, kind_of, plain_type
from tasks.core.schema import Column, Schema
from tasks.engines.algorithms.arrow_arrays import one_array
from tasks.engines.algorithms.protocol import Kernels
from tasks.engines.algorithms.reductions import total
from tasks.engines.types import Lookup
from tasks.errors import DataError, JobError, near
from tasks.ops.base import Columns, Context, Entry, Learned, Unit
from tasks.ops.fitted_values import FittedValues
from tasks.ops.side_tables import SideFrame, SideTable, check_read_settings, frames_in, read_side_table, side_schema


class JoinExternal(Learned):
    """Add the columns of a side table (a Parquet or text file) to the selected ones; the rows keep their order.

    Parameters
    ----------
    table : str or frame
        Path or URL of a file, or of a folder of Parquet files, with at most 4 GiB in memory; in Python also a pandas,
        Arrow or cuDF frame, as it is then, without its index; a job has no place for one.
    on : str, list of str, or dict of str to str
        Key columns, or a dict that maps the rows' names to the table's.
    how : {"left"}, default "left"
        Kind of join: a row whose key the table lacks gets nulls.
    columns : list of str, default None
        Columns to add; None adds all but the keys.
    duplicates : {"error", "first"}, default "error"
        What a key that occurs twice in the table is: an error, or its first row counts.
    read : dict, default None
        Keys of a job's `source` by which a text file is read, as in `{delimiter: ";", schema: {zip: string}}`.
    storage_options : str, default None
        Name of the options of the storage that a URL is in (`ROWMILL_STORAGE_<NAME>`); None takes the credentials of
        the environment.

    Notes
    -----
    A null key matches a null key. An infinite key is a key like any other. Added columns have the table's types.

    `read` says how a file of CSV, TSV or JSON lines is read, with these keys of a job's `source`: format, header,
    columns, schema, null_values, delimiter, skip_rows, skip_initial_space, decimal, quote, escape, comment and
    encoding. Without `null_values` the texts NA, NaN, null and the like are null in columns that are not text, and each
    text stays.

    The table is read when fitting and saved with the workflow, which from then on does not need the file. A refit reads
    it again; if it differs from what the base read, the run says so, with the steps that learn from its columns.

    Errors: a JobError for a missing file, a storage that refuses this user, a larger table, an unknown column, and a
    column that would be there twice; a DataError for keys of different kinds (or different decimals), for a key that
    occurs twice, and for a file that cannot be read.

    Examples
    --------
    >>> from rowmill import Workflow
    >>> import tempfile
    >>> import pyarrow.parquet as pq
    >>> folder = tempfile.TemporaryDirectory()
    >>> file = folder.name + "/shops.parquet"
    >>> pq.write_table(pa.table({"shop": [1, 2], "town": ["Rome", "Oslo"]}), file)
    >>> table = pa.table({"shop": [2, 3, 1]})
    >>> Workflow(["shop"] >> JoinExternal(file, on="shop")).fit(table).transform(table).to_pydict()
    {'shop': [2, 3, 1], 'town': ['Oslo', None, 'Rome']}
    >>> folder.cleanup()
    >>> towns = pa.table({"id": [2, 2], "town": ["Oslo", "Bergen"]})
    >>> join = JoinExternal(towns, on={"shop": "id"}, duplicates="first")
    >>> Workflow(["shop"] >> join).fit(table).transform(table).to_pydict()
    {'shop': [2, 3, 1], 'town': ['Oslo', None, None]}
    """

    table: SideTable
    on: str | list[str] | dict[str, str]
    how: Literal["left"] = "left"
    columns: list[str] | None = None
    duplicates: Literal["error", "first"] = "error"
    read: dict[str, Any] | None = None
    storage_options: str | None = None
    retunable = frozenset(
        {"table", "columns", "duplicates", "read", "storage_options"}
    )  # it reads its table in every run
    takes = frozenset({"number", "string", "bool", "time", "list", "other"})
    hands_on = True
    encoded = True
    passes: ClassVar[int] = 0

    def finalize_unit(self, partial: None, unit: Unit) -> FittedValues:
        """`table`: the keys and the added columns, each key once."""
        keys = list(dict.fromkeys(self.keys.values()))
        added = self._list_added_columns(side_schema(self.table, self.read, self.storage_options).names)
        wanted = [*keys, *(name for name in added if name not in keys)]
        table = read_side_table(self.table, wanted, self.read, self.storage_options)
        codes, distinct = engines.engine("pandas").group_codes([table[k] for k in keys], keys)
        if len(distinct) < len(table):
            first: dict[int, int] = {}
            for row, code in enumerate(codes.tolist()):
                if first.setdefault(code, row) != row and self.duplicates == "error":
                    raise DataError(
                        f"a key occurs twice in the side table: {', '.join(str(table[k][row]) for k in keys)}",
                        where=f"{self.table}, rows {first[code]:,} and {row:,}",
                        do="make its keys distinct, or set duplicates: first",
                    )
            table = table.take(pa.array(list(first.values())))
        return {"table": table}

    def prepare(self, fitted: FittedValues, engine: Kernels) -> tuple[Lookup, Columns, int]:
        """(the keys' look-up, the added columns with one row of nulls below, that row's number)."""
        table = fitted["table"].combine_chunks()
        lookup = engine.Lookup([one_array(table[k]) for k in self.keys.values()])
        added = {n: one_array(table[n]) for n in self._list_added_columns(table.column_names)}
        added = {n: pa.concat_arrays([c, pa.nulls(1, c.type)]) for n, c in added.items()}
        return lookup, engine.from_arrow(pa.table(added)), len(table)

    def apply(self, columns: Columns, unit: Unit, fitted: tuple[Lookup, Columns, int], context: Context) -> Columns:
        lookup, table, last = fitted
        codes = lookup.find_places([columns[n] for n in self.keys])
        if context.met is not None:
            context.met.update(rows=len(codes), unmatched=total(codes < 0))
        joined = context.engine.take(table, context.engine.xp.where(codes < 0, last, codes))
        return {**{name: columns[name] for name in unit}, **joined}

    @model_validator(mode="after")
    def _check_parameters(self) -> JoinExternal:
        if not self.keys:
            raise ValueError("on must name at least one column")
        if self.read:
            check_read_settings(self.read)
            if self.frames:
                raise ValueError("read says how a file is read, and the table is a frame")
        return self

    @property
    def keys(self) -> dict[str, str]:
        """The key columns: name among the rows -> name in the table."""
        on = [self.on] if isinstance(self.on, str) else self.on
        return dict(on) if isinstance(on, dict) else {name: name for name in on}

    @property
    def files(self) -> tuple[str, ...]:
        return (self.table,) if isinstance(self.table, str) else ()

    @property
    def storage(self) -> str | None:
        return self.storage_options

    @property
    def frames(self) -> tuple[SideFrame, ...]:
        return frames_in(self.table)

    def restore_frames(self, fitted: FittedValues) -> None:
        for frame in self.frames:
            frame.restore(fitted["table"])

    def units(self, selection: Sequence[Entry]) -> list[Unit]:
        alone = super().units(selection)
        return [tuple(unit[0] for unit in alone)]

    def extra_columns(self, fitting: bool) -> tuple[str, ...]:
        return tuple(self.keys)

    def made_of(self, output: str, unit: Unit) -> tuple[str, ...]:
        return (output,) if output in unit else ()  # an added column is one of the table

    def _list_added_columns(self, known: Sequence[str]) -> list[str]:
        wanted = [n for n in known if n not in self.keys.values()] if self.columns is None else self.columns
        for name in (*wanted, *self.keys.values()):
            if name not in known:
                do = near(name, known).replace("set source.delimiter to", "give its delimiter, read.delimiter:")
                raise JobError(f"the side table has no column {name!r}", where=str(self.table), do=do)
        return list(wanted)

    def outputs(self, unit: Unit, schema: Schema, fitted: FittedValues | None) -> list[Column]:
        side = side_schema(self.table, self.read, self.storage_options) if fitted is None else fitted["table"].schema
        added = self._list_added_columns(side.names)
        for name in added:
            if name in unit:
                raise JobError(
                    f"JoinExternal would add a second column {name!r}", do="leave it out of columns, or rename it"
                )
        for name, theirs in self.keys.items():
            mine = schema[name].dtype
            other = plain_type(side.field(theirs).type)
            if kind_of(mine) != kind_of(other):
                raise DataError(
                    f"the key {name!r} is {dtype_name(mine)}, the side table's {theirs!r} {dtype_name(other)}",
                    where=str(self.table),
                    do="cast one of them to the other's type"
                    + ("" if self.frames else f"; that of a text file is set by read: {{schema: {{{theirs}: ..}}}}"),
                )
            if mine != other and (pa.types.is_decimal(mine) or pa.types.is_decimal(other)):
                raise DataError(
                    f"the key {name!r} is {dtype_name(mine)}, the side table's {theirs!r} {dtype_name(other)}",
                    where=str(self.table),
                    why="decimals are equal only where they have the same digits behind the point",
                    do="write both in one type",
                )
        side_columns = [Column(name, plain_type(side.field(name).type)) for name in added]
        return [*(schema[name] for name in unit), *side_columns]
