"""Runs on dates: those that were begun and not published, the base of each, and when they are to be ready."""
