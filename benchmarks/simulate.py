"""Simulates a virtual day of the pool manager: waiting times of callers and cost of decisions.

`python -m benchmarks.simulate --functions 200 --devices 16 --policy fngate --policy lru`. Machine
and Dispatcher are the product's; clock, processes and callers are simulated. The same seed gives
the same callers under every policy. With `--rounds N` each run is repeated, and each decision
counts with the least of its times: other processes of the machine delay not the same one each time.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import fields
from itertools import product
from typing import Any

from benchmarks.simulation.arrivals import ARRIVALS
from benchmarks.simulation.mixes import MIXES
from benchmarks.simulation.policies import POLICIES
from benchmarks.simulation.report import (
    Report,
    play,
    show_decisions,
    show_gaps,
    show_groups,
    show_table,
)
from benchmarks.simulation.settings import Settings

REPEATED: dict[str, list[Any]] = {
    "seed": [1],
    "arrivals": ["poisson"],
    "policy": ["fngate", "lru", "keepalive"],
    "mix": [""],
}
"""Options that may be repeated, and their defaults."""
DETAILED_MAX = 3
"""Max number of runs that are shown in full."""
CHOICES = {"device_kind": ("cuda", "cpu")}
MEANING = {
    "rate": "requests per second over all functions",
    "zipf": "exponent of the functions' popularity",
    "wake_part": "time of a wake by that of a load, in a mix; 0: nothing is parked",
    "residue_mib": "memory that a parked server keeps of each device",
    "host_mib": "host memory that parked servers may take",
    "closed": "callers per function that call again after each answer, instead of arrivals",
    "think_s": "mean pause of such callers after an answer, exponential",
    "end_s": "how long the simulation continues after the last call",
    "wait_s": "how long a caller waits for an answer",
    "min": "replicas kept per function",
    "max": "replicas per function",
    "batch": "requests per run",
    "service_s": "median run time of a function",
    "load_s": "median load time of a function",
    "servers": "functions that are HTTP servers",
    "stream_s": "median length of a server's exchanges",
    "server_start_s": "median start of a server",
    "spread": "how much functions differ, 0 for equal ones",
    "start_s": "from launch to HELLO",
    "share": "part of a device that a replica needs",
    "memory_mib": "median memory of a replica",
    "standbys": "replicas kept without a model, for cpu devices",
    "hosts": "hosts over which the devices are distributed; 1: all are local",
    "rtt_ms": "round trip to each host",
    "link_mb_s": "MB per second that a host can receive",
    "files_mb": "MB of a function's files per MiB of its memory",
    "file_hosts": "hosts that have a function's files from the start",
    "cache_mb": "MB of files that a host keeps, 0 for no limit",
    "losses": "hosts that lose power per hour",
    "outage_s": "mean time until such a host is back",
    "blind": "do not tell the placement which files a host has",
}


def main(arguments: Sequence[str] = ("--hours", "2")) -> None:
    """Simulate all combinations of the options and print the table; by default a short one."""
    options = _options(arguments)
    as_json, is_skipping = options.pop("json"), not options.pop("no_skip")
    rounds = options.pop("rounds")
    several = [options.pop(name) or default for name, default in REPEATED.items()]
    reports = [
        play(
            Settings(**options, **dict(zip(REPEATED, one, strict=True)), skip=is_skipping),
            rounds,
        )
        for one in product(*several)
    ]
    if as_json:
        print(json.dumps(reports, indent=1))
        return
    show = show_groups if reports[0]["settings"]["mix"] else show_table
    show(reports)
    if len(reports) <= DETAILED_MAX:
        for report in reports:
            _show_details(report)


def _options(arguments: Sequence[str]) -> dict[str, Any]:
    """Parse the options; exit with an error if they contradict each other."""
    parser = _parser()
    options = vars(parser.parse_args(arguments))
    if options["think_s"] < 0 or (options["think_s"] and not options["closed"]):
        parser.error("--think-s: a pause from 0 s up, of --closed callers")
    if not 1 <= options["hosts"] <= options["devices"]:
        parser.error("--hosts: from 1 to the number of --devices")
    mixes = options["mix"] or ()
    has_callers = any(group.callers for mix in mixes for group in MIXES[mix])
    if (options["closed"] or has_callers) and "foresight" in (options["policy"] or ()):
        parser.error("--policy foresight knows when arrivals come, --closed callers have none")
    return options


def _show_details(report: Report) -> None:
    print(f"\n{report['settings']['policy']}, {report['settings']['arrivals']}:\n")
    show_decisions(report)
    if report["settings"]["closed"]:
        print()
        show_gaps(report)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate", description=__doc__)
    usual = Settings()
    for field in fields(Settings):
        if field.name in REPEATED or field.name == "skip":
            continue
        default, option = getattr(usual, field.name), f"--{field.name.replace('_', '-')}"
        if isinstance(default, bool):
            parser.add_argument(option, action="store_true", help=MEANING[field.name])
            continue
        parser.add_argument(
            option,
            type=type(default),
            default=default,
            choices=CHOICES.get(field.name),
            help=f"{MEANING.get(field.name, '')} (%(default)s)".strip(),
        )
    again = "may be repeated"
    parser.add_argument("--arrivals", action="append", choices=tuple(ARRIVALS), help=again)
    parser.add_argument("--policy", action="append", choices=POLICIES, help=again)
    parser.add_argument("--seed", action="append", type=int, help=again)
    parser.add_argument("--mix", action="append", choices=MIXES, help=again)
    parser.add_argument("--rounds", type=int, default=1, help="times that each run is repeated")
    parser.add_argument("--no-skip", action="store_true", help="simulate idle seconds, too")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    return parser


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
