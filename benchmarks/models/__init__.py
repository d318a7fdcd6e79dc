"""Models that benchmarks run: made here with random weights from fixed seeds, never committed."""
