"""A thousand simultaneous callers of a cold function, against one cold call plus a warm burst."""

from __future__ import annotations

import time

from benchmarks.gateway import Gateway, gateway
from benchmarks.loading import generator
from benchmarks.loading.call import Load
from benchmarks.measuring.record import Record
from benchmarks.measuring.report import Note, Part, compare
from benchmarks.measuring.setting import Setting
from benchmarks.models import subjects
from benchmarks.models.subjects import Subject

CALLERS = 1000
QUICK_CALLERS = 100
MS = "ms to the last answer"
ALONE = "cold call alone"
SUM = "cold call alone + the callers, warm"
FLUSHED_S = 10.0


def measure(setting: Setting) -> list[Part]:
    """All callers are connected before the first call; each makes one call."""
    subject = subjects.tiny(setting.models)
    callers = QUICK_CALLERS if setting.quick else CALLERS
    parts: list[Part] = []
    for standbys in (1, 0):
        with gateway(environment={"FN_STANDBYS": str(standbys)}) as server:
            server.deploy(subject)
            record = Record()
            for _ in range(setting.rounds):
                _round(record, server, subject, standbys, callers)
            starts, wanted = _cold_starts(server, subject, 2 * setting.rounds), 2 * setting.rounds
        title = f"{callers} callers, {standbys} standbys"
        parts += compare(record, SUM, title=title)
        parts.append(Note(f"{starts} cold starts for {wanted} cold rounds; no caller got an error"))
    return parts


def _round(record: Record, server: Gateway, subject: Subject, standbys: int, callers: int) -> None:
    alone_ms = server.cold_call_ms(subject, standbys)
    load = Load(server.call(subject), callers, each=1)
    server.go_cold(standbys)
    cores = generator.everywhere()
    cold_ms = generator.run(load, cores).last_ms
    warm_ms = generator.run(load, cores).last_ms
    record.add(SUM, {MS: alone_ms + warm_ms})
    record.add(f"{callers} callers, cold", {MS: cold_ms})
    record.add(f"{callers} callers, warm", {MS: warm_ms})
    record.add(ALONE, {MS: alone_ms})


def _cold_starts(server: Gateway, subject: Subject, wanted: int) -> int:
    """Return the number of cold starts in the server's history. The history is written with a
    delay, so wait up to FLUSHED_S for the expected number."""
    until_s = time.monotonic() + FLUSHED_S
    while True:
        found = len(server.server.fnctl_json("why", subject.name)["cold_starts"])
        if found >= wanted or time.monotonic() > until_s:
            return found
        time.sleep(0.2)
