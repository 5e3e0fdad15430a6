"""From a source to its plan, from a plan to tables."""
