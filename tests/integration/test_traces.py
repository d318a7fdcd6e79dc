"""Tests of traces of a real server over real replicas, as a collector receives them."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support import models
from tests.support.collector import CLIENT, SERVER, Collector, Seen, check_times, collecting, tree
from tests.support.process_server import END_S, ServerProcess, server_process
from tests.support.worker_server import lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ID, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ONE: dict[str, Any] = {"x": [[1, 0, 0, 0]]}
PHASES = ("place", "evict", "start", "import", "bind", "fetch", "read", "load")
HANDLER = """
import os

def predict(inputs, ctx):
    if not os.path.exists({flag!r}):
        open({flag!r}, "w").close()
        os.kill(os.getpid(), 9)
    return {{"trace": ctx.traceparent}}
"""
MANIFEST = """schema = 1
name = "frail"
[runtime]
engine = "python"
[scaling]
max = 1
[limits]
retry = "always"
[input.x]
kind = "json"
[sample]
"""


@contextmanager
def tracing(
    folder: Path, *options: str, standbys: int = 0, **settings: str
) -> Iterator[tuple[Collector, ServerProcess]]:
    """A server that sends its traces to a collector."""
    with collecting() as collector:
        environment = {"FN_TRACES": collector.url, "FN_STANDBYS": str(standbys), **settings}
        with server_process(folder / "data", *options, environment=environment) as server:
            yield collector, server


def deploy(server: ServerProcess, folder: Path, name: str = "twice") -> None:
    """Deploy a function that multiplies by two."""
    server.fnctl_json("deploy", str(models.affine(folder, 2, 0)), "--name", name)


def call(
    server: ServerProcess, ref: str = "twice", inputs: dict[str, Any] = ONE, **headers: str
) -> tuple[int, Any]:
    """Make one call over a connection of its own; return status and JSON."""
    parts = urlsplit(server.url)
    http = HTTPConnection(parts.hostname or "", parts.port, timeout=END_S)
    body = json.dumps({"inputs": inputs})
    try:
        http.request("POST", f"/fn/{ref}", body, {"Content-Type": "application/json", **headers})
        answer = http.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        http.close()


def check_cold(trace: list[Seen], parent: str = "") -> None:
    """Check the whole tree of a request that waited for a cold start."""
    check_times(trace)
    (root,) = tree(trace, parent).items()
    name, below = root
    assert name == "POST /fn/{name}"
    assert list(below) == ["hold", "send"]
    phases = list(below["hold"]["cold start"])
    assert phases == [phase for phase in PHASES if phase in phases]
    assert {"place", "load"} <= set(phases)
    assert below["send"] == {"batch": {"decode": {}, "first_run": {}, "encode": {}}}


def named(trace: list[Seen], name: str) -> Seen:
    """Return the first span of this name."""
    return next(span for span in sorted(trace, key=lambda one: one.start) if span.name == name)


def test_the_whole_tree_of_a_cold_call(tmp_path: Path) -> None:
    """A cold call has its whole tree, alone or below the client's span; an unsampled client's call
    has none."""
    with tracing(tmp_path) as (collector, server):
        deploy(server, tmp_path)
        assert call(server)[0] == 200
        server.fnctl_json("sleep", "twice")
        assert call(server, traceparent=f"00-{ID}-{PARENT}-00")[0] == 200
        assert call(server, traceparent=f"00-{ID}-{PARENT}-01")[0] == 200
        own, foreign = collector.until(2)

    check_cold(own)
    assert len({span.trace_id for span in own}) == 1
    request, send, batch = (named(own, name) for name in ("POST /fn/{name}", "send", "batch"))
    assert (request.kind, send.kind, batch.kind) == (SERVER, CLIENT, SERVER)
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["fngate.is_cold"] is True
    assert (batch.service, request.service) == ("fngate-replica", "fngate")
    assert batch.instance == request.attributes["fngate.replica"]
    check_times(foreign)
    assert {span.trace_id for span in foreign} == {ID}
    assert list(tree(foreign, PARENT)) == ["POST /fn/{name}"]
    assert named(foreign, "POST /fn/{name}").attributes["fngate.is_cold"] is False


def test_each_of_two_workers_sends_its_own(tmp_path: Path) -> None:
    """Both workers send spans, as instances of one service, with and without a client's trace."""
    with tracing(tmp_path, "--workers", "2") as (collector, server):
        deploy(server, tmp_path)
        header = {"traceparent": f"00-{ID}-{PARENT}-01"}
        with lines(server) as (one, other):
            assert one.call("twice", ONE, header)[0] == 200
            assert other.call("twice", ONE)[0] == 200
        (foreign, own) = sorted(collector.until(2), key=lambda trace: trace[0].trace_id != ID)

    check_cold(foreign, PARENT)
    check_times(own)
    assert len({named(one, "POST /fn/{name}").instance for one in (foreign, own)}) == 2
    assert len({span.span_id for span in foreign + own}) == len(foreign + own)


