"""What a refit does with each learned step, and why: known before any row is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import pyarrow as pa

from tasks.errors import JobError, few, near
from tasks.graph.binding import SOURCE, Bound, Step
from tasks.graph.evaluation import describe_step
from tasks.graph.matching import index_learned_steps
from tasks.ops.base import Learned
from tasks.ops.fitted_values import FittedValues

WORDS = ("freeze", "merge")  # what a setting may say of a step
APPENDED = "ids stay, new values are appended"
MERGED = "equal to a fit of all rows"
# Sentences of `changes.json`, which stay as they were written: to them the rows of a refit are a night.
ON_DISK = "ids do not move, and rows of earlier nights were learned under the ids that they have on disk"


@dataclass(frozen=True)
class Mode:
    """What a refit does with a learned step.

    mode: "merged" (as learned from all rows), "appended" (ids stay, new values are appended), "frozen" (as it was) or
        "new" (learned from these rows alone, since the base does not have the step).
    why: the reason, in one clause; "" where it needs none.
    behind: the keys of the learned steps on which its inputs depend.
    """

    mode: Literal["merged", "appended", "frozen", "new"]
    why: str = ""
    behind: tuple[str, ...] = ()


def modes(
    bound: Bound, settings: Mapping[str, str], refit_all: bool = False, new: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Mode]:
    """The mode of each learned step of a graph, by step, in graph order; nothing is read.

    `settings` are what a job says under `refit`: freeze or merge, by step, column, entry (`features[2]`) or operator.
    The first of these that names a step decides. A step whose input comes from a merged step is frozen: what it learned
    is about values in the older scale, which the partials of the base hold. With `refit_all` every step that
    is not frozen by them learns anew from these rows alone, as in a fit, but ids stay. `new` are the steps that the
    base does not have, and why.

    A JobError for a setting that names no learned step (with near names), or that is impossible (with the reason).
    """
    steps = index_learned_steps(bound)
    return _ModeDecision(bound, steps, _match_settings(bound, steps, settings), refit_all, new).all()


def behind(bound: Bound, step: Step) -> list[Step]:
    """The learned steps that a step is behind: what it learns from is made of their outputs, or filtered by them."""
    todo = [bound.origin(*place) for place in _find_learning_inputs(bound, step)]
    learned = dict[str, Step]()
    seen = set[str]()
    while todo:
        place, name = todo.pop()
        if place == SOURCE or (maker := bound.steps[place, name]).key in seen:
            continue
        seen.add(maker.key)
        if isinstance(maker.op, Learned):
            learned[maker.key] = maker
        todo += [bound.origin(*t) for t in maker.inputs.values()]  # not what it learned from: if that moves, it stays
    return sorted(learned.values(), key=lambda s: (s.node, s.key))


def describe_changed_tables(
    bound: Bound, old: Mapping[str, FittedValues], new: Mapping[str, FittedValues]
) -> dict[str, str]:
    """By step, a sentence on each side table that differs from what the base's fit read, and on the steps behind it.

    `old` and `new` are the learned values of the base and of now.
    """
    sentences = {}
    for step in bound.learned_from_parameters:
        if step.key not in old or step.key not in new or _same(old[step.key], new[step.key]):
            continue
        later = [s for s in bound.learned if step.key in {u.key for u in behind(bound, s)}]
        files = ", ".join(step.op.files) or "its table"
        text = f"{files} of {describe_step(step)} differs from what the base read"
        if later:
            text += (
                f"; behind it {few([describe_step(s) for s in later])}, which learned earlier rows with the older one"
            )
        sentences[step.key] = text
    return sentences


def mode_rows(modes: Mapping[str, Mode]) -> list[dict[str, str]]:
    """The modes as rows of texts, steps of one operator with the same mode and reason in one row."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for key, mode in modes.items():
        _, operator, unit = key.split("/", 2)
        grouped.setdefault((operator, mode.mode, mode.why), []).append(unit.replace("++", "+"))
    return [
        {"operator": operator, "columns": few(units), "mode": mode, "why": why}
        for (operator, mode, why), units in grouped.items()
    ]


def mode_lines(modes: Mapping[str, Mode]) -> list[str]:
    """The modes as sentences: operator, columns, mode and reason."""
    return [f"{row['operator']} of {row['columns']}: {row['mode']}, {row['why']}" for row in mode_rows(modes)]


