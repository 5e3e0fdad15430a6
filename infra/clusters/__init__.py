"""The section `cluster` of a job, and how each kind of cluster is started."""
