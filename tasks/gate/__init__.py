"""The gate before publication: profiles of all rows, contracts, checks and their verdict."""
