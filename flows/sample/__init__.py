"""Look-alike data sets: the same rows for the same (name, rows, seed), whatever the files, workers and block cuts."""

from flows.sample.sample_batches import SampleBatch, make_batch
from flows.sample.write import SampleSummary, make_batch_table, make_batches, make_sample, sample_table

__all__ = [
    "SampleBatch",
    "SampleSummary",
    "make_batch",
    "make_batch_table",
    "make_batches",
    "make_sample",
    "sample_table",
]
