"""OTLP export of traces: spans of traced requests as protobuf, sent in batches."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from random import Random
from typing import Final, Protocol

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2 as otlp

from gateway.observing.records import RequestRecord
from gateway.observing.tracing import Span, spans_of

GATEWAY: Final = "fngate"
REPLICA: Final = "fngate-replica"
ATTRIBUTES_MAX: Final = 4096
"""Max cached encoded attributes: most are the same for each request."""
_KINDS: Final = {
    "internal": otlp.Span.SPAN_KIND_INTERNAL,
    "server": otlp.Span.SPAN_KIND_SERVER,
    "client": otlp.Span.SPAN_KIND_CLIENT,
}
_LOCAL: Final = otlp.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
_REMOTE: Final = _LOCAL | otlp.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK
_FIELDS: Final = {bool: "bool_value", int: "int_value", float: "double_value", str: "string_value"}
_SCOPE: Final = InstrumentationScope(name=GATEWAY)

log = structlog.get_logger()
EXPORT_S: Final = 3.0
"""Max seconds for one batch with its retries; shorter than a shutdown waits for the thread."""
COMPLAIN_S: Final = 60.0
"""Seconds between two warnings about lost traces."""
AT_ONCE: Final = 8
"""Traces encoded before the interpreter lock is released: 0.4 ms for which the event loop may have
to wait. Otherwise it would wait for sys.getswitchinterval(), 5 ms, several times per batch."""
PAUSE_S: Final = 0.0001
"""Long enough for the event loop to get its turn; sleep(0) mostly ends before the loop is awake."""


class Batch:
    """One export request. Spans are added a few at a time. `instance` identifies the gateway
    process."""

    def __init__(self, instance: str, version: str) -> None:
        self._instance = instance
        self._version = version
        self._request = ExportTraceServiceRequest()
        self._groups: dict[str, otlp.ScopeSpans] = {}

    def add(self, spans: Iterable[Span]) -> None:
        """Add spans to the batch. Building the messages here takes a fifth of the time of the SDK's
        spans and its exporter's encoder, for the same bytes."""
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
        """Return all added spans as an encoded ExportTraceServiceRequest."""
        data: bytes = self._request.SerializeToString()
        return data

    def _group(self, replica: str) -> otlp.ScopeSpans:
        """Add a resource. Each replica is a service of its own; "" is this process."""
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
def _attribute(key: str, value: str | float | bool | tuple[str, ...]) -> KeyValue:
    made = KeyValue(key=key)
    if isinstance(value, tuple):
        made.value.array_value.values.extend(AnyValue(string_value=one) for one in value)
    else:
        setattr(made.value, _FIELDS[type(value)], value)
    return made


class Collector(Protocol):
    """Receiver of traces."""

    def send(self, data: bytes) -> bool:
        """Send an encoded batch; return whether it was accepted. Must not raise if it was not."""

    def close(self) -> None:
        """Close the connection: no more batches follow."""


class OtlpCollector:
    """Collector of OTLP over HTTP, by OpenTelemetry's exporter, which reads its headers,
    certificates, compression and retries from the environment. Its own log messages, one per batch,
    are suppressed.

    Only the exporter's internal send function is used. Its public method takes the SDK's spans, and
    creating and encoding those takes 0.3 ms per trace; it has no public method to send bytes.
    Raises AttributeError, here and not at the first trace, if the installed exporter lacks that
    function.
    """

    def __init__(self, url: str) -> None:
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        exporter = OTLPSpanExporter(endpoint=url, timeout=EXPORT_S)
        self._export = exporter._client.export
        self.close = exporter.shutdown

    def send(self, data: bytes) -> bool:
        """Send an encoded batch; return whether it was accepted."""
        return bool(self._export(data).success)


class TraceExporter:
    """Writer for a `BatchWriter`, in its thread. `instance` identifies the gateway process, `clock`
    returns monotonic seconds."""

    def __init__(
        self, collector: Collector, instance: str, version: str, clock: Callable[[], float]
    ) -> None:
        self._collector = collector
        self._clock = clock
        self._random = Random()  # noqa: S311 - ids, no secrets
        self._said_s = -COMPLAIN_S
        self._lost = 0
        self._instance = instance
        self._version = version

    def write(self, records: list[RequestRecord], left_out: int) -> None:
        """Send the spans of these requests. Traces that cannot be sent, or were `left_out` because
        sending is too slow, are lost; that is logged at most once a minute."""
        self._lost += left_out
        if not self._collector.send(self._encoded(records)):
            self._lost += len(records)
        now = self._clock()
        if self._lost and now >= self._said_s + COMPLAIN_S:
            log.warning(
                "traces were lost: the collector does not take them, or not as fast as they come",
                requests=self._lost,
            )
            self._said_s, self._lost = now, 0

    def close(self) -> None:
        """Log remaining losses and close the collector."""
        if self._lost:
            log.warning("traces were lost", requests=self._lost)
        self._collector.close()

    def _encoded(self, records: list[RequestRecord]) -> bytes:
        batch = Batch(self._instance, self._version)
        for start in range(0, len(records), AT_ONCE):
            if start:
                time.sleep(PAUSE_S)
            for record in records[start : start + AT_ONCE]:
                batch.add(spans_of(record, self._new_id))
        return batch.encode()

    def _new_id(self) -> str:
        return f"{self._random.getrandbits(64) or 1:016x}"
