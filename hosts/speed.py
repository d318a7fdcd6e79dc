"""Speed of transfers to one host, as measured lately."""

from __future__ import annotations

from typing import Final

START_BYTES_PER_S: Final = 50e6
"""Speed before the first transfer is measured."""
MEASURED_MIN: Final = 4 * 2**20
"""Bytes of the smallest transfer that is measured."""
WEIGHT: Final = 0.3
"""Weight of the last transfer in the moving average."""


class Speed:
    """Moving average over transfers."""

    def __init__(self) -> None:
        self.bytes_per_s = START_BYTES_PER_S

    def add(self, moved_bytes: int, took_s: float) -> None:
        """Measure a transfer, unless it is too small."""
        if moved_bytes >= MEASURED_MIN and took_s > 0:
            self.bytes_per_s += WEIGHT * (moved_bytes / took_s - self.bytes_per_s)
