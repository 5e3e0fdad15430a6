"""Kernels and views of memory below the operations on columns of a GPU."""
