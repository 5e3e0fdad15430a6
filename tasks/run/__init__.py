"""A run: its stages in their order, its commit, and the plugins that accompany it."""
