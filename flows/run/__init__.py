"""A run of a flow: its stages, its session, lost workers, artifacts, how it ends."""
