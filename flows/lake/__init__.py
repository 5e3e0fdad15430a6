"""A wing: what runs have to do with tables of Iceberg and Delta."""
