"""Columns >> operators: bound to a schema, evaluated on a partition, with learned state."""
