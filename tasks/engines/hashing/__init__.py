"""One hash of a value on every engine."""
