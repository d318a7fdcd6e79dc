"""Measuring: rounds, ratios, CPU time, memory, cores, tables."""
