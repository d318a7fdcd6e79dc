"""Tests of spans as OTLP has them."""

from __future__ import annotations

from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Status
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Sent

from admin.telemetry.otlp import Batch
from gateway.observing.tracing import Span

SPAN = Span("s", "server", "ab" * 16, "cd" * 8, "", False, 999.0, 1000.5, "", {}, "")
REMOTE = SPAN._replace(
    name="batch", span_id="ef" * 8, parent_id="cd" * 8, is_remote=True, replica="r1"
)


def sent(*spans: Span) -> list[ResourceSpans]:
    """What a collector reads."""
    batch = Batch("host/1", "0.1")
    for span in spans:
        batch.add([span])
    return list(ExportTraceServiceRequest.FromString(batch.encode()).resource_spans)


def scope_of(group: ResourceSpans) -> ScopeSpans:
    """The one that each group has."""
    (scope,) = group.scope_spans
    return scope


def only(span: Span) -> Sent:
    """The one span, sent alone."""
    (group,) = sent(span)
    (found,) = scope_of(group).spans
    return found


def values(attributes: Any) -> dict[str, Any]:
    """Attributes by name, with the kind that each has."""
    found = {}
    for one in attributes:
        kind = one.value.WhichOneof("value")
        found[one.key] = kind, getattr(one.value, kind)
    return found


def test_a_span_has_its_ids_and_times() -> None:
    """Ids are bytes, times whole nanoseconds; a root has no parent, and nothing went wrong."""
    root = only(SPAN)
    assert (root.trace_id.hex(), root.span_id.hex()) == ("ab" * 16, "cd" * 8)
    assert (root.parent_span_id, root.kind) == (b"", Sent.SPAN_KIND_SERVER)
    assert (root.start_time_unix_nano, root.end_time_unix_nano) == (999 * 10**9, 10005 * 10**8)
    assert (root.flags, root.status.code) == (0x100, Status.STATUS_CODE_UNSET)


def test_a_parent_elsewhere_is_marked() -> None:
    """By OTLP's flags."""
    span = only(REMOTE)
    assert (span.parent_span_id.hex(), span.flags) == ("cd" * 8, 0x300)


def test_what_went_wrong_is_its_status() -> None:
    """With the code as its message."""
    status = only(SPAN._replace(error="poison")).status
    assert (status.code, status.message) == (Status.STATUS_CODE_ERROR, "poison")


def test_attributes_keep_their_types() -> None:
    """Also those that are equal: 1, 1.0 and True are three."""
    for value, kind in ((1, "int"), (1.0, "double"), (True, "bool"), ("1", "string")):
        found = values(only(SPAN._replace(attributes={"a": value})).attributes)
        assert found == {"a": (f"{kind}_value", value)}


def test_a_replica_is_a_service_of_its_own() -> None:
    """Each one's spans are together, whatever order they came in."""
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
    """An empty batch can be read, too."""
    assert sent() == []
