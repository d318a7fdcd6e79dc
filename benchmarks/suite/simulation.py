"""A simulated day of the pool manager: waiting times of callers, and cost of decisions."""

from __future__ import annotations

from itertools import product

from benchmarks.measuring.report import Grid, Part
from benchmarks.measuring.setting import Setting
from benchmarks.simulate import REPEATED
from benchmarks.simulation.report import COLUMNS, play
from benchmarks.simulation.settings import Settings

HOURS, QUICK_HOURS = 2.0, 0.05


def measure(setting: Setting) -> list[Part]:
    """Simulate a short day per policy; `python -m benchmarks.simulate` simulates others."""
    hours = QUICK_HOURS if setting.quick else HOURS
    chosen = product(*REPEATED.values())
    reports = [
        play(Settings(**dict(zip(REPEATED, one, strict=True)), hours=hours)) for one in chosen
    ]
    rows = [
        [
            report["settings"]["policy"],
            str(report["requests"]),
            *(form.format(report[name]) for name, form in COLUMNS.values()),
        ]
        for report in reports
    ]
    deciding = [
        [
            f"{report['settings']['policy']}: {kind}",
            taken["p50_ms"],
            taken["p99_ms"],
            taken["max_ms"],
        ]
        for report in reports
        for kind, taken in report["decisions"].items()
    ]
    return [
        Grid(["policy", "requests", *COLUMNS], rows),
        Grid(["decision", "p50 ms", "p99 ms", "max ms"], deciding, "processor time of decisions"),
    ]
