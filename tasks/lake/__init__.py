"""A wing: tables of Iceberg and Delta as sources and as outputs of a run."""
