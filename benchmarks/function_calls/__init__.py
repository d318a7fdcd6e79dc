"""Calls of Python functions, beside servers that people use for the same."""
