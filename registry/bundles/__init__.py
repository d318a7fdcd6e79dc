"""Bundles: the files of a revision, by content."""
