"""Load generation: calls, made by wrk if it is installed, else by `benchmarks.load`."""
