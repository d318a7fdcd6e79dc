"""Simulated days around the decision cores, and a comparison of eviction rules."""
