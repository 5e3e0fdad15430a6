"""The commands of `rowmill`, one module each, and the console that they print to."""
