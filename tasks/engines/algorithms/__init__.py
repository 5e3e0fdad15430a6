"""Algorithms with one body for numpy and CuPy."""
