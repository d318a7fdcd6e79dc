"""Load on one server, and the CPU time of its processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.loading import generator
from benchmarks.loading.call import Load, Loaded
from benchmarks.measuring.processes import cpu_ms
from benchmarks.measuring.setting import Setting

SERVER_US = "us of CPU per request, server"
REPLICA_US = "us of CPU per request, replica"
RATE = "answers per second"
P50 = "p50 ms"
P99 = "p99 ms"


def measured(
    load: Load, processes: Mapping[str, Sequence[int]], setting: Setting
) -> dict[str, float]:
    """Return the CPU time of processes per answer, by metric, and rate and latency of answers."""
    before = {metric: cpu_ms(pids) for metric, pids in processes.items()}
    loaded = generator.run(load, setting.cores[1])
    used = {metric: cpu_ms(pids) - before[metric] for metric, pids in processes.items()}
    per_request = {metric: ms / loaded.requests * 1e3 for metric, ms in used.items()}
    return {**per_request, **answers(loaded)}


def answers(loaded: Loaded) -> dict[str, float]:
    """Return rate and latency of the answers."""
    return {RATE: loaded.per_s, P50: loaded.p50_ms, P99: loaded.p99_ms}
