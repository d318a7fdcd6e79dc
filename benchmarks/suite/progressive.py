"""A 500 MB model after its cold start: CPU time of later calls, and latency by second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.gateway import Gateway, gateway
from benchmarks.loading import generator
from benchmarks.loading.call import Load, Loaded
from benchmarks.measuring.processes import busiest, thread_times
from benchmarks.measuring.record import Record, percentile, spread
from benchmarks.measuring.report import Comparison, Grid, Note, Part, compare
from benchmarks.measuring.setting import Setting
from benchmarks.models import subjects
from benchmarks.models.subjects import Subject
from benchmarks.references.engines import EngineProcess, Task, engine_process, task

COMPUTE = "ms of CPU per request in the computing thread"
WORST = "p99 ms"
ORDINARY = "ONNX Runtime alone, ordinary session"
FNGATE = "fngate, seconds after its cold start"
USUAL_SECOND, WORST_SECOND, BEFORE_WORST = "median second", "worst second", "second before it"
WATCH_S, QUICK_WATCH_S = 12, 4
CONNECTIONS = 2
WANTED = {COMPUTE: {FNGATE: "ratio 1.1 at most"}}
WANTED_SECOND = {WORST_SECOND: "ratio 3 at most"}


def measure(setting: Setting) -> list[Part]:
    """Run a load from the cold start on, then single calls to measure their CPU time."""
    subject = subjects.encoder(setting.models, **({"layers": 1} if setting.quick else {}))
    watch_s = QUICK_WATCH_S if setting.quick else WATCH_S
    record, seconds = Record(), Record()
    timelines = []
    one = replace(task(subject), seconds=float(setting.load_s))
    with gateway() as server, engine_process(task(subject)) as engine:
        server.deploy(subject)
        for _ in range(setting.rounds):
            server.go_cold(standbys=1)
            load = Load(server.call(subject), CONNECTIONS, watch_s)
            loaded = generator.run(load, generator.everywhere(), detailed=True)
            timelines.append(by_second(loaded, watch_s))
            add_seconds(seconds, timelines[-1])
            _add_compute(record, server, subject, engine, one)
    tables: list[Part] = [*compare(record, ORDINARY, targets=WANTED, title=subject.name)]
    tables.append(
        Comparison(
            WORST, seconds.of(WORST), USUAL_SECOND, WANTED_SECOND, f"c={CONNECTIONS}, by second"
        )
    )
    tables.append(_timeline(timelines))
    return [
        *tables,
        Note("Calls that waited for the cold start are left out; compute is measured afterwards."),
    ]


def by_second(loaded: Loaded, seconds: float) -> list[list[float]]:
    """Return the milliseconds of the answers in each whole second after the very first answer,
    without calls that also waited for the cold start."""
    first_s = min((at_s for at_s, _ in loaded.ended_s), default=seconds)
    found: list[list[float]] = [[] for _ in range(int(seconds - first_s))]
    for at_s, ms in loaded.ended_s:
        second = int(at_s - first_s)
        if at_s - ms / 1e3 >= first_s and second < len(found):
            found[second].append(ms)
    return found


def add_seconds(record: Record, timeline: Sequence[Sequence[float]]) -> None:
    """Record the worst second and the seconds to compare it with."""
    p99s = [percentile(taken, 0.99) for taken in timeline if taken]
    if len(p99s) < 2:
        raise RuntimeError(f"timeline: expected answers in most seconds, got {len(p99s)} with any")
    at = p99s.index(max(p99s))
    record.add(USUAL_SECOND, {WORST: spread(p99s).median})
    record.add(BEFORE_WORST, {WORST: p99s[max(at - 1, 0)]})
    record.add(WORST_SECOND, {WORST: p99s[at]})


def _add_compute(
    record: Record, server: Gateway, subject: Subject, engine: EngineProcess, one: Task
) -> None:
    """Record the CPU time of sequential calls, so that both compute batches of one row."""
    record.add(ORDINARY, {COMPUTE: engine.do(one)["cpu_ms"]})
    pid = server.replica_pid(subject)
    before = thread_times(pid)
    loaded = generator.run(
        Load(server.call(subject), 1, one.seconds), generator.everywhere(), own=True
    )
    used = busiest(before, thread_times(pid))
    record.add(FNGATE, {COMPUTE: used.on_ns / 1e6 / loaded.requests})


def _timeline(timelines: Sequence[Sequence[Sequence[float]]]) -> Grid:
    """Return medians over the rounds, up to the end of the round with the longest cold start."""
    rows: list[tuple[str, float, float, float]] = []
    for second, rounds in enumerate(zip(*timelines, strict=False)):
        p99s = spread([percentile(taken, 0.99) for taken in rounds])
        count = spread([float(len(taken)) for taken in rounds])
        rows.append((str(second), count.median, p99s.median, p99s.max))
    heads = (
        "second after the first answer",
        "answers",
        "p99 ms, median round",
        "p99 ms, worst round",
    )
    return Grid(heads, rows, f"p99 by second, c={CONNECTIONS}")
