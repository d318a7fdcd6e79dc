"""Machine and Dispatcher as they are in a virtual world of clock, processes and callers."""
