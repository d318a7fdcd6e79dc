"""Verification of a model before it serves: whether its rows may share a run."""
