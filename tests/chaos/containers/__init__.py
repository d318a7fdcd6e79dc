"""Chaos with containers: they, their engine and the server are killed."""
