"""Models for benchmarks: generated with random weights from fixed seeds, never committed."""
