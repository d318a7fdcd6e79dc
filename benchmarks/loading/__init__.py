"""Load generation: calls, made by wrk if it is installed, else as `fnctl bench` makes them."""
