"""Assigns waiting requests to replicas. Pure: events and `now` in, commands out."""
