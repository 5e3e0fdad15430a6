"""What passes over the source see of its rows: sketches of columns, a sample, what steps meet; merged in any order."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from tasks.core.schema import ROW
from tasks.core.strict_json import JsonObject, decode_floats, encode_floats
from tasks.engines.algorithms import column_sketch
from tasks.engines.algorithms.column_sketch import Sketch
from tasks.engines.algorithms.moments import Moments
from tasks.engines.algorithms.protocol import Kernels
from tasks.graph import row_sample
from tasks.graph.binding import SOURCE, Bound, Step
from tasks.ops.categorify import Categorify

Met = dict[str, dict[str, int]]  # step -> what it met (rows, out_of_vocabulary, unmatched) -> how often


@dataclass
class Seen:
    """Some rows of the source: their number, sketches of columns by name, what steps met, the seconds that it took, how
    many further rows each rule of the source left out, a sample of the rows (one of `step`), and the hashes of rows
    that were compared (`row_sample.row_hashes`; None if they could not be)."""

    rows: int = 0
    columns: dict[str, Sketch] = field(default_factory=dict)
    met: Met = field(default_factory=dict)
    seconds: float = 0.0
    left_out: dict[str, int] = field(default_factory=dict)
    sample: pa.Table | None = None
    step: int = 1
    hashes: np.ndarray | None = field(default_factory=lambda: np.empty(0, np.uint32))

    @property
    def nbytes(self) -> int:
        return 20_000 * len(self.columns) + (self.sample.nbytes if self.sample is not None else 0)

    def to_text(self) -> str:
        """Encode as text."""
        plain = {"rows": self.rows, "met": self.met, "seconds": self.seconds, "step": self.step}
        plain |= {"sample": row_sample.encode_sample(self.sample), "columns": column_sketch.pack_sketches(self.columns)}
        hashes = None if self.hashes is None else base64.b64encode(self.hashes.tobytes()).decode()
        return json.dumps(encode_floats(plain | {"hashes": hashes}))


def parse_seen(text: str) -> Seen:
    """Parse what `Seen.to_text` wrote; an empty text has nothing."""
    if not text:
        return Seen()
    plain = decode_floats(json.loads(text))
    hashes = plain["hashes"] if plain["hashes"] is None else np.frombuffer(base64.b64decode(plain["hashes"]), np.uint32)
    columns = column_sketch.unpack_sketches(plain["columns"])
    sample = row_sample.decode_sample(plain["sample"])
    seen = Seen(plain["rows"], columns, plain["met"], plain["seconds"])
    return replace(seen, sample=sample, step=plain["step"], hashes=hashes)


def merge_seen(parts: Iterable[Seen]) -> Seen:
    """Merge what was seen of parts that have no row in common."""
    several = list(parts)
    if len(several) == 1:
        return several[0]
    names = list(dict.fromkeys(name for part in several for name in part.columns))
    keys = dict.fromkeys(key for part in several for key in part.met)
    met: Met = {key: sum_counts(part.met[key] for part in several if key in part.met) for key in keys}
    columns = {name: column_sketch.merge([p.columns[name] for p in several if name in p.columns]) for name in names}
    seconds = sum(p.seconds for p in several)
    left_out = sum_counts(p.left_out for p in several)
    seen = Seen(sum(p.rows for p in several), columns, met, seconds, left_out)
    seen.sample = row_sample.join_samples(p.sample for p in several)
    seen.step = max((p.step for p in several), default=1)
    hashes = [p.hashes for p in several if p.hashes is not None]
    seen.hashes = np.concatenate([np.empty(0, np.uint32), *hashes]) if len(hashes) == len(several) else None
    return seen


def sum_counts(several: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Sum counts by name.

    >>> sum_counts([{"a": 1}, {"a": 2, "b": 0}])
    {'a': 3, 'b': 0}
    """
    total: dict[str, int] = {}
    for counts in several:
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
    return total


def join_passes(passes: Sequence[Seen]) -> Seen:
    """Join what several passes over the same rows have seen: each has its own columns; the last to meet a step
    counts."""
    whole = Seen(max((seen.rows for seen in passes), default=0))
    for seen in passes:
        whole.columns |= seen.columns
        whole.met |= seen.met
        whole.seconds += seen.seconds
        whole.sample = row_sample.join_columns(whole.sample, seen.sample)
        whole.step = max(whole.step, seen.step)
    return whole


def sketch_source_columns(
    source: JsonObject,
    starts: Sequence[int],
    blocks: Sequence[int],
    engine: Kernels,
    known: Mapping[str, Sequence[Moments]],
) -> dict[str, Sketch]:
    """Sketch columns of the source, and the elements of lists; `known`: moments by column and block."""
    return {n: engine.sketch_leaves(column, starts, blocks, known.get(n)) for n, column in source.items()}


def find_counted_columns(bound: Bound, steps: Iterable[Step]) -> dict[str, str]:
    """Find the steps whose tables of distinct values are counts of a single source column; map them to it."""
    columns: dict[str, str] = {}
    for step in steps:
        if not isinstance(step.op, Categorify) or len(step.unit) > 1 or not step.op.counts_values(step.unit):
            continue
        if len(step.fit_inputs) != 1 or step.within != SOURCE:
            continue
        place, name = bound.origin(*next(iter(step.fit_inputs.values())))
        if place == SOURCE and name != ROW and not _is_list(bound, name) and name not in columns.values():
            columns[step.key] = name
    return columns


def _is_list(bound: Bound, name: str) -> bool:
    column = bound.source[name]
    return bool(column.leaf != column.dtype)
