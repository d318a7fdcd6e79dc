"""Packages of functions in Python: what a folder needs, its lock, folders that functions share."""