class _ModeDecision:
    """Decides step by step: what a step does depends on the steps that it is behind."""

    def __init__(
        self,
        bound: Bound,
        steps: Mapping[str, Step],
        chosen: Mapping[str, tuple[str, str]],
        refit_all: bool,
        new: Mapping[str, str],
    ) -> None:
        self.bound = bound
        self.steps = steps
        self.chosen = chosen
        self.refit_all = refit_all
        self.new = new
        self.decided: dict[str, Mode] = {}

    def all(self) -> dict[str, Mode]:
        return {key: self.of(step) for key, step in self.steps.items()}

    def of(self, step: Step) -> Mode:
        if step.key not in self.decided:
            before = behind(self.bound, step)
            mode, why = self._decide(step, before)
            self.decided[step.key] = Mode(mode, why, tuple(s.key for s in before))
        return self.decided[step.key]

    def _decide(self, step: Step, before: Sequence[Step]) -> tuple[Literal["merged", "appended", "frozen", "new"], str]:
        """(mode, why)."""
        if step.key in self.new:
            return "new", f"learned from these rows alone: {self.new[step.key]}"
        op = _op(step)
        nature, nature_why = op.refit_of(step.unit)
        name, word = self.chosen.get(step.key, ("", ""))
        if word == "freeze":
            return "frozen", f"the job says {name}: freeze, so it does not learn from these rows"
        if self.refit_all:
            if nature == "appended":
                return "appended", "learned again from these rows alone, but ids stay (refit: all)"
            return "merged", "learned again from these rows alone (refit: all)"
        if nature == "frozen":
            if word == "merge":
                raise _impossible(step, name, nature_why, "leave it out, or learn all anew with refit: {all: true}")
            return "frozen", nature_why
        if not op.passes:
            return "merged", "read again"
        moving = [s for s in before if self._moves(s)]
        if moving:
            names = few([describe_step(s) for s in moving])
            why = f"its input comes from {names}, whose outputs move as it learns"
            if word == "merge":
                stay = few(dict.fromkeys(type(s.op).__name__ for s in moving))
                raise _impossible(step, name, why, f"freeze {stay}, or leave {name}: merge out")
            return "frozen", why
        ids = [s for s in before if self.of(s).mode == "appended"]
        clauses = [nature_why or (APPENDED if nature == "appended" else MERGED)]
        clauses += [f"behind {few([describe_step(s) for s in ids])}: {ON_DISK}"] if ids else []
        clauses += [clause for clause in (_within_one_refit(self.bound, step),) if clause]
        return nature, "; ".join(clauses)

    def _moves(self, step: Step) -> bool:
        """Whether rows that were learned from before would come out of a step with other values now."""
        op = _op(step)
        return op.passes > 0 and op.moves_values and self.of(step).mode == "merged"


def _op(step: Step) -> Learned:
    assert isinstance(step.op, Learned)
    return step.op


def _find_learning_inputs(bound: Bound, step: Step) -> list[tuple[int, str]]:
    """The columns that a step learns from: its inputs, and those of the filters that choose its rows."""
    filters = [f for f in bound.filters_of(step.within) if f.depth < step.depth] if _op(step).passes else []
    return [*step.fit_inputs.values(), *(place for f in filters for place in f.inputs.values())]


def _within_one_refit(bound: Bound, step: Step) -> str:
    """What a step's input is made of, or filtered by, that ends with the rows of a refit: groups and runs of rows."""
    makers = {s.key: s for s in bound.needed_steps(_find_learning_inputs(bound, step)) if s.key != step.key}.values()
    names = dict.fromkeys(type(s.op).__name__ for s in makers if s.op.groups_rows or s.op.run_columns)
    return f"{few(names)} works within a night: a key in two nights is two runs of rows" if names else ""


def _match_settings(bound: Bound, steps: Mapping[str, Step], settings: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """By step: (the name in the settings that decides about it, freeze or merge)."""
    named = {key: _list_setting_names(bound, step) for key, step in steps.items()}
    levels = list(zip(*named.values(), strict=True))
    known = list(dict.fromkeys(name for level in reversed(levels) for names in level for name in names))
    for name, word in settings.items():
        if word not in WORDS:
            raise JobError(f"refit: {{{name}: {word}}} is neither freeze nor merge", do=near(str(word), WORDS))
        if name not in known:
            raise JobError(
                f"refit names {name!r}, which is not a learned step of this job",
                why="a name is that of an operator, an entry, a column or a step that learns",
                do=near(name, known) if known else "leave it out: nothing of this job learns",
            )
    chosen = {}
    for key, of_step in named.items():
        at_level = next(([n for n in names if n in settings] for names in of_step if set(names) & set(settings)), [])
        if len({settings[name] for name in at_level}) > 1:
            both = ", ".join(f"{name}: {settings[name]}" for name in at_level)
            raise JobError(f"refit says two things about {describe_step(steps[key])}", why=both, do="say one of them")
        if at_level:
            chosen[key] = at_level[0], settings[at_level[0]]
    return chosen


def _list_setting_names(bound: Bound, step: Step) -> list[list[str]]:
    """The names under which settings may speak of a step: itself, its columns, its entry, its operator."""
    entry = bound.nodes[step.node].name
    operator = dict.fromkeys([str(step.op.to_json()["op"]), type(step.op).__name__])
    return [[step.key], list(step.unit), [entry] if entry else [], list(operator)]


def _impossible(step: Step, name: str, why: str, do: str) -> JobError:
    return JobError(
        f"{describe_step(step)} cannot be merged by a refit", where=f"refit: {{{name}: merge}}", why=why, do=do
    )


def _same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether learned values are the same."""
    if set(a) != set(b):
        return False
    tables = [(a[n], b[n]) for n in a if isinstance(a[n], pa.Table) and isinstance(b[n], pa.Table)]
    plain = [n for n in a if not isinstance(a[n], pa.Table)]
    return all(x.equals(y) for x, y in tables) and all(a[n] == b[n] for n in plain)
