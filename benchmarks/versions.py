"""Compares this version with another: `python -m benchmarks.versions CHECKOUT [plain bodies ...]`.

CHECKOUT is a folder with that version and its virtual environment (made by `make run` or
`make test`). Every pair has two new servers, because two processes of the same program differ by up
to a fifth as long as they run. They are measured in turns, in an order that alternates between
pairs. Printed are the median of the pairs' ratios and its 95 % interval.

- plain, bodies: CPU time of a call in microseconds, server and replica together
- exchange: CPU time of a small call of a server function in microseconds, server and sidecar
- event: the same of an event of a stream of a server function
- chat: CPU time of a chat at /v1 in microseconds, server alone: the call, and each chunk of a
  stream whose model is renamed and whose usage is taken out
- grpc: CPU time of a gRPC call of a tiny model in microseconds, server and replica
- wakeup: milliseconds of a cold call of a tiny model, with a standby and without one
- idle: milliseconds of CPU time of the server per second without calls
- startup: milliseconds of `fnctl --help` and of a replica's imports
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeVar

from benchmarks.gateway import ALLOCATOR, Gateway, gateway
from benchmarks.loaded import REPLICA_US, SERVER_US, measured
from benchmarks.loading import generator, grpc_calls, streams
from benchmarks.loading.call import Load
from benchmarks.loading.grpc_calls import Calls, infer_request
from benchmarks.loading.streams import Streams
from benchmarks.measuring.processes import cpu_ms
from benchmarks.measuring.setting import MODELS, Setting
from benchmarks.models import subjects
from benchmarks.models.subjects import Subject
from benchmarks.references.v2_servers import free_port
from benchmarks.suite import chat
from benchmarks.suite.servers import SMALL, Proxy, proxy_of
from benchmarks.suite.startup import IMPORTS, wall_ms
from tests.support.process_server import FNCTL

Side = TypeVar("Side")

PAIRS = 15
CONFIDENCE = 0.95
SLOTS = 3
BIG, HUGE = 600_000, 10_000_000
CONNECTIONS = {"plain": 64, "600 kB": 8, "10 MB": 2}
WATCH_S = 5.0
REPEATS = 5
"""Cold calls and starts of one program in one pair; their median counts."""
KINDS = ("plain", "bodies", "exchange", "event", "chat", "grpc", "wakeup", "idle", "startup")
EXCHANGES, GRPC_CALLS = 64, 16
"""Connections."""
EVENTS, EVENT_ROUNDS = (64, 100, 20), 3
"""Streams at once, events of each, milliseconds between them; how often."""
CHATS = (16, 100, 20, 2)
"""Streams at once, tokens of each, milliseconds between them, streams one after the other."""


def interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the narrowest pair of order statistics that contains the median with `confidence`.

    Distribution-free: the number of values below the median is binomial with p = 1/2 (David and
    Nagaraja, Order Statistics, 7.1). For fewer than 6 values it is their whole range.
    """
    ordered, size = sorted(values), len(values)
    below = 0.0
    for rank in range(size // 2):
        below += math.comb(size, rank) / 2**size
        if 2 * below > 1 - confidence:
            first = max(0, rank - 1)
            return ordered[first], ordered[size - 1 - first]
    return ordered[0], ordered[-1]


def pair(
    programs: Sequence[Path], kinds: Sequence[str], setting: Setting, *, reverse: bool
) -> dict[str, list[float]]:
    """Return the figures by name, in the order of `programs`."""
    found: dict[str, list[float]] = {}
    if {"plain", "bodies"} & set(kinds):
        found |= _calls(programs, kinds, setting, reverse=reverse)
    if {"exchange", "event"} & set(kinds):
        found |= _exchanges(programs, kinds, setting, reverse=reverse)
    if "chat" in kinds:
        found |= _chats(programs, setting, reverse=reverse)
    if "grpc" in kinds:
        found |= _grpc_calls(programs, setting, reverse=reverse)
    if {"wakeup", "idle"} & set(kinds):
        found |= _rests(programs, kinds, setting, reverse=reverse)
    if "startup" in kinds:
        found |= _in_turns(programs, _starts, reverse=reverse)
    return found


def _calls(
    programs: Sequence[Path], kinds: Sequence[str], setting: Setting, *, reverse: bool
) -> dict[str, list[float]]:
    tiny = subjects.tiny(setting.models)
    named = {"plain": tiny} if "plain" in kinds else {}
    if "bodies" in kinds:
        named["600 kB"] = subjects.first(setting.models, BIG)
        named["10 MB"] = subjects.first(setting.models, HUGE)
    with ExitStack() as stack:
        servers = [stack.enter_context(_server(program, standbys=0)) for program in programs]
        for ours in servers:
            for subject in {one.name: one for one in named.values()}.values():
                ours.deploy(subject)
            for subject in named.values():
                ours.call_ms(subject)
            ours.pin(setting)

        def costs(ours: Gateway) -> dict[str, float]:
            return {
                name: _cost(ours, subject, CONNECTIONS[name], setting)
                for name, subject in named.items()
            }

        return _in_turns(servers, costs, reverse=reverse)


def _exchanges(
    programs: Sequence[Path], kinds: Sequence[str], setting: Setting, *, reverse: bool
) -> dict[str, list[float]]:
    with ExitStack() as stack:
        made = [stack.enter_context(_server(program, standbys=0)) for program in programs]
        proxies = [proxy_of(stack, ours, setting) for ours in made]

        def call_cost(proxy: Proxy) -> dict[str, float]:
            load = Load(proxy.call("/small", SMALL), EXCHANGES, setting.load_s)
            figures = measured(load, {SERVER_US: proxy.pids}, setting)
            return {"exchange": figures[SERVER_US]}

        def event_cost(proxy: Proxy) -> dict[str, float]:
            plan = Streams(proxy.port, f"{proxy.prefix}/sse", *EVENTS, proxy.headers)
            before, events = cpu_ms(proxy.pids), 0
            for _ in range(EVENT_ROUNDS):
                with generator.planned(plan, setting.cores[1]) as process:
                    events += streams.figures(process, plan).events
            return {"event": (cpu_ms(proxy.pids) - before) / events * 1e3}

        found: dict[str, list[float]] = {}
        for kind, cost in (("exchange", call_cost), ("event", event_cost)):
            if kind in kinds:
                found |= _in_turns(proxies, cost, reverse=reverse)
        return found


def _chats(programs: Sequence[Path], setting: Setting, *, reverse: bool) -> dict[str, list[float]]:
    with ExitStack() as stack:
        slots = len(chat.FUNCTIONS)
        made = [stack.enter_context(_server(one, standbys=0, slots=slots)) for one in programs]
        edited = list(chat.FUNCTIONS)[-1]
        proxies = [chat.proxies_of(stack, ours, setting)[edited] for ours in made]

        def cost(proxy: chat.Proxy) -> dict[str, float]:
            streams = chat.streams(proxy, CHATS, setting)
            calls = chat.firsts(proxy, chat.FIRSTS, setting)
            return {"chunk": streams[chat.CHUNK_US], "chat": calls[chat.CALL_US]}

        return _in_turns(proxies, cost, reverse=reverse)


def _grpc_calls(
    programs: Sequence[Path], setting: Setting, *, reverse: bool
) -> dict[str, list[float]]:
    tiny = subjects.tiny(setting.models)
    message = infer_request(tiny.name, "x", tiny.shape, "FP32", bytes(16)).hex()
    with ExitStack() as stack:
        ports = [free_port() for _ in programs]
        servers = [
            stack.enter_context(_server(program, standbys=0, grpc_port=port))
            for program, port in zip(programs, ports, strict=True)
        ]
        for ours in servers:
            ours.deploy(tiny, "--min", "1")
            ours.call_ms(tiny)
            ours.pin(setting)

        def cost(side: tuple[Gateway, int]) -> dict[str, float]:
            ours, port = side
            pids = [*ours.pids, ours.replica_pid(tiny)]
            metadata = {"authorization": f"Bearer {ours.key}"}
            plan = Calls(port, message, GRPC_CALLS, setting.load_s, metadata)
            before = cpu_ms(pids)
            loaded = grpc_calls.run(plan, setting.cores[1])
            return {"gRPC": (cpu_ms(pids) - before) / loaded.requests * 1e3}

        return _in_turns(list(zip(servers, ports, strict=True)), cost, reverse=reverse)


def _rests(
    programs: Sequence[Path], kinds: Sequence[str], setting: Setting, *, reverse: bool
) -> dict[str, list[float]]:
    tiny = subjects.tiny(setting.models)
    found: dict[str, list[float]] = {}
    for standbys in (1, 0):
        with ExitStack() as stack:
            servers = [stack.enter_context(_server(one, standbys=standbys)) for one in programs]
            for ours in servers:
                ours.deploy(tiny)
                ours.call_ms(tiny)
            if "wakeup" in kinds:
                found |= _in_turns(servers, partial(_cold, tiny, standbys), reverse=reverse)
            if "idle" in kinds and standbys:
                found |= _in_turns(servers, _idle, reverse=reverse)
    return found


def _cold(subject: Subject, standbys: int, ours: Gateway) -> dict[str, float]:
    times = [ours.cold_call_ms(subject, standbys) for _ in range(REPEATS)]
    return {"cold call, standby" if standbys else "cold call, no standby": median(times)}


def _idle(ours: Gateway) -> dict[str, float]:
    before = cpu_ms(ours.pids)
    time.sleep(WATCH_S)
    return {"idle server": (cpu_ms(ours.pids) - before) / WATCH_S}


def _starts(program: Path) -> dict[str, float]:
    imports = [str(program.parent / "python"), "-P", "-c", IMPORTS]
    commands = {"fnctl --help": [str(program), "--help"], "imports of a replica": imports}
    return {
        name: median(wall_ms(command)["ms"] for _ in range(REPEATS))
        for name, command in commands.items()
    }


def _in_turns(
    sides: Sequence[Side], measure: Callable[[Side], dict[str, float]], *, reverse: bool
) -> dict[str, list[float]]:
    """Return the figures of each side; the last side is measured first if `reverse`."""
    order = list(range(len(sides)))
    figures = {index: measure(sides[index]) for index in (reversed(order) if reverse else order)}
    return {name: [figures[index][name] for index in order] for name in figures[0]}


def _server(
    program: Path, *, standbys: int, grpc_port: int = 0, slots: int = SLOTS
) -> AbstractContextManager[Gateway]:
    environment = {**ALLOCATOR, "FN_STANDBYS": str(standbys), "FN_CPU_SLOTS": str(slots)}
    if grpc_port:
        environment["FN_GRPC_PORT"] = str(grpc_port)
    return gateway(environment=environment, program=(str(program),), client=(str(program),))


def _cost(ours: Gateway, subject: Subject, connections: int, setting: Setting) -> float:
    load = Load(ours.call(subject), connections, setting.load_s)
    processes = {SERVER_US: ours.pids, REPLICA_US: [ours.replica_pid(subject)]}
    figures = measured(load, processes, setting)
    return figures[SERVER_US] + figures[REPLICA_US]


def report(pairs: Sequence[dict[str, list[float]]]) -> list[str]:
    """Format a row per figure, and one for all (the geometric mean of a pair's ratios)."""
    lines = ["| what | before | after | ratio | 95 % interval |", "|---|---|---|---|---|"]
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
    parser.add_argument("checkout", type=Path, help="checkout of the other, earlier version")
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], help="measurements; default: all")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every figure to FILE")
    given = parser.parse_args()
    other = given.checkout.resolve() / ".venv" / "bin" / "fnctl"
    if not other.exists():
        parser.error(f"expected a checkout with a virtual environment, {other} does not exist")
    setting = Setting(models=MODELS)
    pairs = []
    for number in range(given.pairs):
        programs = [other, Path(FNCTL)]
        pairs.append(pair(programs, given.kinds or KINDS, setting, reverse=bool(number % 2)))
        say(f"pair {number + 1}: {pairs[-1]}")
        if given.json:
            given.json.write_text(json.dumps(pairs))
    say("\n".join(report(pairs)))


if __name__ == "__main__":
    main()
