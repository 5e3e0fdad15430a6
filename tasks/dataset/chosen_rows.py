"""Rules on the rows of a data set: `unique`, `split` and `downsample`, and what a look at all rows tells of them."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from tasks.cluster.pool import Pool
from tasks.core.plan import Plan
from tasks.core.schema import Schema
from tasks.core.settings import Downsample, Section, Source, SplitRule, Unique
from tasks.dataset.scratch_folder import ScratchFolder
from tasks.engines.convert import libraries
from tasks.engines.expression.syntax import parse
from tasks.engines.expression.typing import type_expression
from tasks.errors import RowmillError
from tasks.graph.row_rules import Division, RowRules, RowSet
from tasks.job.source_rules import (
    check_splitting,
    describe_rules,
    downsampling_of,
    exact_columns,
    looks,
    splitting_of,
    with_weight,
)
from tasks.job.text_order import check_text_order
from tasks.shuffle.key_ranges import SourceRows
from tasks.shuffle.row_sets import check_unique, find_repeated_rows, split_division
from tasks.sources.reader import FramePlan
from tasks.storage.files import check_unchanged

log = logging.getLogger("rowmill")
RULES: dict[str, type[Section]] = {"unique": Unique, "split": SplitRule, "downsample": Downsample}  # on rows


class RowSource(Protocol):
    """The rows that rules choose from, as a data set has them: their plan, their reader, and who works on them."""

    engine: str

    @property
    def plan(self) -> Plan: ...
    @property
    def handle(self) -> Plan | FramePlan: ...
    @property
    def pool(self) -> Pool: ...
    def warn_of_differences(self, columns: Iterable[str]) -> None: ...
    def as_fitted(self, reading: Mapping[str, Any]) -> Self: ...


Rows = TypeVar("Rows", bound=RowSource)


class _RowFacts(NamedTuple):
    """What a look at all rows tells: those whose key another row has, how many `unique` leaves out, and the splits."""

    repeated: RowSet | None = None
    left_out: int = 0
    division: Division | None = None


@dataclass(frozen=True)
class ChosenRows(Generic[Rows]):
    """Rules on the rows of a data set: `source` has them as the sections of a job, `split` names the one that is meant.

    What only a look at all rows tells is in `shared`, with its files: one look serves all splits.
    """

    dataset: Rows  # without rules, in the order of its row numbers
    source: Source
    split: str = ""
    shared: dict[str, Any] = field(default_factory=dict)

    def with_rule(self, name: str, rule: Section) -> ChosenRows[Rows]:
        """The same with one more rule. Down-sampling needs no look at the rows, so that a former look serves it."""
        shared = self.shared if name == "downsample" else {}
        return replace(self, source=self.source.model_copy(update={name: rule}), shared=shared)

    @property
    def rules(self) -> RowRules:
        """What a pass leaves out."""
        if self.source.downsample:
            type_expression(parse(self.source.downsample.where), self.dataset.plan.schema)
        repeated = self._looked.repeated
        division = self._looked.division
        splitting = splitting_of(self.source, self.split, division) if self.source.split else None
        downsamples = self.split in ("", "train")
        strict = self.source.strict
        return RowRules(repeated, splitting, downsampling_of(self.source), downsamples, strict)

    def with_weight(self, schema: Schema) -> Schema:
        """The schema with the column of weights that down-sampling adds, if it names one."""
        return with_weight(schema, self.source)

    @property
    def exact(self) -> set[str]:
        """The columns whose values decide about rows, and not by calculation alone."""
        return exact_columns(self.source)

    @property
    def repeated(self) -> RowSet | None:
        """The rows whose key another row has."""
        return self._looked.repeated if self.source.unique else None

    @property
    def sections(self) -> dict[str, Any]:
        """The rules as keys of a job's `source`."""
        rules = {name: getattr(self.source, name) for name in ("unique", "split", "downsample")}
        named = {name: rule.model_dump(mode="json", exclude_unset=True) for name, rule in rules.items() if rule}
        return named | ({"strict": True} if self.source.strict else {})

    @property
    def described(self) -> dict[str, Any]:
        """The rules as a manifest has them, without what a pass counts."""
        return describe_rules(self.source, self._looked.left_out, self._looked.division)

    @property
    def _looked(self) -> _RowFacts:
        if "looked" not in self.shared:
            self.shared["looked"] = self._look()
        return self.shared["looked"]  # type: ignore[no-any-return]

    def _look(self) -> _RowFacts:
        data = self.dataset
        source = self.source
        repeated = None
        count = 0
        division = None
        plan = data.plan
        engine = libraries.resolve_engine(data.engine)
        if source.unique:
            check_unique(plan.schema, source.unique)
        pool = data.pool
        check_text_order(data.handle, plan, source, pool)
        check_splitting(plan.schema, source)
        if not looks(source, plan.schema):
            return _RowFacts()
        data.warn_of_differences(name for look in looks(source, plan.schema) for name in look.columns)
        scratch = ScratchFolder(tempfile.mkdtemp(prefix="rowmill-rows-"))
        folder = Path(scratch.path)
        every = SourceRows(data.handle, plan, engine, pool)
        if source.unique:
            repeated, count = find_repeated_rows(every, source.unique, folder / "repeated.bits")
            log.info("unique leaves out %s rows: other rows have the same keys", f"{count:,}")
        if source.split:
            division = split_division(replace(every, rules=RowRules(repeated)), source.split, folder)
        if division:
            log.info("split: %s", division.text)
        check_unchanged(plan.files, plan.options.get("storage_options"))
        for rows in [*([repeated] if repeated else []), *(rows for _, rows in (division.sets if division else ()))]:
            object.__setattr__(rows, "scratch", scratch)  # the files live as long as the rules
        return _RowFacts(repeated, count, division)

    def as_fitted(self, reading: Mapping[str, Any]) -> ChosenRows[Rows]:
        """The same rules on the data set as a fit reads it; splits share it."""
        known = self.shared.setdefault("fitted", {}).setdefault(repr(sorted(reading.items())), {})
        if not known:
            known |= {"dataset": self.dataset.as_fitted(reading), "shared": {}}
        if known["dataset"] is self.dataset:
            return self
        return replace(self, dataset=known["dataset"], shared=known["shared"])


def check_condition(where: str) -> None:
    """A JobError for an expression of `Dataset.downsample` that cannot be read."""
    try:
        parse(where)
    except RowmillError as error:
        raise type(error)(
            error.what, where=f"Dataset.downsample, where: {error.where}", why=error.why, do=error.do
        ) from None
