"""Checks of requests for functions that are cold."""
