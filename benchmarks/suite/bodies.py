"""Large bodies, raw bytes: cost of each, and their effect on concurrent small calls."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from benchmarks.gateway import ALLOCATOR, Gateway, gateway
from benchmarks.loaded import P50, P99, RATE, REPLICA_US, SERVER_US, measured
from benchmarks.loading import generator
from benchmarks.loading.call import Call, Load
from benchmarks.measuring.record import Case, Figures, interleaved
from benchmarks.measuring.report import Note, Part, compare
from benchmarks.measuring.setting import Setting
from benchmarks.models import subjects
from benchmarks.models.subjects import Subject
from benchmarks.references import servers
from benchmarks.references.servers import Reference

BIG, HUGE = 600_000, 10_000_000
BIG_CONNECTIONS, HUGE_CONNECTIONS, SMALL_CONNECTIONS = 8, 2, 8
HEAD_BYTES = 128
"""Bytes of an npy answer before the values."""
SLOTS = "3"
"""One slot per function, so that no function evicts another."""
SETTLE_S = 0.3
HELLO = "aiohttp hello"
FNGATE = "fngate"
ALONE = "small calls alone, "
BESIDE = "small calls beside two of 10 MB, "


def measure(setting: Setting) -> list[Part]:
    """CPU time per body, then p50 of small calls with and without large ones."""
    tiny = subjects.tiny(setting.models)
    big, huge = (subjects.first(setting.models, size) for size in (BIG, HUGE))
    echo = subjects.same(setting.models, BIG)
    core, _ = setting.cores
    with ExitStack() as stack:
        ours = stack.enter_context(
            gateway(environment={**ALLOCATOR, "FN_STANDBYS": "0", "FN_CPU_SLOTS": SLOTS})
        )
        for subject in (tiny, big, echo):
            ours.deploy(subject)
        theirs = stack.enter_context(servers.hello("/fn/first", environment=ALLOCATOR))
        answering = stack.enter_context(
            servers.hello("/fn/same", answer=BIG + HEAD_BYTES, environment=ALLOCATOR)
        )
        for server in (theirs, answering):
            server.pin(core)
        for subject in (tiny, big, huge, echo):
            ours.call_ms(subject)
        ours.pin(setting)
        parts: list[Part] = []
        for subject, server, connections, title in (
            (big, theirs, BIG_CONNECTIONS, "600 kB there, a short answer back"),
            (huge, theirs, HUGE_CONNECTIONS, "10 MB there, a short answer back"),
            (echo, answering, BIG_CONNECTIONS, "600 kB there and back"),
        ):
            cases = _cases(ours, server, subject, connections, setting)
            record = interleaved(cases, setting.rounds).only(SERVER_US, RATE, REPLICA_US)
            parts += compare(record, HELLO, title=f"{title}, c={connections}")
        parts += _mixed(ours, theirs, tiny, huge, setting)
    parts.append(Note("Every server has the same allocator settings; hello takes 64 MiB."))
    return parts


def _cases(
    ours: Gateway, theirs: Reference, subject: Subject, connections: int, setting: Setting
) -> dict[str, Case]:
    call = ours.call(subject)
    processes = {SERVER_US: ours.pids, REPLICA_US: [ours.replica_pid(subject)]}
    load = Load(call, connections, setting.load_s)
    against = replace(load, call=replace(call, port=theirs.port))
    return {
        HELLO: partial(measured, against, {SERVER_US: theirs.pids}, setting),
        FNGATE: partial(measured, load, processes, setting),
    }


def _mixed(
    ours: Gateway, theirs: Reference, tiny: Subject, huge: Subject, setting: Setting
) -> list[Part]:
    """Compare small calls alone with small calls beside large ones, for both servers."""
    parts: list[Part] = []
    small, large = ours.call(tiny), ours.call(huge)
    for name, port, path in ((FNGATE, ours.port, small.path), (HELLO, theirs.port, large.path)):
        one = replace(small, port=port, path=path)
        cases = {
            ALONE + name: partial(_small, one, None, setting),
            BESIDE + name: partial(_small, one, replace(large, port=port), setting),
        }
        record = interleaved(cases, setting.rounds)
        title = f"small calls of {name}, c={SMALL_CONNECTIONS}"
        parts += compare(record.only(P50, P99), ALONE + name, title=title)
    return parts


def _small(call: Call, beside: Call | None, setting: Setting) -> Figures:
    """Measure small calls, optionally while large ones run on two connections."""
    cores = setting.cores[1]
    load = Load(call, SMALL_CONNECTIONS, setting.load_s)
    with ExitStack() as stack:
        if beside is not None:
            heavy = Load(beside, HUGE_CONNECTIONS, setting.load_s + 1)
            process = stack.enter_context(generator.running(heavy, cores))
            time.sleep(SETTLE_S)
        loaded = generator.run(load, cores)
        if beside is not None:
            generator.figures(process, heavy)
    return {P50: loaded.p50_ms, P99: loaded.p99_ms}
