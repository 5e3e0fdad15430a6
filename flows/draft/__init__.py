"""The draft of a first job: how files can be read, what becomes of each column, the text."""
