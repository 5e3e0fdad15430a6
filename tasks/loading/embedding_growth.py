"""An embedding with rows for the ids that refits appended: old rows stay bit for bit, new ones come by a rule."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from tasks.errors import DataError, JobError, near
from tasks.graph.saved_workflow import find_fitted_folder
from tasks.graph.state import ChangesForm, read_json
from tasks.storage.discarded import check_discarded
from tasks.storage.documents import make_damage_error, parse_document
from tasks.storage.own_files import CHANGES, current
from tasks.storage.published_copy import PublishedCopy, open_published

if TYPE_CHECKING:
    import torch
    from torch import nn
    from typing_extensions import TypeIs

    Values = torch.Tensor | np.ndarray

W = TypeVar("W")
OUTSIDE = 2  # the first id of values without an id of their own
EMPTY_DEVIATION = 0.01
CHUNK = 1 << 22  # numbers that are looked at at a time

Rule = Literal["normal", "mean", "outside", "zeros"] | Callable[[np.ndarray, Any], Any]
Changes = Mapping[str, Any] | str | Path
RULES = ("normal", "mean", "outside", "zeros")


def grow(
    weight: W,
    changes: Changes | Sequence[Changes],
    column: str | None = None,
    rule: Rule = "normal",
    seed: int = 0,
    *,
    storage_options: str | Mapping[str, Any] | None = None,
) -> W:
    """Copy an embedding and add a row for each id that a refit, or several in a row, appended.

    weight: a torch.nn.Embedding or EmbeddingBag, a tensor or parameter of torch, or an array of numpy, whose first axis
    is ids, as many as `cardinality` said before the refit. The result is of the same class, type and device. Row i of
    the old weight is row i of the new one, bit for bit, since no id moves. The old weight stays as it is.
    changes: the folder or URL of an output or of a fitted workflow that a refit wrote, what its
    `_workflow/changes.json` has, or the entry of one step in there; or a list of these, one for each night, the oldest
    first, which brings an old model to today. column: a column of the ids' vocabulary, where there are several.
    rule: where new rows come from; "normal" if nothing is said.
        normal: for each dimension, normal with the mean and standard deviation of the old vocabulary's rows: the new
            rows are of the size of the old ones, differ from each other, and change no output by much (Hewitt,
            "Initializing new word embeddings for pretrained language models", 2021).
        mean: that mean, the same for all new ids.
        outside: the mean of the rows of values without an id, which is where the model has seen these values so far.
        zeros: 0, as for the moments of an optimizer.
        A function of (ids: int64 array, the old weight) gives rows of its own.
    The rows of padding, null and values without an id do not count for mean and deviation; where the old vocabulary was
    empty they are 0 and 0.01.
    storage_options: of URLs, or their name (`ROWMILL_STORAGE_<NAME>`).
    seed: of "normal". A draw depends on (seed, id, dimension) alone, so ids that come in one night or in two get the
    same draws.

    Errors: JobError for another number of rows than the vocabulary had (it says both), a step that is frozen or not of
    ids, an unknown column, nights that do not follow each other; DataError for a folder without changes.

    >>> import numpy as np
    >>> night = {"op": "Categorify", "columns": ["brand"], "mode": "appended", "first_id": 3}
    >>> night |= {"old_rows": 5, "new_rows": 7}
    >>> grow(np.array([[0.0], [0.0], [9.0], [1.0], [3.0]]), night, rule="mean").ravel().tolist()
    [0.0, 0.0, 9.0, 1.0, 3.0, 2.0, 2.0]
    >>> grow(np.zeros((4, 1)), night)
    Traceback (most recent call last):
    ...
    tasks.errors.JobError: the weight has 4 rows, the vocabulary of brand had 5 before the refit and has 7 now...
    """
    if not callable(rule) and rule not in RULES:
        raise JobError(f"no rule is called {rule!r}", do=near(str(rule), RULES))
    nights = [changes] if isinstance(changes, Mapping | str | Path) else changes
    steps = [_find_step(one, column, storage_options) for one in nights]
    if not steps:
        raise JobError("there are no changes to grow by", do="give the folder of a refit's output")
    name = ", ".join(steps[0]["columns"])
    for before, after in itertools.pairwise(steps):
        if before["new_rows"] != after["old_rows"]:
            why = f"one ends with {before['new_rows']:,} ids of {name}, the next begins with {after['old_rows']:,}"
            raise JobError("the nights do not follow each other", why=why, do="give all of them, the oldest first")
    old = steps[0]["old_rows"]
    new = steps[-1]["new_rows"]
    first = steps[0]["first_id"]
    module = _find_module(weight)
    array: Any = module.weight if module is not None else weight
    if not hasattr(array, "shape") or not len(array.shape):
        raise JobError(
            f"{type(weight).__name__} cannot grow", do="give an Embedding or tensor of torch, or a numpy array"
        )
    if array.shape[0] != old:
        raise JobError(
            f"the weight has {array.shape[0]:,} rows, the vocabulary of {name} had {old:,} before the refit and has "
            f"{new:,} now",
            why="it has grown already" if array.shape[0] == new else "",
            do="give the weight that was trained on the nights before, and the changes of every night since",
        )
    grown: Any = _empty_like(array, new)
    grown[:old] = _values(array)
    draw = _make_initializer(rule, array, first, seed)
    for start, stop in _chunks(old, new, array.shape):
        _set(grown, start, stop, draw(np.arange(start, stop, dtype=np.int64)))
    return _convert_like(weight, grown)


def _find_step(
    changes: Changes, column: str | None, storage_options: str | Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Find the entry of the step whose ids are meant; a JobError if there is none, or if it has no new ids."""
    if isinstance(changes, Mapping):
        return _choose_step(changes, column, "")
    with open_published(changes, storage_options, "the output", "changes") as origin:
        return _choose_step(_read_changes_file(origin), column, str(origin.folder))


