"""Statistics: observed by partition, merged along one tree, finalized."""
