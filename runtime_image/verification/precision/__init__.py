"""Candidates of other precision: made, measured beside the original, and chosen; in a trial."""
