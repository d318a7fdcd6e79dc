"""Load: what is called, by wrk where it is installed, else by `benchmarks.load`."""
