"""A 100 MB convnet at c=16, against ONNX Runtime alone with the same threads and batches."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from benchmarks.gateway import gateway
from benchmarks.loaded import P50, P99, RATE, REPLICA_US, SERVER_US, measured
from benchmarks.loading.call import Load
from benchmarks.measuring.processes import busiest, pin, thread_times
from benchmarks.measuring.record import Case, Figures, interleaved
from benchmarks.measuring.report import Note, Part, compare
from benchmarks.measuring.setting import Setting
from benchmarks.models import subjects
from benchmarks.references import servers
from benchmarks.references.engines import EngineProcess, Task, engine_process, task

CONNECTIONS = 16
QUICK_CONNECTIONS = 4
LOAD_FACTOR = 2
"""Runs take tens of milliseconds, so a load must last longer to contain enough of them."""
ENGINE = "aiohttp with the engine in it"
FNGATE = "fngate"
BUSY = "share of time in which the computing thread had work"
WANTED = {RATE: {FNGATE: "ratio 0.95 at least"}, BUSY: {FNGATE: "0.95 at least"}}
CPU_US = REPLICA_US
"""The metric for the engine's process is the one for the replica: both run the model."""


def measure(setting: Setting) -> list[Part]:
    """Pictures per second, and CPU time per picture of the process that runs the engine."""
    subject = subjects.convnet(setting.models)
    connections = QUICK_CONNECTIONS if setting.quick else CONNECTIONS
    others = setting.cores[1]
    seconds = setting.load_s * LOAD_FACTOR
    with ExitStack() as stack:
        ours = stack.enter_context(gateway(environment={"FN_STANDBYS": "0"}))
        ours.deploy(subject)
        ours.call_ms(subject)
        ours.pin(setting)
        one = replace(task(subject), seconds=seconds)
        engine = stack.enter_context(engine_process(task(subject)))
        pin([engine.pid], others)
        simple = stack.enter_context(servers.engine_server(subject))
        simple.pin(others)
        load = Load(ours.call(subject), connections, seconds)
        processes = {SERVER_US: ours.pids, REPLICA_US: [ours.replica_pid(subject)]}
        batch_max = int(ours.revision(subject)["batch_max"])
        by_rows = {_name(rows): rows for rows in sorted({1, min(batch_max, connections)})}
        cases: dict[str, Case] = {
            name: partial(_alone, engine, replace(one, rows=rows)) for name, rows in by_rows.items()
        }
        against = replace(load, call=replace(load.call, port=simple.port))
        cases[ENGINE] = partial(_busy, against, {REPLICA_US: simple.pids}, setting)
        cases[FNGATE] = partial(_busy, load, processes, setting)
        record = interleaved(cases, setting.rounds)
    shown = record.only(RATE, BUSY, CPU_US, SERVER_US, P50, P99)
    title = f"c={connections}, batches of up to {batch_max}, 1 thread"
    tables: list[Part] = [*compare(shown, _name(1), targets=WANTED, title=title)]
    if batch_max > 1:
        tables += compare(
            record.only(RATE), list(by_rows)[-1], cases=[*by_rows, FNGATE], title=title
        )
    return [*tables, Note("Bodies are 600 kB of npy; the loader shares the engine's core.")]


def _name(rows: int) -> str:
    return f"ONNX Runtime alone, batch {rows}"


def _busy(load: Load, processes: dict[str, list[int]], setting: Setting) -> Figures:
    """Measure a load and the share of time with work for the computing thread. Unlike answers per
    second, this share does not fall when other processes use the processor."""
    [pid] = processes[REPLICA_US]
    before = thread_times(pid)
    figures = measured(load, processes, setting)
    had_s = busiest(before, thread_times(pid)).wanted_ns / 1e9
    return {**figures, BUSY: had_s / load.seconds}


def _alone(engine: EngineProcess, one: Task) -> Figures:
    figures = engine.do(one)
    return {RATE: figures["rows_per_s"], CPU_US: figures["cpu_ms"] * 1e3}
