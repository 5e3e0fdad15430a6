"""What happens in the process of a worker: forks, preloads, ends."""
