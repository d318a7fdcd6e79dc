"""Warm calls of a tiny model (JSON), on both HTTP paths, against servers that do nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from benchmarks.gateway import Gateway, gateway
from benchmarks.loaded import P50, P99, RATE, REPLICA_US, SERVER_US, measured
from benchmarks.loading.call import Call, Load
from benchmarks.measuring.record import Case, Figures, interleaved
from benchmarks.measuring.report import Note, Part, compare
from benchmarks.measuring.setting import Setting, has_setting
from benchmarks.models import subjects
from benchmarks.models.subjects import Subject
from benchmarks.references import nginx, servers
from benchmarks.references.servers import Reference

CONNECTIONS = 64
HELLO = "aiohttp hello"
NGINX = "nginx before aiohttp hello"
ENGINE = "aiohttp with the engine in it"
FAST = "fngate, fast front"
PLAIN = "fngate, aiohttp path"

Measure = Callable[[Load], Figures]


def measure(setting: Setting) -> list[Part]:
    """CPU time and rate at c=64, duration of a call at c=1."""
    subject = subjects.tiny(setting.models)
    with ExitStack() as stack:
        ours, notes = _fngate(stack, subject, setting)
        called = {**_references(stack, subject, setting), **ours}
        many = interleaved(_cases(called, CONNECTIONS, setting), setting.rounds)
        one = interleaved(_cases(called, 1, setting), setting.rounds)
    at_64, at_1 = f"c={CONNECTIONS}", "c=1"
    tables: list[Part] = [*compare(many.only(SERVER_US, RATE, REPLICA_US), HELLO, title=at_64)]
    tables += compare(one.only(P50, P99), HELLO, title=at_1)
    return [*tables, *notes]


def _fngate(
    stack: ExitStack, subject: Subject, setting: Setting
) -> tuple[dict[str, tuple[Call, Measure]], list[Part]]:
    """Start one fngate server per HTTP path of this version."""
    fronts = {PLAIN: "0", FAST: "1"}
    notes: list[Part] = []
    if not has_setting("fast_front"):
        del fronts[FAST]
        notes.append(Note(f"{FAST}: left out, this version has no FN_FAST_FRONT"))
    called = {}
    for name, value in fronts.items():
        environment = {"FN_FAST_FRONT": value, "FN_STANDBYS": "0"}
        ours = stack.enter_context(gateway(environment=environment))
        called[name] = (ours.call(subject), warmed(ours, subject, setting))
    return called, notes


def warmed(ours: Gateway, subject: Subject, setting: Setting, *options: str) -> Measure:
    """Deploy a function with `options`, warm it up and pin the server; return the measurement of a
    load on it."""
    ours.deploy(subject, *options)
    ours.call_ms(subject)
    ours.pin(setting)
    processes = {SERVER_US: ours.pids, REPLICA_US: [ours.replica_pid(subject)]}
    return partial(measured, processes=processes, setting=setting)


def _references(
    stack: ExitStack, subject: Subject, setting: Setting
) -> dict[str, tuple[Call, Measure]]:
    """Start the reference servers; the upstream of nginx runs on the replicas' cores."""
    core, others = setting.cores
    path = f"/fn/{subject.name}"
    before = Call(0, path, subject.body, {**subject.headers, "Authorization": "Bearer none"})

    def called(server: Reference) -> tuple[Call, Measure]:
        server.pin(core)
        on = partial(measured, processes={SERVER_US: server.pids}, setting=setting)
        return replace(before, port=server.port), on

    found = {
        HELLO: called(stack.enter_context(servers.hello(path))),
        ENGINE: called(stack.enter_context(servers.engine_server(subject))),
    }
    if nginx.program():
        behind = stack.enter_context(servers.hello(path))
        behind.pin(others)
        found[NGINX] = called(stack.enter_context(servers.nginx(behind.port)))
    return found


def _cases(
    called: dict[str, tuple[Call, Measure]], connections: int, setting: Setting
) -> dict[str, Case]:
    return {
        name: partial(on, Load(call, connections, setting.load_s))
        for name, (call, on) in called.items()
    }
