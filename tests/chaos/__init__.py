"""Chaos tests: invariants under process deaths. `python -m tests.chaos`, or `make chaos`."""
