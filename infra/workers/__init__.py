"""The process of a worker: forks, preloads, ends."""