def _choose_step(changes: Mapping[str, Any], column: str | None, where: str) -> Mapping[str, Any]:
    steps = list(changes["steps"].values()) if "steps" in changes else [changes]
    ids = [step for step in steps if step["op"] == "Categorify"]
    names = list(dict.fromkeys(name for step in ids for name in _list_vocabulary_names(step)))
    chosen = [step for step in ids if column is None or column in _list_vocabulary_names(step)]
    if not chosen:
        other = next((step for step in steps if column in step["columns"]), None)
        why = f"{other['op']} has no ids" if other else f"there are ids of {', '.join(names) or 'no column'}"
        what = f"no vocabulary of {column!r}" if column else "no step has ids"
        raise JobError(what, where=where, why=why, do=near(column, names) if column and names else "")
    if len(chosen) > 1:
        raise JobError("several vocabularies changed", where=where, do=f"name one by column: {', '.join(names)}")
    (step,) = chosen
    if step["mode"] != "appended":
        why = step.get("why") or "a frozen step keeps the ids that it has"
        do = "train it from the beginning" if step["mode"] == "new" else "go on with the weight as it is"
        raise JobError(f"the ids of {', '.join(step['columns'])} are {step['mode']}", where=where, why=why, do=do)
    for name in ("first_id", "old_rows", "new_rows"):
        if not isinstance(step.get(name), int) or step[name] < 0:
            raise make_damage_error(Path(where) / CHANGES, name, f"it is {step.get(name)!r}, no number of ids")
    return step


def _list_vocabulary_names(step: Mapping[str, Any]) -> list[str]:
    """List the columns of a step's vocabulary, as a user may name them: each, and the tuple's."""
    columns = list(step["columns"])
    return columns if len(columns) == 1 else [*columns, "_".join(columns)]


def _read_changes_file(origin: PublishedCopy) -> Mapping[str, Any]:
    path = origin.folder
    check_discarded(current(path), path, origin.name)
    folder = find_fitted_folder(path)
    if not (folder / CHANGES).exists():
        why = "only what a refit wrote has changes: a first fit has no night before it"
        raise DataError(f"{CHANGES} is missing", where=str(folder), why=why, do="train on it from the beginning")
    changes = read_json(folder / CHANGES)
    parse_document(ChangesForm, changes, folder / CHANGES)
    return changes


def _find_module(weight: object) -> nn.Embedding | nn.EmbeddingBag | None:
    """Return the weight as an embedding of torch; None for others. Torch is imported only if the weight is of it."""
    torch: Any = sys.modules.get("torch")
    return weight if torch and isinstance(weight, torch.nn.Embedding | torch.nn.EmbeddingBag) else None


def _is_tensor(array: object) -> TypeIs[torch.Tensor]:
    torch: Any = sys.modules.get("torch")
    return bool(torch) and isinstance(array, torch.Tensor)


def _values(array: Values) -> Values:
    return array.detach() if _is_tensor(array) else array


def _empty_like(array: Values, rows: int) -> Values:
    shape = (rows, *array.shape[1:])
    return array.detach().new_empty(shape) if _is_tensor(array) else np.empty(shape, array.dtype)


