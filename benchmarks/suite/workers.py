"""One and two gateway workers: CPU time of a call, and calls per second."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from benchmarks.gateway import gateway
from benchmarks.loading.call import Load
from benchmarks.measuring.record import Case, interleaved
from benchmarks.measuring.report import Note, Part, compare
from benchmarks.measuring.setting import LeftOut, Setting, has_setting
from benchmarks.models import subjects
from benchmarks.suite.plain import CONNECTIONS, warmed

COUNTS = (1, 2)


def measure(setting: Setting) -> list[Part]:
    """Measure on all cores: workers share them with the replica and the load generator. Raises
    LeftOut if this version has a single gateway process."""
    if not has_setting("workers"):
        raise LeftOut("this version has no FN_WORKERS")
    setting = replace(setting, pinned=False)
    subject = subjects.tiny(setting.models)
    with ExitStack() as stack:
        cases: dict[str, Case] = {}
        for count in COUNTS:
            environment = {"FN_WORKERS": str(count), "FN_STANDBYS": "0"}
            server = stack.enter_context(gateway(environment=environment))
            on = warmed(server, subject, setting)
            load = Load(server.call(subject), CONNECTIONS, setting.load_s)
            cases[name(count)] = partial(on, load)
        record = interleaved(cases, setting.rounds)
    return [
        *compare(record, name(COUNTS[0]), title=f"c={CONNECTIONS}, tiny model, nothing pinned"),
        Note(
            "CPU time of the server includes all its processes. Two workers can only be faster if"
            " cores are left for them beside the replica and the load generator."
        ),
    ]


def name(count: int) -> str:
    """Return the name of a case."""
    return "1 worker" if count == 1 else f"{count} workers"
