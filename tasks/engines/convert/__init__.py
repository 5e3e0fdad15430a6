"""Converts columns of the engines to and from values, types, frames and files of other libraries."""
