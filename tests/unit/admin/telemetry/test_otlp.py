"""Tests of traces in the OpenTelemetry protocol, and of sending them."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Status
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Sent
from structlog.testing import capture_logs

from admin.telemetry.otlp import AT_ONCE, COMPLAIN_S, Batch, OtlpCollector, TraceExporter
from gateway.observing.tracing import Span
from tests.support.collector import Collector, check_times, collecting, tree
from tests.support.records import RECORD, TRACE, TRACED


class Kept:
    """Collector that keeps names and ids of spans, and accepts them if `is_fine`."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, str, str]] = []
        self.is_fine = True
        self.is_closed = False

    def send(self, data: bytes) -> bool:
        """Keep the spans and return whether they are accepted."""
        self.spans += [
            (span.name, span.trace_id.hex(), span.span_id.hex())
            for group in ExportTraceServiceRequest.FromString(data).resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]
        return self.is_fine

    def close(self) -> None:
        """Record that the exporter has closed it."""
        self.is_closed = True


class World:
    """Trace exporter whose clock and collector the test controls."""

    def __init__(self) -> None:
        self.kept = Kept()
        self.now = 1000.0
        self.exporting = TraceExporter(self.kept, "host/1", "0.1", lambda: self.now)

    def lose(self, count: int, left_out: int = 0) -> list[object]:
        """Write records that cannot be sent; return the losses that are logged."""
        self.kept.is_fine = False
        with capture_logs() as lines:
            self.exporting.write([RECORD] * count, left_out)
        return [line["requests"] for line in lines]


def test_spans_are_those_of_the_record() -> None:
    """Every record of a large batch has its own spans with ids of their own."""
    world = World()
    count = 2 * AT_ONCE + 1
    world.exporting.write([TRACED] * count, 0)

    roots = [span for span in world.kept.spans if span[0].startswith("POST")]
    assert roots == [("POST /fn/{name}", TRACE.trace_id, TRACE.span_id)] * count
    assert len(world.kept.spans) == 6 * count
    assert len({id for _, _, id in world.kept.spans}) == 5 * count + 1


def test_a_batch_that_cannot_be_encoded_leaves_nothing_behind() -> None:
    """A batch that fails to encode leaves no spans for the next one."""
    world = World()
    defect = TRACED._replace(trace=TRACE._replace(trace_id="no hex"))
    with pytest.raises(ValueError, match="hex"):
        world.exporting.write([TRACED, defect], 0)
    world.exporting.write([TRACED], 0)

    assert len(world.kept.spans) == 6


def test_losses_are_logged_once_a_minute() -> None:
    """Losses are logged once a minute with their number, whether not sent or left out before."""
    world = World()
    assert world.lose(2, left_out=3) == [5]
    assert world.lose(2) == []
    world.now += COMPLAIN_S
    assert world.lose(1) == [3]
    world.kept.is_fine = True
    world.now += COMPLAIN_S
    with capture_logs() as lines:
        world.exporting.write([TRACED], 0)
    assert lines == []


def test_the_last_losses_are_logged_at_the_close() -> None:
    """Closing logs the remaining losses and closes the collector."""
    world = World()
    world.lose(1)
    world.lose(4)
    with capture_logs() as lines:
        world.exporting.close()
    assert [line["requests"] for line in lines] == [4]
    assert world.kept.is_closed


@pytest.fixture
def away() -> str:
    """Return the address of a collector that has ended."""
    with collecting() as collector:
        return collector.url


def test_a_real_collector_understands_it() -> None:
    """A real collector decodes the spans, sent over HTTP as protobuf."""
    with collecting() as there:
        exporting = TraceExporter(OtlpCollector(there.url), "host/1", "0.1", lambda: 0.0)
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
    """An absent collector costs traces only and gives one line of log, none of the library's."""
    exporting = TraceExporter(OtlpCollector(away), "host/1", "0.1", lambda: 0.0)
    with capture_logs() as lines:
        exporting.write([TRACED], 0)
    exporting.close()

    assert [line["requests"] for line in lines] == [1]
    assert caplog.records == []
    assert away not in capsys.readouterr().err


