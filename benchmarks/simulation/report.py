"""Simulated runs, and tables of their figures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from itertools import chain
from typing import Any

from benchmarks.simulation.figures import percentile
from benchmarks.simulation.mixes import MIXES
from benchmarks.simulation.policies import policy
from benchmarks.simulation.settings import Settings
from benchmarks.simulation.world import World

Report = dict[str, Any]

COLUMNS = {
    "cold": ("cold_share", "{:.1%}"),
    "wait mean s": ("wait_mean_s", "{:.2f}"),
    "p50": ("wait_p50_s", "{:.2f}"),
    "p95": ("wait_p95_s", "{:.1f}"),
    "p99": ("wait_p99_s", "{:.1f}"),
    "max": ("wait_max_s", "{:.1f}"),
    "expired": ("expired", "{:.0f}"),
    "starts": ("starts", "{:.0f}"),
    "evictions": ("evictions", "{:.0f}"),
    "swaps": ("swaps", "{:.0f}"),
    "idle device": ("idle_share", "{:.0%}"),
    "loading": ("loading_share", "{:.0%}"),
}
SERVER_COLUMNS = {
    "server wait mean s": ("server_wait_mean_s", "{:.1f}"),
    "server p95": ("server_wait_p95_s", "{:.0f}"),
    "server max": ("server_wait_max_s", "{:.0f}"),
    "revoked": ("revoked", "{:.0f}"),
    "cut": ("cut", "{:.0f}"),
}
"""Columns of runs with servers: waits of their exchanges, soft swaps revoked, exchanges cut."""


def play(settings: Settings, rounds: int = 1) -> Report:
    """Simulate one run under its policy; return its figures as plain data, `gaps_s` by function.
    The run is repeated `rounds` times for the times of its decisions."""
    world = _played(settings)
    for _ in range(rounds - 1):
        world.keep_fastest(_played(settings).decisions_s)
    return {"settings": asdict(settings), **world.report(), "gaps_s": world.figures.gaps_s}


def _played(settings: Settings) -> World:
    world = World(settings)
    with policy(world, settings.policy):
        return world.run()


def show_table(reports: Iterable[Report]) -> None:
    """Print one row per policy and kind of arrivals: means over the seeds, and for several seeds
    the range of the mean wait."""
    reports = list(reports)
    has_servers = any(report["settings"]["servers"] for report in reports)
    columns = COLUMNS | (SERVER_COLUMNS if has_servers else {})
    print(f"| arrivals | policy | requests | {' | '.join(columns)} |")
    print("|---" * (len(columns) + 3) + "|")
    rows: dict[tuple[str, str], list[Report]] = {}
    for report in reports:
        run = report["settings"]
        rows.setdefault((run["arrivals"], run["policy"]), []).append(report)
    for (arrivals, policy_name), runs in rows.items():
        cells = [arrivals, policy_name, f"{_mean(runs, 'requests'):.0f}"]
        cells += [form.format(_mean(runs, name)) for name, form in columns.values()]
        if len(runs) > 1:
            waits = [run["wait_mean_s"] for run in runs]
            cells[4] += f" ({min(waits):.2f} to {max(waits):.2f})"
        print(f"| {' | '.join(cells)} |")


def show_groups(reports: Iterable[Report]) -> None:
    """Print one row per group and policy of each mix, over all calls of the seeds together, and for
    several seeds the range of the mean wait."""
    rows: dict[tuple[str, str], list[Report]] = {}
    for report in reports:
        run = report["settings"]
        rows.setdefault((run["mix"], run["policy"]), []).append(report)
    print("| mix | policy | functions | calls | wait mean s | p95 | max | expired | kept, empty |")
    print("|---" * 9 + "|")
    for (mix, policy_name), runs in rows.items():
        kept = f"{_mean(runs, 'kept_empty_share'):.1%}"
        for group in MIXES[mix]:
            found = [run["groups"].get(group.name, NO_CALLS) for run in runs]
            cells = [mix, policy_name, group.name, *_group_cells(found), kept]
            print(f"| {' | '.join(cells)} |")


NO_CALLS = {"waits_s": [], "expired": 0}


def _group_cells(found: list[dict[str, Any]]) -> list[str]:
    """Return the cells of one group from its figures by seed."""
    waits = sorted(chain.from_iterable(one["waits_s"] for one in found))
    means = [sum(one["waits_s"]) / max(1, len(one["waits_s"])) for one in found]
    mean = f"{sum(waits) / max(1, len(waits)):.1f}"
    if len(found) > 1:
        mean += f" ({min(means):.1f} to {max(means):.1f})"
    expired = sum(one["expired"] for one in found) / max(1, len(waits))
    longest = waits[-1] if waits else 0.0
    return [
        str(len(waits)),
        mean,
        f"{percentile(waits, 95):.0f}",
        f"{longest:.0f}",
        f"{expired:.1%}",
    ]


def _mean(runs: list[Report], name: str) -> float:
    return float(sum(run[name] for run in runs)) / len(runs)


def show_decisions(report: Report) -> None:
    """Print the CPU time inside the machine, and the real time of the run."""
    print("| decision about | count | p50 ms | p99 ms | max ms | sum s |")
    print("|---|---|---|---|---|---|")
    for kind, taken in report["decisions"].items():
        print(
            f"| {kind} | {taken['count']} | {taken['p50_ms']:.3f} | {taken['p99_ms']:.2f}"
            f" | {taken['max_ms']:.1f} | {taken['sum_s']:.1f} |"
        )
    print()
    print(
        f"{report['simulated_s']:.0f} virtual seconds in {report['real_s']:.1f} real ones;"
        f" device-seconds: {report['busy_device_s']:.0f} busy, {report['idle_device_s']:.0f} idle,"
        f" {report['moving_device_s']:.0f} starting, loading or leaving."
    )
    if "transfers" in report:
        print(
            f"{report['transfers']} transfers of {report['transferred_gb']:.0f} GB in all,"
            f" {report['hosts_lost']} losses of a host."
        )


def show_gaps(report: Report) -> None:
    """Print the longest time without a run of each function."""
    print("| function | longest time without a run, s |")
    print("|---|---|")
    for key, gap_s in sorted(report["gaps_s"].items()):
        print(f"| {key} | {gap_s:.1f} |")
