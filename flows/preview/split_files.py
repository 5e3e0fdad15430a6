"""How many files each split will have, estimated from a sample of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tasks.core.plan import Plan
from tasks.core.row_sizes import row_width
from tasks.core.settings import Source
from tasks.graph.binding import SOURCE, Bound
from tasks.job.apply_fitted import bind_graph
from tasks.job.request import Request
from tasks.shuffle.row_order import Estimated, choose_files, compute_number_of_files, describe_choice
from tasks.stages.trial import Sampled


@dataclass(frozen=True)
class SplitFiles:
    """The files of a split: `rows` of its source become about `left` rows; `chosen` says what the number was chosen
    for, "" for a number that the job gives."""

    number: int
    rows: int
    left: int
    chosen: str = ""


def estimate_files(
    request: Request, plans: Mapping[str, Plan], sample: Sampled, scale: float, workers: int
) -> dict[str, SplitFiles]:
    """The files of each split. What is left of its rows is estimated from the sample, and from the shares of a split;
    a run chooses by the rows that it counts."""
    output = request.output
    source = request.source
    files = dict[str, SplitFiles]()
    is_whole = _keeps_all_rows(source, bind_graph(request, plans[request.plan_names[0]].schema))
    for split in request.splits:
        rows = int(plans[source.plan_name(split)].rows * scale)
        share = source.split.share_of(split) if source.split else 1.0
        left = round(rows * sample.ratio * (1.0 if share is None else share))
        if not output.chooses_files:
            files[split] = SplitFiles(compute_number_of_files(output, rows, sample.schema, workers), rows, left)
            continue
        estimated: Estimated = "at most " if source.unique or share is None else "about "
        chosen = describe_choice(left, row_width(sample.schema), "" if is_whole else estimated)
        more = "" if is_whole else "; the run counts them"
        files[split] = SplitFiles(choose_files(left, sample.schema), rows, left, f"{chosen}{more}")
    return files


def _keeps_all_rows(source: Source, bound: Bound) -> bool:
    """Whether a row comes out for each row of the source."""
    leaves_out = source.filter or source.unique or source.split or source.downsample or bound.filters
    return bound.space == SOURCE and not leaves_out
