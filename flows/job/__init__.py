"""The job: its file, its sections, its form, its limits."""
