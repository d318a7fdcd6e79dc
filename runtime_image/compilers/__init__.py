"""Compiled models: compilers, the keys of their files, and the shapes they take."""
