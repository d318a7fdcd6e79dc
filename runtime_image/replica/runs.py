"""Counts of a replica's runs by batch size, for PONG."""

from __future__ import annotations

from threading import Lock

from runtime_image.contract.link import RUN_NUMBER_MAX, RUN_SIZES_MAX
from runtime_image.link.run_counts import RunCount, pack_runs


class RunCounts:
    """Successful runs and their times by the rows of their batches. Thread-safe.

    The first RUN_SIZES_MAX sizes have numbers of their own; all further ones share those of 0 rows:
    a request may have any number of rows.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._sizes: dict[int, list[int]] = {}
        self._is_changed = False

    def count(self, rows: int, input_us: int, infer_us: int, output_us: int) -> None:
        """Count a run; times in microseconds."""
        with self._lock:
            numbers = self._sizes.get(rows) or self._add(rows)
            numbers[0] += 1
            numbers[1] += input_us
            numbers[2] += infer_us
            numbers[3] += output_us
            self._is_changed = True

    def report(self) -> bytes:
        """Return the body of a PONG; empty if nothing was counted since the last report."""
        with self._lock:
            if not self._is_changed:
                return b""
            self._is_changed = False
            now = [(rows, *numbers) for rows, numbers in sorted(self._sizes.items())]
        return pack_runs([_in_range(*one) for one in now])

    def repeat(self) -> None:
        """Report everything again, to a manager that has heard nothing yet."""
        with self._lock:
            self._is_changed = bool(self._sizes)

    def _add(self, rows: int) -> list[int]:
        if len(self._sizes) >= RUN_SIZES_MAX:
            rows = 0
        return self._sizes.setdefault(rows, [0, 0, 0, 0])


def _in_range(rows: int, runs: int, *us: int) -> RunCount:
    times = [min(1000 * one, RUN_NUMBER_MAX) for one in us]
    return RunCount(rows, min(runs, RUN_NUMBER_MAX), *times)
