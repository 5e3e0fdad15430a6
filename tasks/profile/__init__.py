"""What a run has read of each column, in figures: the profile of an output, which the gate and the report look at."""
