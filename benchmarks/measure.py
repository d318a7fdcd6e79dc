"""Times commands and reads processes' CPU time."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path


def wall_ms(command: Sequence[str], environment: dict[str, str] | None = None) -> float:
    """Milliseconds from start to end of a command that must succeed."""
    began = time.perf_counter()
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1e3


def interleaved(cases: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Each case once per round, so that a busy moment of the machine meets all of them."""
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            taken[name].append(case())
    return taken


def cpu_s(pid: int) -> float:
    """CPU seconds a process has used so far, user and system (proc(5), fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def show(taken: dict[str, list[float]], reference: str, unit: str) -> None:
    """Median, range, and the ratio of the medians to the reference's."""
    base = statistics.median(taken[reference])
    print(f"| case | median {unit} | min | max | ratio to {reference} |")
    print("|---|---|---|---|---|")
    for name, values in taken.items():
        middle = statistics.median(values)
        print(
            f"| {name} | {middle:.1f} | {min(values):.1f} | {max(values):.1f}"
            f" | {middle / base:.2f} |"
        )
