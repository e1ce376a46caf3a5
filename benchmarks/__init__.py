"""Measurements: each module prints a table, nothing here asserts a time."""
