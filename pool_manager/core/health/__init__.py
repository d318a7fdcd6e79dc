"""Servers that are ready: whether they still work, and what happens if they do not."""
