"""Hostile inputs for everything that builds objects from a stranger's bytes."""
