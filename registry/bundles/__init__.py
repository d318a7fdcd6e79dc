"""Bundles: the files of a revision, addressed by content."""
