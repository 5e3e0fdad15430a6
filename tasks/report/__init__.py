"""Numbers to pictures: the artifacts of a stage, and the HTML report of an output."""
