"""Cost of observing: counters, access events, an open dashboard, traces of 1 % of calls."""

from __future__ import annotations

import http.client
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory

from benchmarks.gateway import Gateway, gateway
from benchmarks.loading.call import Load
from benchmarks.measuring.record import Case, Figures, interleaved
from benchmarks.measuring.report import Note, Part, compare
from benchmarks.measuring.setting import LeftOut, Setting, has_setting
from benchmarks.models import subjects
from benchmarks.models.subjects import Subject
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
    """Measure the gateway's CPU time per warm call of a tiny model. Raises LeftOut if this version
    writes no traces."""
    if not has_setting("traces"):
        raise LeftOut("this version has no FN_TRACES")
    if not setting.quick:
        setting = replace(setting, rounds=max(setting.rounds, ROUNDS_MIN))
    subject = subjects.tiny(setting.models)
    lost: dict[str, float] = {}
    with collecting() as collector, TemporaryDirectory(prefix="fn-") as folder:
        watched = {**BARE, "FN_ACCESS_LOG": "true", "FN_BENCHMARK_LOG": f"{folder}/log"}
        traced = {**watched, "FN_TRACES": collector.url, "FN_TRACES_SAMPLE": "0.01"}
        servers = {
            UNOBSERVED: partial(gateway, environment=BARE, program=UNCOUNTED),
            COUNTED: partial(gateway, environment=BARE),
            WATCHED: partial(gateway, environment=watched, program=LOGGED),
            TRACED: partial(gateway, environment=traced, program=LOGGED),
        }
        cases: dict[str, Case] = {
            name: partial(once, name, opened, subject, setting, lost)
            for name, opened in servers.items()
        }
        record = interleaved(cases, setting.rounds)
        spans = len(collector.spans)
    return [
        *compare(record, UNOBSERVED, title=f"c={CONNECTIONS}, tiny model"),
        Note(f"access events dropped, because they came faster than they were written: {lost}"),
        Note(f"{spans} spans arrived at the collector"),
    ]


def once(
    name: str,
    opened: Callable[[], AbstractContextManager[Gateway]],
    subject: Subject,
    setting: Setting,
    lost: dict[str, float],
) -> Figures:
    """Measure one load on a new server: two processes of the same program differ by up to a fifth
    as long as they run, which is more than the expected effect."""
    is_watched = name in (WATCHED, TRACED)
    with opened() as server:
        on = warmed(server, subject, setting)
        with dashboard(server) if is_watched else nullcontext():
            figures = on(Load(server.call(subject), CONNECTIONS, setting.load_s))
        if is_watched:
            lost[name] = lost.get(name, 0.0) + left_out(server)
    return figures


@contextmanager
def dashboard(server: Gateway) -> Iterator[None]:
    """Simulate an open dashboard: read events as fast as they arrive."""
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
    """Return the number of access events that were not written."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", "/metrics", headers=server.server.headers)
    found = LEFT_OUT.search(connection.getresponse().read())
    connection.close()
    return float(found[1]) if found else 0.0
