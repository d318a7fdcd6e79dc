"""Decisions only: events and `now` in, commands out. No I/O, no clock, no randomness."""
