"""What it costs to be watched: counters, access events, an open dashboard, traces of one in 100."""

from __future__ import annotations

import http.client
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.gateway import Gateway, gateway
from benchmarks.loading.call import Load
from benchmarks.measuring.record import Case, interleaved
from benchmarks.measuring.report import Note, Part, compare
from benchmarks.measuring.setting import LeftOut, Setting, has_setting
from benchmarks.models import subjects
from benchmarks.suite.plain import CONNECTIONS, warmed
from tests.support.collector import collecting

ROUNDS_MIN = 9
UNOBSERVED = "nothing counted"
COUNTED = "counted"
WATCHED = "counted, access events, dashboard"
TRACED = "the same, traces of 1 %"
UNCOUNTED = (sys.executable, "-m", "benchmarks.unobserved")
LOGGED = (sys.executable, "-m", "benchmarks.logged")
BARE = {"FN_STANDBYS": "0"}
LEFT_OUT = re.compile(rb"^fngate_access_events_left_out_total (\S+)$", re.MULTILINE)


def measure(setting: Setting) -> list[Part]:
    """Processor time of the gateway per warm call of a tiny model. Raises LeftOut where this
    version writes no traces."""
    if not has_setting("traces"):
        raise LeftOut("this version has no FN_TRACES")
    if not setting.quick:
        setting = replace(setting, rounds=max(setting.rounds, ROUNDS_MIN))
    subject = subjects.tiny(setting.models)
    with ExitStack() as stack:
        collector = stack.enter_context(collecting())
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="fn-")))
        watched = {**BARE, "FN_ACCESS_LOG": "true", "FN_BENCHMARK_LOG": str(folder / "log")}
        traced = {**watched, "FN_TRACES": collector.url, "FN_TRACES_SAMPLE": "0.01"}
        servers = {
            UNOBSERVED: gateway(environment=BARE, program=UNCOUNTED),
            COUNTED: gateway(environment=BARE),
            WATCHED: gateway(environment=watched, program=LOGGED),
            TRACED: gateway(environment=traced, program=LOGGED),
        }
        cases: dict[str, Case] = {}
        opened: dict[str, Gateway] = {}
        for name, made in servers.items():
            server = opened[name] = stack.enter_context(made)
            on = warmed(server, subject, setting)
            cases[name] = partial(on, Load(server.call(subject), CONNECTIONS, setting.load_s))
            if name in (WATCHED, TRACED):
                stack.enter_context(dashboard(server))
        record = interleaved(cases, setting.rounds)
        lost = {name: left_out(opened[name]) for name in (WATCHED, TRACED)}
        spans = len(collector.spans)
    return [
        *compare(record, UNOBSERVED, title=f"c={CONNECTIONS}, tiny model"),
        Note(f"access events left out, for they came faster than they were read: {lost}"),
        Note(f"{spans} spans came to the collector"),
    ]


@contextmanager
def dashboard(server: Gateway) -> Iterator[None]:
    """Somebody has the page open: events are read, as fast as they come."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", "/admin/v1/events", headers=server.server.headers)
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"events: expected 200, got {response.status}")

    def read() -> None:
        try:
            while response.read1(65536):
                pass
        except (OSError, ValueError, AttributeError, http.client.HTTPException):
            return  # closed below, in the middle of a read

    reader = threading.Thread(target=read, name="dashboard", daemon=True)
    reader.start()
    try:
        yield
    finally:
        if connection.sock is not None:
            connection.sock.shutdown(2)
        reader.join(10)
        connection.close()


def left_out(server: Gateway) -> float:
    """Access events that were not written."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", "/metrics", headers=server.server.headers)
    found = LEFT_OUT.search(connection.getresponse().read())
    connection.close()
    return float(found[1]) if found else 0.0
