"""What a call costs, beside another version: `python -m benchmarks.versions CHECKOUT`.

CHECKOUT is a folder with that version and its virtual environment (`make run` or `make test` makes
one). Every pair has two new servers, for two processes of the same program differ by up to a fifth
all their lives; they are loaded in turns, the order changing from pair to pair. Printed are the
median of the pairs' ratios of CPU time, server and replica together, and its 95 % interval.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from statistics import median

from benchmarks.gateway import ALLOCATOR, Gateway, gateway
from benchmarks.loaded import REPLICA_US, SERVER_US, measured
from benchmarks.loading.call import Load
from benchmarks.measuring.setting import MODELS, Setting
from benchmarks.models import subjects
from benchmarks.models.subjects import Subject
from tests.support.process_server import FNCTL

PAIRS = 15
CONFIDENCE = 0.95
SLOTS = "3"
BIG, HUGE = 600_000, 10_000_000
CONNECTIONS = {"plain": 64, "600 kB": 8, "10 MB": 2}


def interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The narrowest pair of order statistics that holds the median with this confidence.

    Distribution-free: the number of values below the median is binomial with p = 1/2 (David and
    Nagaraja, Order Statistics, 7.1). Of fewer than 6 values it is their whole range.
    """
    ordered, size = sorted(values), len(values)
    below = 0.0
    for rank in range(size // 2):
        below += math.comb(size, rank) / 2**size
        if 2 * below > 1 - confidence:
            first = max(0, rank - 1)
            return ordered[first], ordered[size - 1 - first]
    return ordered[0], ordered[-1]


def pair(programs: Sequence[str], setting: Setting, *, reverse: bool) -> dict[str, list[float]]:
    """Microseconds of CPU time per call by load, in the order of `programs`."""
    tiny = subjects.tiny(setting.models)
    named = {
        "plain": tiny,
        "600 kB": subjects.first(setting.models, BIG),
        "10 MB": subjects.first(setting.models, HUGE),
    }
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        servers = [stack.enter_context(_server(program)) for program in programs]
        for ours in servers:
            ours.deploy(tiny)
            ours.deploy(named["600 kB"])
            for subject in named.values():
                ours.call_ms(subject)
            ours.pin(setting)
        for name, subject in named.items():
            costs = [0.0] * len(servers)
            order = list(enumerate(servers))
            for index, ours in reversed(order) if reverse else order:
                costs[index] = _cost(ours, subject, CONNECTIONS[name], setting)
            found[name] = costs
    return found


def _server(program: str) -> AbstractContextManager[Gateway]:
    environment = {**ALLOCATOR, "FN_STANDBYS": "0", "FN_CPU_SLOTS": SLOTS}
    return gateway(environment=environment, program=(program,), client=(program,))


def _cost(ours: Gateway, subject: Subject, connections: int, setting: Setting) -> float:
    load = Load(ours.call(subject), connections, setting.load_s)
    processes = {SERVER_US: ours.pids, REPLICA_US: [ours.replica_pid(subject)]}
    figures = measured(load, processes, setting)
    return figures[SERVER_US] + figures[REPLICA_US]


def report(pairs: Sequence[dict[str, list[float]]]) -> list[str]:
    """A row for each load, and one for all together (the geometric mean of a pair's loads)."""
    lines = ["| load | before, us | after, us | ratio | 95 % interval |", "|---|---|---|---|---|"]
    names = list(pairs[0])
    ratios = {name: [one[name][1] / one[name][0] for one in pairs] for name in names}
    for name in names:
        before, after = (median(one[name][side] for one in pairs) for side in (0, 1))
        lines.append(f"| {name} | {before:.1f} | {after:.1f} | {_ratio(ratios[name])} |")
    whole = [math.prod(values) ** (1 / len(names)) for values in zip(*ratios.values(), strict=True)]
    return [*lines, f"| all | | | {_ratio(whole)} |"]


def _ratio(values: Sequence[float]) -> str:
    low, high = interval(values)
    return f"{median(values):.3f} | {low:.3f} to {high:.3f}"


def main(say: Callable[[str], None] = print) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versions", description=__doc__)
    parser.add_argument("checkout", type=Path, help="the other version, the one before")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there, too")
    given = parser.parse_args()
    other = given.checkout.resolve() / ".venv" / "bin" / "fnctl"
    if not other.exists():
        parser.error(f"expected a checkout with a virtual environment, {other} is not there")
    setting = Setting(models=MODELS)
    pairs = []
    for number in range(given.pairs):
        pairs.append(pair([str(other), FNCTL], setting, reverse=bool(number % 2)))
        say(f"pair {number + 1}: {pairs[-1]}")
        if given.json:
            given.json.write_text(json.dumps(pairs))
    say("\n".join(report(pairs)))


if __name__ == "__main__":
    main()
