"""Resources without calls: CPU time and memory."""

from __future__ import annotations

import time

from benchmarks.gateway import Gateway, gateway
from benchmarks.measuring.processes import cpu_ms, memory_kb
from benchmarks.measuring.record import Figures, Record
from benchmarks.measuring.report import Note, Part, compare
from benchmarks.measuring.setting import Setting
from benchmarks.models import subjects
from benchmarks.references.engines import engine_process, task

WATCH_S, QUICK_WATCH_S = 10.0, 1.0
CPU = "ms of CPU per second"
PSS, USS = "PSS, MB", "private memory (USS), MB"
BARE = "bare process with the engine"
STANDBY = "a standby"
AT_REST = "server and one standby"


def measure(setting: Setting) -> list[Part]:
    """Measure a server with one standby and no function, then with an idle warm function."""
    subject = subjects.tiny(setting.models)
    watch_s = QUICK_WATCH_S if setting.quick else WATCH_S
    memory, cpu = Record(), Record()
    with gateway() as server, engine_process(task(subject)) as bare:
        for number in range(setting.rounds):
            if number == 0:
                server.await_states(["standby"])
            [standby] = server.server.replica_pids("standby")
            memory.add(BARE, _megabytes(memory_kb(bare.pid)))
            memory.add(STANDBY, _megabytes(memory_kb(standby)))
            memory.add("the server", _together(server.pids))
            memory.add(AT_REST, _together([*server.pids, standby]))
        server.deploy(subject)
        server.call_ms(subject)
        server.await_states(["ready", "standby"])
        for _ in range(setting.rounds):
            _rest(cpu, server, server.replica_pid(subject), watch_s)
    return [
        *compare(memory, BARE, title="memory at rest, no function yet"),
        *compare(cpu, "", title=f"nobody calls for {watch_s:.0f} s, one warm function"),
        Note("PSS divides shared pages among their processes; it depends on other processes here."),
    ]


def _rest(record: Record, server: Gateway, replica: int, watch_s: float) -> None:
    """Record the CPU time of all processes while there are no calls."""
    watched = {
        "an idle replica": [replica],
        STANDBY: [pid for pid in server.server.replica_pids() if pid != replica],
        "the server": server.pids,
    }
    before = {name: cpu_ms(pids) for name, pids in watched.items()}
    time.sleep(watch_s)
    for name, pids in watched.items():
        record.add(name, {CPU: (cpu_ms(pids) - before[name]) / watch_s})


def _together(pids: list[int]) -> Figures:
    several = [memory_kb(pid) for pid in pids]
    return _megabytes({name: sum(one[name] for one in several) for name in ("pss", "uss")})


def _megabytes(kb: dict[str, int]) -> Figures:
    return {PSS: kb["pss"] * 1024 / 1e6, USS: kb["uss"] * 1024 / 1e6}
