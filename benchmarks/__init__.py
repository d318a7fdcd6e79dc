"""Measurements, as ratios to references taken in the same run."""
