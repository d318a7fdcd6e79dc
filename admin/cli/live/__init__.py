"""The live state of a server: its events followed and folded."""
