"""Run the chaos scenarios in full: `python -m tests.chaos` or `make chaos`. Exit code 1 on any
violation.

Container scenarios need root and a Docker engine (`eval "$(.ci/engine start)"`). Without them they
are skipped; if requested with --scenario, the run fails.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.chaos import (
    bounded_steps,
    busy_host,
    chats,
    cold_clients,
    dial_ins,
    exact_servers,
    floods,
    fronts,
    frozen,
    fuzzed_servers,
    gangs,
    hopeless_deploys,
    kept_streams,
    killed_servers,
    kubernetes,
    late_run,
    model_bodies,
    oip_models,
    park_cycles,
    parks,
    poison,
    python_streams,
    restarts,
    rounds,
    row_graphs,
    sick_servers,
    strangers,
    together,
    turns,
    workers,
)
from tests.chaos.containers import hostile, neighbours, pair_scene, scene
from tests.chaos.hosts import scene as hosts
from tests.chaos.ledger import Ledger
from tests.chaos.links import scene as links
from tests.support.engine import make_runtime_image
from tests.support.own_engine import TOOLS


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="seed of all random choices (default: random)")
    parser.add_argument("--requests", type=int, default=20_000, help="requests per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--functions", type=int, default=6, help="number of functions, 1 to 6")
    parser.add_argument("--slots", type=int, default=2, help="CPU slots")
    parser.add_argument("--phases", type=int, default=40, help="bursts per round")
    parser.add_argument(
        "--starts-killed",
        type=int,
        default=rounds.Dose.starts_max,
        metavar="N",
        help="max starts in a row killed per function (5 make it failing)",
    )
    parser.add_argument("--kills", type=int, default=50, help="restarts: server kills")
    parser.add_argument("--turns", type=int, default=4, help="containers: turns of every fault")
    parser.add_argument("--hostile", type=int, default=100, help="hostile: functions")
    parser.add_argument("--streams", type=int, default=fronts.STREAMS, help="fronts: connections")
    parser.add_argument(
        "--messages", type=int, default=100_000, help="odd-servers and model-bodies"
    )
    parser.add_argument("--graphs", type=int, default=row_graphs.GRAPHS, help="row-graphs: number")
    parser.add_argument("--calls", type=int, default=strangers.Dose.calls, help="strangers: number")
    parser.add_argument(
        "--exchanges", type=int, default=busy_host.Dose.exchanges, help="busy-host: number"
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="chats: duration")
    parser.add_argument(
        "--attack",
        action="append",
        choices=[one.kind for one in bounded_steps.ATTACKS],
        help="bounded-steps: default: all",
    )
    parser.add_argument("--all-busy", action="store_true", help="call all functions at once")
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, help="default: all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the report to FILE")
    return parser.parse_args()


async def under_fire(data: Path, given: argparse.Namespace) -> Ledger:
    """Run rounds of load while replicas are killed."""
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


async def containers(data: Path, given: argparse.Namespace) -> Ledger:
    """Run load while containers, their engine and the server are killed."""
    dose = scene.Dose(
        seed=given.seed,
        requests=given.requests,
        turns=given.turns,
        fatal_turns=given.turns,
        starts_max=given.starts_killed,
    )
    return await scene.run(data, dose, image())


async def pairs(data: Path, given: argparse.Namespace) -> Ledger:
    """Run load on server functions while their containers, the engine and the gateway die."""
    dose = pair_scene.Dose(given.seed, turns=given.turns, fatal_turns=given.turns)
    return await pair_scene.run(data, dose, image())


async def several_hosts(data: Path, given: argparse.Namespace) -> Ledger:
    """Run load on three hosts while hosts, their links and the gateway die, with three seeds."""
    turns = max(1, given.turns // 2)

    async def run(folder: Path, seed: int) -> Ledger:
        dose = hosts.Dose(seed, requests=3 * given.requests, turns=turns)
        return await hosts.run(folder, dose, image())

    return await three_seeds("three hosts", run, data, given)


async def three_seeds(
    name: str, run: Callable[[Path, int], Awaitable[Ledger]], data: Path, given: argparse.Namespace
) -> Ledger:
    """Run a scenario with three seeds."""
    whole = Ledger(name)
    for seed in range(given.seed, given.seed + 3):
        one = await run(data / str(seed), seed)
        whole.figures[f"seed {seed}"] = one.figures
        whole.violations += one.violations
    return whole


async def several_gpus(data: Path, given: argparse.Namespace) -> Ledger:
    """Run functions on several GPUs while everything under them dies."""
    name = "replicas on several GPUs"
    return await three_seeds(name, lambda at, seed: gangs.run(at, gangs.Dose(seed)), data, given)


async def sleeping_engines(data: Path, given: argparse.Namespace) -> Ledger:
    """Run engines that are parked and woken while everything under them dies."""
    name = "engines that sleep"
    return await three_seeds(name, lambda at, seed: parks.run(at, parks.Dose(seed)), data, given)


async def besieged(data: Path, given: argparse.Namespace, *, is_root: bool) -> Ledger:
    """Run hostile containers next to innocent ones."""
    dose = hostile.Dose(seed=given.seed, hostile=given.hostile, is_root=is_root)
    return await hostile.run(data / "data", dose, os.environ["FN_TEST_DOCKER"], image())


@functools.cache
def image() -> str:
    """Return the tag of the runtime image built from this checkout on the shared engine."""
    base, wheelhouse = (os.environ[name] for name in ("FN_TEST_BASE", "FN_TEST_WHEELHOUSE"))
    return make_runtime_image(os.environ["FN_TEST_DOCKER"], base, Path(wheelhouse))


def missing() -> str:
    """Return why container scenarios cannot run on this machine; "" if they can."""
    if os.geteuid() != 0:
        return "they need root"
    if absent := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"they need {', '.join(absent)}"
    if "FN_TEST_DOCKER" not in os.environ:
        return 'FN_TEST_DOCKER is not set: eval "$(.ci/engine start)"'
    return ""


SCENARIOS: dict[str, Callable[[Path, argparse.Namespace], Awaitable[Ledger]]] = {
    "rounds": under_fire,
    "poison": lambda data, given: poison.run(data, given.seed),
    "late-run": lambda data, _given: late_run.run(data),
    "turns": lambda data, _given: turns.run(data),
    "frozen": lambda data, given: frozen.run(data, given.seed),
    "floods": lambda data, _given: floods.run(data, floods.Dose()),
    "bounded-steps": lambda data, given: bounded_steps.run(
        data, bounded_steps.Dose(kinds=tuple(given.attack or ()))
    ),
    "fronts": lambda data, given: fronts.run(data, given.seed, given.streams),
    "restarts": lambda data, given: restarts.run(data, given.seed, given.kills),
    "workers": lambda data, given: workers.run(data, given.seed),
    "row-graphs": lambda data, given: row_graphs.run(data, given.seed, given.graphs),
    "strangers": lambda data, given: strangers.run(
        data, strangers.Dose(given.seed, calls=given.calls)
    ),
    "together": lambda data, given: together.run(data, given.seed, 3 * given.requests),
    "odd-servers": lambda data, given: fuzzed_servers.run(data, given.seed, given.messages),
    "model-bodies": lambda data, given: model_bodies.run(data, given.seed, given.messages),
    "killed-servers": lambda data, given: killed_servers.run(data, given.seed),
    "gangs": several_gpus,
    "parks": sleeping_engines,
    "park-cycles": lambda data, given: park_cycles.run(data, park_cycles.Dose(given.seed)),
    "kept-streams": lambda data, _given: kept_streams.run(data),
    "python-streams": lambda data, given: python_streams.run(data, python_streams.Dose(given.seed)),
    "sick-servers": lambda data, _given: sick_servers.run(data),
    "exact-servers": lambda data, _given: exact_servers.run(data),
    "chats": lambda data, given: chats.run(
        data, chats.Dose(given.seed, seconds=60 * given.minutes)
    ),
    "busy-host": lambda data, given: busy_host.run(
        data, busy_host.Dose(given.seed, exchanges=given.exchanges)
    ),
    "hopeless-deploys": lambda data, given: hopeless_deploys.run(
        data, hopeless_deploys.Dose(given.rounds)
    ),
    "oip-models": lambda data, given: oip_models.run(data, oip_models.Dose(given.seed)),
    "hostile-links": lambda data, given: links.run(data, links.Dose(given.seed)),
    "hostile-replica-links": lambda data, given: links.run_at_replica(
        data, links.Dose(given.seed, judged=0)
    ),
    "cold-clients": lambda data, _given: cold_clients.run(data, cold_clients.Dose()),
    "dial-ins": lambda data, given: dial_ins.run(data, dial_ins.Dose(given.seed)),
    "kubernetes": lambda data, given: kubernetes.run(data, kubernetes.Dose(given.seed)),
    "containers": containers,
    "server-containers": pairs,
    "hosts": several_hosts,
    "neighbours": lambda data, given: neighbours.run(data, given.seed, image()),
    "hostile": functools.partial(besieged, is_root=True),
    "hostile-user": functools.partial(besieged, is_root=False),
}
NEEDS_ENGINE = {
    "containers",
    "server-containers",
    "hosts",
    "neighbours",
    "hostile",
    "hostile-user",
}


async def play(name: str, given: argparse.Namespace) -> Ledger:
    """Run one scenario in a temporary folder of its own."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        return await SCENARIOS[name](Path(folder), given)


def main() -> int:
    """Run the requested scenarios, print each report and return the exit code."""
    given = options()
    given.seed = random.randrange(2**32) if given.seed is None else given.seed
    print(f"seed {given.seed}", flush=True)
    reports = []
    is_refused = False
    for name in given.scenario or SCENARIOS:
        if name in NEEDS_ENGINE and (reason := missing()):
            print(f"== {name}: LEFT OUT, {reason}", flush=True)
            is_refused = is_refused or given.scenario is not None
            continue
        ledger = asyncio.run(play(name, given))
        print("\n".join(ledger.lines()), flush=True)
        reports.append(ledger)
        if given.json is not None:
            document = {"seed": given.seed, "scenarios": [one.to_json() for one in reports]}
            given.json.write_text(json.dumps(document, indent=2) + "\n")
    return 1 if is_refused or any(ledger.violations for ledger in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
