"""Records of traced requests as OpenTelemetry's spans, sent off in batches."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from random import Random
from typing import Final, Protocol

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from admin.traces.encoding import Batch
from gateway.observing.record import RequestRecord
from gateway.observing.spans import spans_of

log = structlog.get_logger()

EXPORT_S: Final = 3.0
"""Seconds for one batch, further tries included; shorter than a shutdown waits for the thread."""
COMPLAIN_S: Final = 60.0
"""Seconds between two words about traces that were lost."""
AT_ONCE: Final = 8
"""Traces encoded before the interpreter is let go: 0.4 ms in which the loop may have to wait.
Otherwise it would wait for sys.getswitchinterval(), 5 ms, some times in a batch."""
PAUSE_S: Final = 0.0001
"""Long enough for the loop to get its turn; sleep(0) mostly ends before it is awake."""


class Collector(Protocol):
    """Where traces go."""

    def send(self, data: bytes) -> bool:
        """Send an encoded batch; whether it was taken. Raises nothing for one that was not."""

    def close(self) -> None:
        """Nothing comes any more."""


class OtlpCollector:
    """A collector of OTLP over HTTP, by OpenTelemetry's exporter: its headers, certificates,
    compression and further tries are as it reads them from the environment. What it logs by
    itself, with every batch, is left out.

    Only its sending is used. Its public way takes the SDK's spans, and to make and to encode those
    is 0.3 ms of a trace; it has no public way to send bytes. Raises AttributeError, here and not
    at the first trace, where an exporter of another version has this one no more.
    """

    def __init__(self, url: str) -> None:
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        exporter = OTLPSpanExporter(endpoint=url, timeout=EXPORT_S)
        self._export = exporter._client.export
        self.close = exporter.shutdown

    def send(self, data: bytes) -> bool:
        """As Collector says."""
        return bool(self._export(data).success)


class Exporting:
    """Writes for a `Handover`, in its thread. `instance` tells gateway processes apart, `clock`
    gives monotonic seconds."""

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
        """Send the spans of these requests. Those that cannot be sent, or were `left_out` because
        this is too slow, are lost, and that is logged once a minute."""
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
        """Nothing comes any more."""
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
