"""Mutation testing of the pure decisions: small changes of the source that a test should notice."""
