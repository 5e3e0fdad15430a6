"""The four stages, what a run needs for them, what it reuses and commits."""
