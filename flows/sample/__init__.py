"""Look-alike data sets: the same rows for the same (name, rows, seed), whatever the files, workers and block cuts."""

from flows.sample.sample_nights import SampleNight, night
from flows.sample.write import SampleSummary, make_nights, make_sample, night_table, sample_table

__all__ = ["SampleNight", "SampleSummary", "make_nights", "make_sample", "night", "night_table", "sample_table"]
