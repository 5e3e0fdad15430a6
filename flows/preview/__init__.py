"""What a job would do, without doing it: the plan, its text, earlier runs."""
