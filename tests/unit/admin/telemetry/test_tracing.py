"""Tests of whether a tracer is created."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from admin.telemetry.tracing import check_traces, open_tracer
from gateway.settings import GatewaySettings
from registry.errors import BadRequest
from tests.support.collector import collecting
from tests.support.records import TRACED

WANTED = GatewaySettings(traces="http://127.0.0.1:9/v1/traces")


def test_without_a_collector_there_is_no_tracer() -> None:
    """Without a collector there is no tracer."""
    check_traces(GatewaySettings())
    assert open_tracer(GatewaySettings(), "1") is None


def test_a_server_without_traces_does_not_load_opentelemetry() -> None:
    """Without traces a server does not import OpenTelemetry, which would double the time of its
    start."""
    text = (
        "import sys, admin.serve, admin.compose, admin.workers.worker\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_extra_is_named_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing package is reported with the extra, or the package, to install."""

    def missing(_name: str) -> None:
        raise ModuleNotFoundError("No module named 'opentelemetry'")

    for find in (lambda _name: None, missing):
        monkeypatch.setattr(importlib.util, "find_spec", find)
        with pytest.raises(BadRequest, match=r"make install EXTRAS=traces"):
            check_traces(WANTED)


def test_an_exporter_of_another_version_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An exporter of an unsupported version is refused at the start, not at the first trace."""
    monkeypatch.setattr("admin.telemetry.otlp.OTLPSpanExporter", lambda **_given: object())
    with pytest.raises(BadRequest, match=r"FN_TRACES: unsupported OpenTelemetry exporter"):
        open_tracer(WANTED, "1")


def test_a_tracer_sends_what_it_has_when_it_closes() -> None:
    """Closing the tracer sends the remaining spans, with machine and process as instance id."""
    with collecting() as there:
        tracer = open_tracer(GatewaySettings(traces=there.url, traces_sample=0.5), "w1")
        assert tracer is not None
        tracer.record(TRACED)
        tracer.close()
        (trace,) = there.until(1)

    instances = {span.service: span.instance for span in trace}
    assert instances["fngate"].endswith("/w1")
    assert instances["fngate-replica"] == "r1"
