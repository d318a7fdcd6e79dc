"""OTLP/HTTP trace collector that records spans and can misbehave."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

UNTIL_S = 90.0
ERROR = 2
"""STATUS_CODE_ERROR of OTLP."""
SERVER, CLIENT = 2, 3
"""SPAN_KIND_SERVER, SPAN_KIND_CLIENT."""


class Seen(NamedTuple):
    """One received span; ids in hex, times in Unix nanoseconds. `error`: the status message if the
    status is an error, else ""."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    kind: int
    error: str
    service: str
    instance: str
    attributes: dict[str, Any]


class Collector:
    """Collector that stores all received `spans`. It answers with `status`, and only while `gate`
    is set."""

    def __init__(self) -> None:
        self.spans: list[Seen] = []
        self.status = 200
        self.gate = threading.Event()
        self.gate.set()
        self.requests = 0
        self._news = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with collector._news:
                    collector.requests += 1
                    collector._news.notify_all()
                collector.gate.wait()
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()
                if collector.status == 200:
                    collector.take(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Log nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # `server_close` waits for the threads: their connections end with the server that sends.
        self.server.daemon_threads = False
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1/traces"

    def take(self, body: bytes) -> None:
        """Store the spans of one export."""
        message = ExportTraceServiceRequest.FromString(body)
        found = [
            _seen(span, _attributes(group.resource))
            for group in message.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]
        with self._news:
            self.spans += found
            self._news.notify_all()

    def until(self, count: int, name: str = "POST /fn/{name}") -> list[list[Seen]]:
        """Wait for `count` spans of this name; return the trace of each, in order of arrival."""
        with self._news:
            there = self._news.wait_for(lambda: len(self._named(name)) >= count, UNTIL_S)
            assert there, [span.name for span in self.spans]
            return [self.trace(span.trace_id) for span in self._named(name)]

    def until_asked(self, count: int) -> None:
        """Wait for `count` export requests, whatever their outcome."""
        with self._news:
            assert self._news.wait_for(lambda: self.requests >= count, UNTIL_S)

    def trace(self, trace_id: str) -> list[Seen]:
        """Return all spans of one trace."""
        return [span for span in self.spans if span.trace_id == trace_id]

    def _named(self, name: str) -> list[Seen]:
        return [span for span in self.spans if span.name == name]


def tree(trace: list[Seen], root: str = "") -> dict[str, Any]:
    """Return the span names of a trace as a nested dict, starting with the children of `root`.
    Repeated names get the suffix `#2`, `#3`, ..."""
    found: dict[str, Any] = {}
    for span in sorted(trace, key=lambda one: one.start):
        if span.parent_id == root:
            name, number = span.name, 2
            while name in found:
                name, number = f"{span.name}#{number}", number + 1
            found[name] = tree(trace, span.span_id)
    return found


def check_times(trace: list[Seen]) -> None:
    """Require that every span ends after it began and lies within its parent."""
    by_id = {span.span_id: span for span in trace}
    assert len(by_id) == len(trace)
    for span in trace:
        assert span.start <= span.end, span
        parent = by_id.get(span.parent_id)
        if parent is not None:
            # Unix seconds as floats are exact to about 0.2 us.
            assert parent.start - 1000 <= span.start, (span, parent)
            assert span.end <= parent.end + 1000, (span, parent)


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector while the block runs."""
    collector = Collector()
    thread = threading.Thread(target=collector.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.gate.set()
        collector.server.shutdown()
        collector.server.server_close()
        thread.join()


def _seen(span: Any, resource: dict[str, Any]) -> Seen:
    return Seen(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.kind,
        span.status.message if span.status.code == ERROR else "",
        resource["service.name"],
        resource["service.instance.id"],
        _attributes(span),
    )


def _attributes(owner: Any) -> dict[str, Any]:
    return {
        pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in owner.attributes
    }
