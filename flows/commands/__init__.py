"""The commands of `millrace`, one module each, and the console that they print to."""