def test_a_collector_that_refuses_costs_traces_only() -> None:
    """A collector that refuses costs traces only, and the batch is not sent again."""
    with collecting() as there:
        refusing: Collector = there
        refusing.status = 400
        exporting = TraceExporter(OtlpCollector(there.url), "host/1", "0.1", lambda: 0.0)
        with capture_logs() as lines:
            exporting.write([TRACED], 0)
        exporting.close()

    assert [line["requests"] for line in lines] == [1]
    assert (there.requests, there.spans) == (1, [])


SPAN = Span("s", "server", "ab" * 16, "cd" * 8, "", False, 999.0, 1000.5, "", {}, "")
REMOTE = SPAN._replace(
    name="batch", span_id="ef" * 8, parent_id="cd" * 8, is_remote=True, replica="r1"
)


def sent(*spans: Span) -> list[ResourceSpans]:
    """Decode a request as a collector does."""
    batch = Batch("host/1", "0.1")
    for span in spans:
        batch.add([span])
    return list(ExportTraceServiceRequest.FromString(batch.encode()).resource_spans)


def scope_of(group: ResourceSpans) -> ScopeSpans:
    """Return the only scope of a group."""
    (scope,) = group.scope_spans
    return scope


def only(span: Span) -> Sent:
    """Encode one span; return it as decoded."""
    (group,) = sent(span)
    (found,) = scope_of(group).spans
    return found


def values(attributes: Any) -> dict[str, Any]:
    """Return attributes by name, each with its type."""
    found = {}
    for one in attributes:
        kind = one.value.WhichOneof("value")
        found[one.key] = kind, getattr(one.value, kind)
    return found


def test_a_span_has_its_ids_and_times() -> None:
    """Ids are bytes, times whole nanoseconds; a root has no parent, and success has no error
    status."""
    root = only(SPAN)
    assert (root.trace_id.hex(), root.span_id.hex()) == ("ab" * 16, "cd" * 8)
    assert (root.parent_span_id, root.kind) == (b"", Sent.SPAN_KIND_SERVER)
    assert (root.start_time_unix_nano, root.end_time_unix_nano) == (999 * 10**9, 10005 * 10**8)
    assert (root.flags, root.status.code) == (0x100, Status.STATUS_CODE_UNSET)


def test_a_parent_elsewhere_is_marked() -> None:
    """OTLP's flags mark a parent in another process."""
    span = only(REMOTE)
    assert (span.parent_span_id.hex(), span.flags) == ("cd" * 8, 0x300)


def test_an_error_is_the_spans_status() -> None:
    """An error is the span's status, with its code as message."""
    status = only(SPAN._replace(error="poison")).status
    assert (status.code, status.message) == (Status.STATUS_CODE_ERROR, "poison")


def test_attributes_keep_their_types() -> None:
    """Attributes keep their types, even equal values: 1, 1.0 and True."""
    for value, kind in ((1, "int"), (1.0, "double"), (True, "bool"), ("1", "string")):
        found = values(only(SPAN._replace(attributes={"a": value})).attributes)
        assert found == {"a": (f"{kind}_value", value)}


def test_several_texts_are_an_array() -> None:
    """A tuple of texts is an array of strings, in its order."""
    (sent,) = only(SPAN._replace(attributes={"a": ("GPU-b", "GPU-a")})).attributes

    assert [one.string_value for one in sent.value.array_value.values] == ["GPU-b", "GPU-a"]


def test_a_replica_is_a_service_of_its_own() -> None:
    """Each replica is a service with its spans together, whatever their order."""
    groups = sent(SPAN, REMOTE, SPAN, REMOTE._replace(replica="r2"), REMOTE)
    assert [len(scope_of(group).spans) for group in groups] == [2, 2, 1]
    assert {scope_of(group).scope.name for group in groups} == {"fngate"}
    named = [values(group.resource.attributes) for group in groups]
    assert named[0] == {
        "service.name": ("string_value", "fngate"),
        "service.instance.id": ("string_value", "host/1"),
        "service.version": ("string_value", "0.1"),
    }
    assert [one["service.name"][1] for one in named[1:]] == ["fngate-replica"] * 2
    assert [one["service.instance.id"][1] for one in named[1:]] == ["r1", "r2"]


def test_nothing_is_nothing() -> None:
    """An empty batch encodes to a readable request."""
    assert sent() == []
