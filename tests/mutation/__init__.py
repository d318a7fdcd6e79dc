"""Mutation testing of pure decisions: small source changes that a test should detect."""
