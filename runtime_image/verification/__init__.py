"""Verification of a model in a trial: row independence, comparison of runs, prepared files."""
