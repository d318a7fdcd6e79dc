"""Spans as OTLP has them: protobuf, grouped by whose they are. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2 as otlp

from gateway.observing.spans import Span

GATEWAY: Final = "fngate"
REPLICA: Final = "fngate-replica"
ATTRIBUTES_MAX: Final = 4096
"""Attributes that are kept as they were encoded: most are the same for each request."""
_KINDS: Final = {
    "internal": otlp.Span.SPAN_KIND_INTERNAL,
    "server": otlp.Span.SPAN_KIND_SERVER,
    "client": otlp.Span.SPAN_KIND_CLIENT,
}
_LOCAL: Final = otlp.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_REMOTE: Final = _LOCAL | otlp.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK
_FIELDS: Final = {bool: "bool_value", int: "int_value", float: "double_value", str: "string_value"}
_SCOPE: Final = InstrumentationScope(name=GATEWAY)


class Batch:
    """One request for a collector; takes spans a few at a time. `instance` tells gateway processes
    apart."""

    def __init__(self, instance: str, version: str) -> None:
        self._instance = instance
        self._version = version
        self._request = ExportTraceServiceRequest()
        self._groups: dict[str, otlp.ScopeSpans] = {}

    def add(self, spans: Iterable[Span]) -> None:
        """These go with the others. Their messages are made here, a fifth of what the SDK's
        spans and its exporter's encoder take for the same bytes."""
        for span in spans:
            group = self._groups.get(span.replica)
            if group is None:
                group = self._groups[span.replica] = self._group(span.replica)
            made = group.spans.add(
                trace_id=bytes.fromhex(span.trace_id),
                span_id=bytes.fromhex(span.span_id),
                parent_span_id=bytes.fromhex(span.parent_id),
                name=span.name,
                kind=_KINDS[span.kind],
                start_time_unix_nano=int(span.start_s * 1e9),
                end_time_unix_nano=int(span.end_s * 1e9),
                attributes=[_attribute(*one) for one in span.attributes.items()],
                flags=_REMOTE if span.is_remote else _LOCAL,
            )
            if span.error:
                made.status.code = otlp.Status.STATUS_CODE_ERROR
                made.status.message = span.error

    def encode(self) -> bytes:
        """All that was added, as ExportTraceServiceRequest."""
        data: bytes = self._request.SerializeToString()
        return data

    def _group(self, replica: str) -> otlp.ScopeSpans:
        """A replica is a service of its own, "" is this process."""
        attributes = {
            "service.name": REPLICA if replica else GATEWAY,
            "service.instance.id": replica or self._instance,
            "service.version": self._version,
        }
        resource = Resource(attributes=[_attribute(*one) for one in attributes.items()])
        group: otlp.ScopeSpans = self._request.resource_spans.add(
            resource=resource
        ).scope_spans.add(scope=_SCOPE)
        return group


@lru_cache(ATTRIBUTES_MAX, typed=True)
def _attribute(key: str, value: str | float | bool) -> KeyValue:
    made = KeyValue(key=key)
    setattr(made.value, _FIELDS[type(value)], value)
    return made
