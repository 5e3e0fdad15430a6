"""A job that differs from that of its base: which of its steps go on with what the base has learned, which begin."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from tasks.core.schema import Tags
from tasks.core.versions import stable_json
from tasks.errors import JobError
from tasks.graph.binding import SOURCE, Bound, Step
from tasks.graph.evaluation import describe_step
from tasks.ops.base import Learned


@dataclass(frozen=True)
class Matched:
    """How the learned steps of a job follow those of its base.

    keys: by step that goes on, the key that it has in the base. new: by step that learns from its first rows now, why.
    retuned: by step that goes on with other parameters, how they differ. lines: all that differs, as sentences.
    """

    keys: Mapping[str, str]
    new: Mapping[str, str]
    retuned: Mapping[str, str]
    lines: tuple[str, ...]


def match_steps(base: Bound, job: Bound, version: str = "the base") -> Matched:
    """Match the steps of a job to those of its base, both bound without what was learned.

    A step continues what a step of the base has learned if both are the same operator on the same columns, which are
    made in the same way, and the parameters are equal, except those that do not invalidate what was learned
    (`Learned.retunable`). Names and places of entries do not matter, nor what only renames or describes a column. A
    JobError if a column of ids would get other ids.
    """
    matching = _Matching(base, job)
    _check_ids(matching)
    steps = index_learned_steps(job)
    known = index_learned_steps(base)
    new = {}
    retuned = {}
    for key, step in steps.items():
        old = matching.match(step)
        if old is None:
            new[key] = _explain_new_step(known.values(), step, version)
        elif differ := _describe_differences(old, step):
            retuned[key] = differ
    keys = {key: old.key for key in steps if (old := matching.match(steps[key]))}
    gone = known.keys() - {*keys.values()}
    lines = [f"{describe_step(steps[key])} goes on with other parameters: {how}" for key, how in retuned.items()]
    lines += [f"{describe_step(steps[key])} is new: {why}" for key, why in new.items()]
    lines += [f"{describe_step(step)} is dropped; {version} keeps it" for key, step in known.items() if key in gone]
    return Matched(keys, new, retuned, (*lines, *_describe_column_changes(matching)))


class _Matching:
    """Matches step by step: a step is matched after those that make its inputs."""

    def __init__(self, base: Bound, job: Bound) -> None:
        self.base = base
        self.job = job
        self.of: dict[str, Step | None] = {}  # by step of the job: that of the base
        self._lineages: dict[tuple[int, int, str, bool], str] = {}
        self._written = {id(bound): _group_outputs_by_step(bound) for bound in (base, job)}
        self._free: dict[str, list[Step]] = {}
        for step in index_learned_steps(base).values():
            self._free.setdefault(self._compute_signature(base, step), []).append(step)
        for place, name in sorted(job.steps):
            self.lineage(job, place, name)

    def match(self, step: Step) -> Step | None:
        if step.key not in self.of:
            free = self._free.get(self._compute_signature(self.job, step), [])
            self.of[step.key] = best = max(free, key=partial(self._rank_likeness, step), default=None)
            if best is not None:
                free.remove(best)
        return self.of[step.key]

    def _rank_likeness(self, step: Step, old: Step) -> tuple[int, bool]:
        """Rank a step of the base as a match: by the number of columns that both write, then by equal parameters."""
        both = self._written[id(self.job)].get(step.key, set()) & self._written[id(self.base)].get(old.key, set())
        return len(both), step.op == old.op

    def _compute_signature(self, bound: Bound, step: Step) -> str:
        assert isinstance(step.op, Learned)
        op = {name: value for name, value in step.op.to_json().items() if name not in step.op.retunable}
        inputs = {name: self.lineage(bound, *place) for name, place in sorted(step.fit_inputs.items())}
        return _digest([op, list(step.unit), inputs])

    def lineage(self, bound: Bound, place: int, name: str, ids: bool = False) -> str:
        """Describe what a column is made of by a digest that does not depend on the numbers of nodes.

        For a learned step it has the key of the base. With `ids`, it describes what the ids of the column are made of:
        an operator that only drops or reorders ids of a list does not change it.
        """
        place, name = bound.origin(place, name)
        if place == SOURCE:
            return name
        known = (id(bound), place, name, ids)
        if known not in self._lineages:
            step = bound.steps[place, name]
            if step.op.keeps_values or (ids and step.op.keeps_ids):
                self._lineages[known] = self.lineage(bound, *_find_input(step, name), ids)
            elif isinstance(step.op, Learned):
                old = step if bound is self.base else self.match(step)
                self._lineages[known] = _digest([old.key if old else f"new {step.key}", name])
            else:
                inputs = {n: self.lineage(bound, *at) for n, at in sorted(step.inputs.items())}
                self._lineages[known] = _digest([step.op.to_json(), list(step.unit), name, inputs])
        return self._lineages[known]


def _check_ids(matching: _Matching) -> None:
    """Raise a JobError if the job makes a column of ids of the base in another way."""
    base = matching.base
    job = matching.job
    for place, name in base.targets:
        makers = [Tags.CATEGORICAL.value in step.op.adds_tags for step in _list_steps_of_column(base, place, name)]
        if name not in job.output or Tags.CATEGORICAL.value not in base.output[name].tags or not any(makers):
            continue
        now = (len(job.nodes) - 1, name)
        if matching.lineage(base, place, name, ids=True) != matching.lineage(job, *now, ids=True):
            raise JobError(
                f"the ids of {name!r} would move",
                where=f"features that make the column {name!r}",
                why=f"it is {_describe_column(base, place, name)} in the base, {_describe_column(job, *now)} in the "
                "job; a model that was trained on the ids of the base would read others",
                do="make it as the base does, give the column another name (Rename), or begin anew: base: none, which "
                "gives all values new ids",
            )


def _describe_column_changes(matching: _Matching) -> list[str]:
    """Describe the differences between the columns of both outputs."""
    base = matching.base
    job = matching.job
    lines = []
    if names := [name for name in job.output if name not in base.output]:
        lines.append(f"columns that earlier versions lack: {', '.join(names)}")
    if names := [name for name in base.output if name not in job.output]:
        lines.append(f"columns that only earlier versions have: {', '.join(names)}")
    for name in (name for name in job.output if name in base.output):
        was, now = ((len(bound.nodes) - 1, name) for bound in (base, job))
        if matching.lineage(base, *was) != matching.lineage(job, *now):
            lines.append(
                f"column {name!r} is {_describe_column(job, *now)}, in earlier versions {_describe_column(base, *was)}"
            )
    tagged = [[c.name for c in bound.output.columns if Tags.TARGET.value in c.tags] for bound in (base, job)]
    if tagged[0] != tagged[1]:
        was_, now_ = (", ".join(names) or "none" for names in tagged)
        lines.append(f"label: {now_}, in earlier versions {was_}")
    return lines


def _explain_new_step(known: Iterable[Step], step: Step, version: str) -> str:
    """Explain why a step has nothing to continue."""
    for old in known:
        if type(old.op) is type(step.op) and old.unit == step.unit:
            differ = _describe_differences(old, step)
            return f"in {version} it has " + (f"other parameters ({differ})" if differ else "input of another kind")
    return f"{version} has no such step"


def _describe_differences(old: Step, step: Step) -> str:
    """Describe the parameters in which two steps differ: `max_size 100 in the base, 200 now`."""
    names = [name for name in type(step.op).model_fields if getattr(old.op, name) != getattr(step.op, name)]
    return ", ".join(f"{name} {getattr(old.op, name)} in the base, {getattr(step.op, name)} now" for name in names)


def _describe_column(bound: Bound, place: int, name: str) -> str:
    """Describe for people how a column is made: `brand >> Clip(max_value=3) >> Categorify`."""
    texts = []
    steps = _list_steps_of_column(bound, place, name)
    for step in steps:
        parameters = ", ".join(f"{key}={value!r}" for key, value in step.op.to_json().items() if key != "op")
        texts.append(type(step.op).__name__ + (f"({parameters})" if parameters else ""))
    return " >> ".join(["+".join(steps[-1].unit) if steps else name, *reversed(texts)])


def _list_steps_of_column(bound: Bound, place: int, name: str) -> list[Step]:
    """List the steps that a column has come through, the last one first, without those that only rename or describe
    it."""
    steps = []
    place, name = bound.origin(place, name)
    while place != SOURCE:
        step = bound.steps[place, name]
        steps += [] if step.op.keeps_values else [step]
        place, name = bound.origin(*_find_input(step, name))
    return steps


def _find_input(step: Step, name: str) -> tuple[int, str]:
    """Find the input that an output of a step comes from: that of the same name, else the first of its columns."""
    return step.inputs[name if name in step.inputs else step.unit[0]]


def index_learned_steps(bound: Bound) -> dict[str, Step]:
    """Index all learned steps of a graph by key, in graph order, also those that learn from their parameters alone."""
    steps = [*bound.learned_from_parameters, *bound.learning]
    return {step.key: step for step in sorted(steps, key=lambda s: (s.node, s.key))}


def _group_outputs_by_step(bound: Bound) -> dict[str, set[str]]:
    """Group the columns of the output by the step that makes their values."""
    written: dict[str, set[str]] = {}
    for place, name in bound.targets:
        if step := bound.encoder(place, name):
            written.setdefault(step.key, set()).add(name)
    return written


def _digest(value: object) -> str:
    return hashlib.sha256(stable_json(value).encode()).hexdigest()