def _to_floats(array: Values) -> np.ndarray:
    """Convert rows to float64 in host memory."""
    return np.asarray(array.detach().cpu().double().numpy() if _is_tensor(array) else array, np.float64)


def _set(grown: Any, start: int, stop: int, rows: Values) -> None:
    if _is_tensor(grown) and not _is_tensor(rows):
        rows = sys.modules["torch"].from_numpy(np.ascontiguousarray(rows))
    if tuple(rows.shape) != tuple(grown[start:stop].shape):
        what = f"the rule gives rows of shape {tuple(rows.shape)} for {stop - start:,} ids"
        raise JobError(what, do=f"let it give {tuple(grown[start:stop].shape)}")
    grown[start:stop] = rows


def _chunks(start: int, stop: int, shape: Sequence[int]) -> Iterator[tuple[int, int]]:
    step = max(1, CHUNK // max(1, int(np.prod(shape[1:]))))
    for first in range(start, stop, step):
        yield first, min(stop, first + step)


def _make_initializer(rule: Rule, old: Values, first: int, seed: int) -> Callable[[np.ndarray], Any]:
    """Make the rule a function of ids."""
    inner = tuple(old.shape[1:])
    if callable(rule):
        return lambda ids: rule(ids, old)
    if rule == "zeros":
        return lambda ids: np.zeros((len(ids), *inner))
    if not (old.dtype.is_floating_point if _is_tensor(old) else old.dtype.kind == "f"):
        raise JobError(f"the rule {rule} draws fractions, the weight is of {old.dtype}", do="give rule='zeros'")
    if rule == "outside":
        middle = _to_floats(old[OUTSIDE:first]).mean(axis=0)
        return lambda ids: np.broadcast_to(middle, (len(ids), *inner))
    mean, deviation = _compute_mean_and_deviation(old, first)
    if rule == "mean":
        return lambda ids: np.broadcast_to(mean, (len(ids), *inner))
    return lambda ids: mean + deviation * _draw_normal(ids, inner, seed)


def _compute_mean_and_deviation(old: Values, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation, by dimension, of the rows from `first` on: in two passes, a chunk at a time."""
    rows = old.shape[0] - first
    if rows < 1:
        return np.zeros(tuple(old.shape[1:])), np.full(tuple(old.shape[1:]), EMPTY_DEVIATION)
    chunks = list(_chunks(first, old.shape[0], old.shape))
    mean = sum((_to_floats(old[a:b]).sum(axis=0) for a, b in chunks), np.zeros(tuple(old.shape[1:]))) / rows
    squares = sum((((_to_floats(old[a:b]) - mean) ** 2).sum(axis=0) for a, b in chunks), np.zeros_like(mean))
    return mean, np.sqrt(squares / rows)


def _draw_normal(ids: np.ndarray, inner: tuple[int, ...], seed: int) -> np.ndarray:
    """Draw a standard normal for each id and dimension, a function of (seed, id, dimension) alone.

    Bits by splitmix64 (Steele, Lea, Flood, OOPSLA 2014), normal by Box and Muller (1958).
    """
    width = int(np.prod(inner, dtype=np.int64))
    key = _mix_bits(np.array([seed & (2**64 - 1)], np.uint64))
    counter = ids.astype(np.uint64)[:, None] * np.uint64(width) + np.arange(width, dtype=np.uint64)
    bits = [_mix_bits(_mix_bits(counter * np.uint64(2) + np.uint64(turn)) ^ key) >> np.uint64(11) for turn in (0, 1)]
    radius = np.sqrt(-2 * np.log((bits[0].astype(np.float64) + 1) * 2.0**-53))
    return (radius * np.cos(2 * np.pi * (bits[1].astype(np.float64) * 2.0**-53))).reshape(len(ids), *inner)


def _mix_bits(counter: np.ndarray) -> np.ndarray:
    bits = (counter + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _convert_like(weight: W, grown: Any) -> W:
    """Convert the rows to an object of the weight's class."""
    torch: Any = sys.modules.get("torch")
    if not torch or not isinstance(weight, torch.Tensor | torch.nn.Module):
        return grown
    if not isinstance(weight, torch.nn.Module):
        return torch.nn.Parameter(grown, weight.requires_grad) if isinstance(weight, torch.nn.Parameter) else grown
    same = ["padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse", "mode", "include_last_offset"]
    options = {name: getattr(weight, name) for name in same if hasattr(weight, name)}
    module = type(weight).from_pretrained(grown, freeze=not weight.weight.requires_grad, **options)
    return module.train(weight.training)
