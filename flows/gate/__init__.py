"""The gate: judges the rows of a run, and stops it or asks a person before anything is published."""
