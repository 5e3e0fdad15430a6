"""Between the columns of an engine and the values, types and frames of others."""
