"""What a job says: its file, its sections, its form, what may be asked."""
