"""Columns >> operators: bound to a schema, evaluated on a partition, with learned state."""

from tasks.ops import side_tables
from tasks.sources.one_file import table_of

side_tables.readers["text"] = table_of  # operators know no sources, and sources no operators
