"""Decision core: events and `now` in, commands out. No I/O, no clock, no randomness."""