def test_a_call_whose_replica_is_killed(tmp_path: Path) -> None:
    """A retried call has two sends, the first with its error, the wait between them, and the second
    cold start; the handler received the trace."""
    folder = tmp_path / "frail"
    folder.mkdir()
    flag = str(tmp_path / "flag")
    Path(flag).touch()
    (folder / "handler.py").write_text(HANDLER.format(flag=flag))
    (folder / "function.toml").write_text(MANIFEST + "x = 1\n")
    with tracing(tmp_path) as (collector, server):
        server.fnctl_json("deploy", str(folder), "--trust")
        Path(flag).unlink()
        status, document = call(server, "frail", {"x": 1})
        assert status == 200, document
        (trace,) = collector.until(1)

    check_times(trace)
    (below,) = tree(trace).values()
    assert list(below) == ["hold", "send", "hold#2", "send#2"]
    assert "cold start" in below["hold#2"]
    first, second = (span for span in sorted(trace, key=lambda s: s.start) if span.name == "send")
    assert (first.error, second.error) == ("replica_died", "")
    assert first.attributes["fngate.replica"] != second.attributes["fngate.replica"]
    request = named(trace, "POST /fn/{name}")
    assert request.attributes["fngate.sends"] == 2
    assert document["outputs"]["trace"] == f"00-{request.trace_id}-{request.span_id}-01"


def test_refusals_are_traced_too(tmp_path: Path) -> None:
    """A refusal is traced, and a client's mistake is not marked as an error."""
    with tracing(tmp_path) as (collector, server):
        assert call(server, "nobody")[0] == 404
        (trace,) = collector.until(1)

    (request,) = trace
    assert request.attributes["error.type"] == "unknown_function"
    assert (request.attributes["http.response.status_code"], request.error) == (404, "")


@pytest.mark.parametrize("how", ["away", "hanging", "failing"])
def test_a_collector_that_is_of_no_use_costs_traces_only(tmp_path: Path, how: str) -> None:
    """With a useless collector every call is answered, the server ends cleanly, and one line of log
    reports it."""
    with tracing(tmp_path) as (collector, server):
        if how == "away":
            collector.server.socket.close()
        elif how == "hanging":
            collector.gate.clear()
        else:
            collector.status = 500
        deploy(server, tmp_path)
        for _ in range(1000):
            assert call(server)[0] == 200
        if how != "away":
            collector.until_asked(1)
        assert server.process is not None
        process, log = server.process, server.log
        server.stop(signal.SIGTERM)
        assert process.returncode == 0
        assert collector.spans == []

    complaints = [json.loads(line) for line in log if "traces were lost" in line]
    # A hanging collector also hangs at shutdown, where it is abandoned without a log line.
    assert complaints or how == "hanging"


def test_no_traces_are_sent_unless_asked_for(tmp_path: Path) -> None:
    """Without the setting no traces are sent and OpenTelemetry is not imported."""
    with server_process(tmp_path / "data") as server:
        assert server.process is not None
        maps = Path(f"/proc/{server.process.pid}/maps").read_text()
        assert call(server, "nobody")[0] == 404
        assert "protobuf" not in maps
