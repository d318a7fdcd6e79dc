"""What must hold while processes die: `python -m tests.chaos`, or `make chaos`."""
