"""Learns from the rows of a data set: in a fit, or in a refit on top of a base."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

from tasks.cluster.lost_worker import explain_losses
from tasks.dataset import Dataset
from tasks.graph.binding import Bound
from tasks.graph.failed_casts import merge_largest, warn
from tasks.graph.partition_work import Work
from tasks.graph.state import State
from tasks.learning.growth import Base
from tasks.learning.observe import LearningResult, learn
from tasks.learning.refit_modes import modes
from tasks.ops.base import RefitDate
from tasks.storage.files import check_unchanged


def make_base(
    state: State,
    bound: Bound,
    settings: Mapping[str, str],
    refit_all: bool,
    night: date | None,
    forget_days: int | None,
) -> Base:
    """What a refit of these rows learns on top of, with the mode of each operator; by default the rows are of today."""
    refit_date = RefitDate(night or date.today(), forget_days, refit_all)
    return Base(state, state.rows, modes(bound, settings, refit_all), refit_date)


def learn_rows(method: str, work: Work, dataset: Dataset, base: Base | None = None) -> LearningResult:
    """Learn from all rows of a data set; errors name the method that was called. A DataError for files that changed."""
    with explain_losses(method, dataset.pool, work.engine):
        result = learn(work, dataset.plan, dataset.pool, base)
    check_unchanged(dataset.plan.files, dataset.plan.options.get("storage_options"))
    return result


def warn_of_failed_casts(result: LearningResult) -> None:
    """Log the casts that failed in the pass with the most of them."""
    warn(merge_largest(result.failed))
