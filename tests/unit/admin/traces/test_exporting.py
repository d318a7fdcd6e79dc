"""Tests of how traces are sent: as OpenTelemetry has them, and never at the cost of requests."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind
from opentelemetry.trace.status import StatusCode
from structlog.testing import capture_logs

from admin.traces.exporting import COMPLAIN_S, Exporting, collector
from tests.support.collector import Collector, check_times, collecting, tree
from tests.support.records import RECORD, TRACE, TRACED


class Kept(SpanExporter):
    """Keeps what it is to send; `result` is what becomes of it."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []
        self.result = SpanExportResult.SUCCESS
        self.is_shut = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """OpenTelemetry's."""
        self.spans += spans
        return self.result

    def shutdown(self) -> None:
        """OpenTelemetry's."""
        self.is_shut = True


class World:
    """An exporting whose clock and exporter are the test's."""

    def __init__(self) -> None:
        self.kept = Kept()
        self.now = 1000.0
        self.exporting = Exporting(self.kept, "host/1", "0.1", lambda: self.now)

    def lose(self, count: int, left_out: int = 0) -> list[object]:
        """Write records that cannot be sent; the losses that are logged."""
        self.kept.result = SpanExportResult.FAILURE
        with capture_logs() as lines:
            self.exporting.write([RECORD] * count, left_out)
        return [line["requests"] for line in lines]


def test_spans_are_those_of_the_record() -> None:
    """Ids, times, kinds and parents; a replica is a resource of its own."""
    world = World()
    world.exporting.write([TRACED], 0)
    request, send, batch, *_ = world.kept.spans

    assert request.context is not None
    assert (request.context.trace_id, request.parent) == (int(TRACE.trace_id, 16), None)
    assert request.context.span_id == int(TRACE.span_id, 16)
    assert (request.start_time, request.end_time) == (999 * 10**9, 1000 * 10**9)
    assert (request.kind, send.kind, batch.kind) == (
        SpanKind.SERVER,
        SpanKind.CLIENT,
        SpanKind.SERVER,
    )
    assert batch.parent is not None
    assert (batch.parent.span_id, batch.parent.is_remote) == (send.context.span_id, True)
    assert dict(request.resource.attributes) == {
        "service.name": "fngate",
        "service.instance.id": "host/1",
        "service.version": "0.1",
    }
    assert batch.resource.attributes["service.name"] == "fngate-replica"
    assert batch.resource.attributes["service.instance.id"] == "r1"
    assert len({span.context.span_id for span in world.kept.spans}) == 6


def test_a_span_says_what_went_wrong() -> None:
    """By its status, which names the code."""
    world = World()
    world.exporting.write([TRACED._replace(outcome="poison", status=502, receipt=None)], 0)

    assert [(one.status.status_code, one.status.description) for one in world.kept.spans] == [
        (StatusCode.ERROR, "poison")
    ] * 2


def test_what_is_lost_is_told_of_once_a_minute() -> None:
    """With how much it was: what could not be sent, and what there was no room for."""
    world = World()
    assert world.lose(2, left_out=3) == [5]
    assert world.lose(2) == []
    world.now += COMPLAIN_S
    assert world.lose(1) == [3]
    world.kept.result = SpanExportResult.SUCCESS
    world.now += COMPLAIN_S
    with capture_logs() as lines:
        world.exporting.write([TRACED], 0)
    assert lines == []


def test_what_was_lost_last_is_told_of_in_the_end() -> None:
    """And the exporter is shut."""
    world = World()
    world.lose(1)
    world.lose(4)
    with capture_logs() as lines:
        world.exporting.close()
    assert [line["requests"] for line in lines] == [4]
    assert world.kept.is_shut


@pytest.fixture
def away() -> str:
    """Where a collector was."""
    with collecting() as collector:
        return collector.url


def test_a_real_collector_understands_it() -> None:
    """Over HTTP, as protobuf."""
    with collecting() as there:
        exporting = Exporting(collector(there.url), "host/1", "0.1", lambda: 0.0)
        exporting.write([TRACED], 0)
        exporting.close()
        (trace,) = there.until(1)

    check_times(trace)
    assert tree(trace) == {
        "POST /fn/{name}": {"send": {"batch": {"decode": {}, "compute": {}, "encode": {}}}}
    }


@pytest.mark.slow
def test_a_collector_that_is_away_costs_traces_only(
    away: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """One line of ours says so, none of the library's."""
    exporting = Exporting(collector(away), "host/1", "0.1", lambda: 0.0)
    with capture_logs() as lines:
        exporting.write([TRACED], 0)
    exporting.close()

    assert [line["requests"] for line in lines] == [1]
    assert caplog.records == []
    assert away not in capsys.readouterr().err


def test_a_collector_that_refuses_costs_traces_only() -> None:
    """It is not asked again for what it will not take."""
    with collecting() as there:
        refusing: Collector = there
        refusing.status = 400
        exporting = Exporting(collector(there.url), "host/1", "0.1", lambda: 0.0)
        with capture_logs() as lines:
            exporting.write([TRACED], 0)
        exporting.close()

    assert [line["requests"] for line in lines] == [1]
    assert (there.requests, there.spans) == (1, [])
