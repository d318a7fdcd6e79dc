"""Cold calls, against loading and running the model without fngate."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.gateway import Gateway, gateway
from benchmarks.measuring.record import Case, interleaved
from benchmarks.measuring.report import Note, Part, compare
from benchmarks.measuring.setting import Setting
from benchmarks.models import subjects
from benchmarks.models.subjects import Subject
from benchmarks.references.engines import (
    EngineProcess,
    Task,
    engine_process,
    fresh_ms,
    task,
    whole_process_ms,
)

MS = "ms"
LOADED = "warm process: load, run"
AGAIN = "the same again in that process"
STANDBY = "cold call, standby"
PROCESS = "new process: import, load, run"
NO_STANDBY = "cold call, no standby"
WARM = "warm call"
SMALL = "15 ms more at most"
WANTED = {"tiny": SMALL, "digits": SMALL, "": "ratio 1.25 at most"}
WANTED_NO_STANDBY = "ratio 1.3 at most"


def measure(setting: Setting) -> list[Part]:
    """Return three tables per model; files are in the page cache. A process that loads a large
    model again reuses the memory of the first load, unlike any cold start: that ratio is
    stricter."""
    parts: list[Part] = []
    small = task(subjects.tiny(setting.models))
    with tempfile.TemporaryDirectory(prefix="fn-") as name, ExitStack() as stack:
        servers = {
            count: stack.enter_context(gateway(environment={"FN_STANDBYS": str(count)}))
            for count in (1, 0)
        }
        for subject in chosen(setting):
            for server in servers.values():
                server.deploy(subject)
            one = plan(servers[0], subject, Path(name))
            servers[0].go_cold(0)
            with engine_process(one) as engine:
                measured: dict[str, Case] = {
                    LOADED: partial(loaded, small, one),
                    **cases(servers, subject, one, engine),
                }
                record = interleaved(measured, setting.rounds)
            title = f"{subject.name}, {subject.size}, first session {described(one)}"
            wanted = {STANDBY: WANTED.get(subject.name, WANTED[""])}
            for table in ((LOADED, AGAIN, STANDBY, WARM), (AGAIN, STANDBY), (PROCESS, NO_STANDBY)):
                parts += compare(
                    record,
                    table[0],
                    cases=table,
                    targets={MS: {**wanted, NO_STANDBY: WANTED_NO_STANDBY}},
                    title=title,
                )
    parts.append(Note("Milliseconds at the client, to the last byte of the answer."))
    return parts


def chosen(setting: Setting) -> list[Subject]:
    """Return the models to measure."""
    if setting.quick:
        return [subjects.tiny(setting.models), subjects.encoder(setting.models, layers=1)]
    made = (subjects.tiny, subjects.convnet, subjects.encoder)
    return [subjects.digits(), *(make(setting.models) for make in made)]


def plan(server: Gateway, subject: Subject, folder: Path) -> Task:
    """Return the first session of the function's replicas; the function is warm afterwards."""
    server.call_ms(subject)
    return server.first_session(subject, folder)


def described(one: Task) -> str:
    """Describe a session: its file and its options."""
    how = [name for name in ("optimise", "prepack") if getattr(one, name)]
    return f"of {Path(one.model).name} ({', '.join(how) or 'as it is'})"


def loaded(small: Task, one: Task) -> dict[str, float]:
    """Measure the minimum time of a cold call with a standby."""
    return {MS: fresh_ms(small, one)}


def cases(
    servers: Mapping[int, Gateway], subject: Subject, one: Task, engine: EngineProcess
) -> dict[str, Case]:
    """Return the measurements of one model, with `servers` by the number of standbys."""

    def cold(standbys: int) -> dict[str, float]:
        return {MS: servers[standbys].cold_call_ms(subject, standbys)}

    def warm() -> dict[str, float]:
        servers[1].call_ms(subject)
        return {MS: servers[1].call_ms(subject)}

    return {
        AGAIN: lambda: {MS: engine.do(one)[MS]},
        STANDBY: partial(cold, 1),
        PROCESS: lambda: {MS: whole_process_ms(one)},
        NO_STANDBY: partial(cold, 0),
        WARM: warm,
    }
