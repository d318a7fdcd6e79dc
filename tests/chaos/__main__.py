"""The full doses: `python -m tests.chaos`, or `make chaos`. Exits with 1 on any violation."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.chaos import frozen, late_run, poison, restarts, rounds
from tests.chaos.ledger import Ledger


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="of every random choice (default: drawn)")
    parser.add_argument("--requests", type=int, default=20_000, help="of one round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--functions", type=int, default=6, help="1 to 6")
    parser.add_argument("--slots", type=int, default=2, help="replicas at once")
    parser.add_argument("--phases", type=int, default=40, help="bursts of one round")
    parser.add_argument(
        "--starts-killed",
        type=int,
        default=rounds.Dose.starts_max,
        metavar="N",
        help="of one function in a row, then it is spared until it serves (5 make it failing)",
    )
    parser.add_argument("--kills", type=int, default=50, help="of the server, in restarts")
    parser.add_argument("--all-busy", action="store_true", help="call all functions all the time")
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, help="default: all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there, too")
    return parser.parse_args()


async def under_fire(data: Path, given: argparse.Namespace) -> Ledger:
    """Rounds of load while replicas are killed."""
    dose = rounds.Dose(
        seed=given.seed,
        requests=given.requests,
        rounds=given.rounds,
        functions=given.functions,
        slots=given.slots,
        phases=given.phases,
        starts_max=given.starts_killed,
        all_busy=given.all_busy,
        returns_min=0 if given.all_busy else rounds.Dose.returns_min,
    )
    return await rounds.run(data, dose)


SCENARIOS: dict[str, Callable[[Path, argparse.Namespace], Awaitable[Ledger]]] = {
    "rounds": under_fire,
    "poison": lambda data, given: poison.run(data, given.seed),
    "late-run": lambda data, _given: late_run.run(data),
    "frozen": lambda data, given: frozen.run(data, given.seed),
    "restarts": lambda data, given: restarts.run(data, given.seed, given.kills),
}


async def play(name: str, given: argparse.Namespace) -> Ledger:
    """One scenario over a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        return await SCENARIOS[name](Path(folder), given)


def main() -> int:
    """Run what was asked for and report."""
    given = options()
    given.seed = random.randrange(2**32) if given.seed is None else given.seed
    print(f"seed {given.seed}", flush=True)
    reports = []
    for name in given.scenario or SCENARIOS:
        ledger = asyncio.run(play(name, given))
        print("\n".join(ledger.lines()), flush=True)
        reports.append(ledger)
        if given.json is not None:
            document = {"seed": given.seed, "scenarios": [one.to_json() for one in reports]}
            given.json.write_text(json.dumps(document, indent=2) + "\n")
    return 1 if any(ledger.violations for ledger in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
