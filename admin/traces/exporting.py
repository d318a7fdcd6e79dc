"""Records of traced requests as OpenTelemetry's spans, sent off in batches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from random import Random
from typing import Final

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from gateway.observing.record import RequestRecord
from gateway.observing.spans import Span, spans_of

log = structlog.get_logger()

EXPORT_S: Final = 3.0
"""Seconds for one batch, further tries included; shorter than a shutdown waits for the thread."""
COMPLAIN_S: Final = 60.0
"""Seconds between two words about traces that were lost."""
REPLICAS_MAX: Final = 1000
"""Replicas whose resource is kept."""
GATEWAY: Final = "fngate"
REPLICA: Final = "fngate-replica"
_KINDS: Final = {
    "internal": SpanKind.INTERNAL,
    "server": SpanKind.SERVER,
    "client": SpanKind.CLIENT,
}
_SCOPE: Final = InstrumentationScope(GATEWAY)
_FINE: Final = Status()


def collector(url: str) -> SpanExporter:
    """Sends to an OTLP/HTTP collector. What it logs by itself, with every batch, is left out."""
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    return OTLPSpanExporter(endpoint=url, timeout=EXPORT_S)


class Exporting:
    """Writes for a `Handover`, in its thread. `instance` tells gateway processes apart, `clock`
    gives monotonic seconds."""

    def __init__(
        self, exporter: SpanExporter, instance: str, version: str, clock: Callable[[], float]
    ) -> None:
        self._exporter = exporter
        self._clock = clock
        self._random = Random()  # noqa: S311 - ids, no secrets
        self._said_s = -COMPLAIN_S
        self._lost = 0
        self._resource = _resource(GATEWAY, instance, version)
        self._replicas = lru_cache(REPLICAS_MAX)(lambda id: _resource(REPLICA, id, version))

    def write(self, records: list[RequestRecord], left_out: int) -> None:
        """Send the spans of these requests. Those that cannot be sent, or were `left_out` because
        this is too slow, are lost, and that is logged once a minute."""
        self._lost += left_out
        spans = [self._made(span) for one in records for span in spans_of(one, self._new_id)]
        if self._exporter.export(spans) is not SpanExportResult.SUCCESS:
            self._lost += len(records)
        now = self._clock()
        if self._lost and now >= self._said_s + COMPLAIN_S:
            log.warning(
                "traces were lost: the collector does not take them, or not as fast as they come",
                requests=self._lost,
            )
            self._said_s, self._lost = now, 0

    def close(self) -> None:
        """Nothing comes any more."""
        if self._lost:
            log.warning("traces were lost", requests=self._lost)
        self._exporter.shutdown()

    def _new_id(self) -> str:
        return f"{self._random.getrandbits(64) or 1:016x}"

    def _made(self, span: Span) -> ReadableSpan:
        trace_id = int(span.trace_id, 16)
        parent = None
        if span.parent_id:
            parent = _context(trace_id, span.parent_id, is_remote=span.is_remote)
        return ReadableSpan(
            span.name,
            _context(trace_id, span.span_id, is_remote=False),
            parent,
            self._replicas(span.replica) if span.replica else self._resource,
            span.attributes,
            kind=_KINDS[span.kind],
            status=Status(StatusCode.ERROR, span.error) if span.error else _FINE,
            start_time=int(span.start_s * 1e9),
            end_time=int(span.end_s * 1e9),
            instrumentation_scope=_SCOPE,
        )


def _context(trace_id: int, span_id: str, *, is_remote: bool) -> SpanContext:
    return SpanContext(trace_id, int(span_id, 16), is_remote, TraceFlags(TraceFlags.SAMPLED))


def _resource(name: str, instance: str, version: str) -> Resource:
    """Not `Resource.create`, which reads the environment."""
    attributes = {"service.name": name, "service.instance.id": instance, "service.version": version}
    return Resource(attributes)
