"""The preview of a job: the plan of its run, and the text about it."""
