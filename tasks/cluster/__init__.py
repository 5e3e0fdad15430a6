"""Where functions over partitions run: pools, memory, caches, monitor."""
