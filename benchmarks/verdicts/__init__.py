"""Verdicts of deploys on candidates of other precision, beside those of a judge of their own."""
