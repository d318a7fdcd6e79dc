"""Traces: which requests are traced, and the spans of one request, made from its record.

`Tracer` samples requests, and passes records to a thread. `spans_of` is pure and makes this tree:

POST /fn/{name}             the request, from its head to its answer; with its method for servers
  hold                      waiting for a replica: before the first send, and between attempts
    cold start              the part that the request waited for, with its phases
      place evict start import bind fetch read load
  send                      at a replica
    batch                   measured by the replica, and therefore shown as another service
      decode compute encode (compute is named first_run in the replica's first run)
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, Literal, NamedTuple

from gateway import statuses
from gateway.observing import records
from gateway.observing.batching import BatchWriter, Write
from gateway.observing.records import CLIENT_LEFT, RequestRecord, RequestTimings, Trace
from gateway.replies import NO_RUN, Receipt
from runtime_image.contract.control import PHASES

ROUTE: Final = "/fn/{name}"
Kind = Literal["internal", "server", "client"]
Attributes = dict[str, str | int | float | bool | tuple[str, ...]]
BATCHES_MAX: Final = 8
"""Max batches that wait for a slow collector: about 2,000 requests."""


class Tracer:
    """Begins traces, and records traced requests by calling `write` in a separate thread.

    If a client sends a trace, its flags decide whether the trace is recorded. Of all other requests
    the share `ratio` is recorded. `on_closed` is called in the thread after the last record.
    """

    def __init__(
        self,
        ratio: float,
        write: Write[RequestRecord],
        random: Random,
        on_closed: Callable[[], None] = lambda: None,
    ) -> None:
        self._ratio = ratio
        self._random = random
        self._records = BatchWriter("traces", write, batches_max=BATCHES_MAX, on_closed=on_closed)
        self.record = self._records.add
        self.flush = self._records.flush
        self.close = self._records.close

    def begin(self, traceparent: str) -> Trace | None:
        """Return the trace of a request with this valid header, or ""; None if it is not traced."""
        random = self._random
        if traceparent:
            if not records.is_sampled(traceparent):
                return None
            return records.continue_trace(traceparent, _id(random, 64))
        if random.random() >= self._ratio:
            return None
        return Trace(_id(random, 128), _id(random, 64), "", records.SAMPLED)


def _id(random: Random, bits: int) -> str:
    """Return a random id; the standard forbids all zeros."""
    return f"{random.getrandbits(bits) or 1:0{bits // 4}x}"


class Span(NamedTuple):
    """One span; ids in hex, times in Unix seconds.

    `replica`: the replica that made it, "" for the gateway. `error`: an error's code, "" if the
    span is not at fault. `is_remote`: another process made the parent.
    """

    name: str
    kind: Kind
    trace_id: str
    span_id: str
    parent_id: str
    is_remote: bool
    start_s: float
    end_s: float
    replica: str
    attributes: Attributes
    error: str


def spans_of(record: RequestRecord, new_id: Callable[[], str]) -> list[Span]:
    """Return all spans of a request, parents before their children; none if it is not traced.

    `new_id` returns 16 hex digits.
    """
    if record.trace is None or record.journey is None:
        return []
    tree = _Tree(record, record.trace, record.journey, new_id)
    tree.add_request()
    tree.add_attempts()
    return tree.spans


class _Tree:
    """Builder of the spans of one request. Times inside are monotonic seconds."""

    def __init__(
        self,
        record: RequestRecord,
        trace: Trace,
        journey: RequestTimings,
        new_id: Callable[[], str],
    ) -> None:
        self.spans: list[Span] = []
        self._record = record
        self._trace = trace
        self._journey = journey
        self._new_id = new_id
        self._unix_s = record.at_s - journey.ended_s
        """Offset from monotonic to Unix seconds."""

    def add_request(self) -> None:
        """Add the gateway's root span, a child of the client's span if there is one."""
        record, trace, journey = self._record, self._trace, self._journey
        self.spans.append(
            Span(
                f"{record.method or 'POST'} {ROUTE}",
                "server",
                trace.trace_id,
                trace.span_id,
                trace.parent_id,
                bool(trace.parent_id),
                journey.began_s + self._unix_s,
                record.at_s,
                "",
                _attributes(record),
                record.outcome if statuses.is_servers_fault(record.status) else "",
            )
        )

    def add_attempts(self) -> None:
        """Add one span per wait, and one per send to a replica."""
        journey, parent = self._journey, self._trace.span_id
        at_s = journey.arrived_s
        if not at_s:
            return
        for attempt in journey.attempts:
            self._add_hold(at_s, attempt.sent_s)
            error = "replica_died" if attempt.has_died else ""
            times = attempt.sent_s, attempt.ended_s
            self._add("send", parent, times, _sent_to(attempt.replica, error), error)
            at_s = attempt.ended_s
        if not journey.sent_s:
            self._add_hold(at_s, journey.ended_s)
            return
        self._add_hold(at_s, journey.sent_s)
        outcome = self._record.outcome
        error_type = "" if outcome == "ok" else outcome
        times = journey.sent_s, journey.ended_s
        attributes = _sent_to(self._record.replica, error_type)
        error = "" if outcome == CLIENT_LEFT else error_type
        send = self._add("send", parent, times, attributes, error)
        if self._record.receipt is not None and self._record.receipt.meta is not NO_RUN:
            self._add_batch(send, self._record.receipt)

    def _add_hold(self, start_s: float, end_s: float) -> None:
        if end_s <= start_s:
            return
        hold = self._add("hold", self._trace.span_id, (start_s, end_s))
        receipt, connected_s = self._record.receipt, self._journey.connected_s
        if receipt is not None and receipt.is_cold and start_s < connected_s <= end_s:
            self._add_cold_start(hold, start_s, connected_s, receipt)

    def _add_cold_start(
        self, hold: str, held_s: float, connected_s: float, receipt: Receipt
    ) -> None:
        """Add a cold start with its phases.

        The phases are consecutive and end when the replica connected. Phases that ended before the
        request arrived are omitted.
        """
        seconds = {
            phase: receipt.phases[phase] / 1e3 for phase in PHASES if phase in receipt.phases
        }
        begun_s = max(held_s, connected_s - sum(seconds.values()))
        attributes: Attributes = {**_on(receipt), "fngate.replica": receipt.replica}
        if receipt.host:
            attributes["fngate.host"] = receipt.host
        cold = self._add("cold start", hold, (begun_s, connected_s), attributes)
        at_s = connected_s - sum(seconds.values())
        for phase, took_s in seconds.items():
            start_s, at_s = at_s, min(connected_s, at_s + took_s)
            if at_s >= begun_s:
                self._add(phase, cold, (max(begun_s, start_s), at_s))

    def _add_batch(self, send: str, receipt: Receipt) -> None:
        """Add the replica's own times, centred in the send and cut to its duration.

        The transfer times before and after are not known separately.
        """
        sent_s, ended_s = self._journey.sent_s, self._journey.ended_s
        _, decode_us, wait_us, compute_us, encode_us, rows, _ = receipt.meta
        room_s = ended_s - sent_s
        all_s = (decode_us + wait_us + compute_us + encode_us) / 1e6
        at_s = sent_s + max(0.0, room_s - all_s) / 2
        attributes: Attributes = {
            "fngate.revision": receipt.revision,
            **_on(receipt),
            "fngate.rows": rows,
            "fngate.batch_wait_ms": wait_us / 1e3,
        }
        times = at_s, min(ended_s, at_s + all_s)
        batch = self._add("batch", send, times, attributes, replica=receipt.replica)
        compute = "first_run" if receipt.is_first else "compute"
        steps = (("decode", decode_us), ("", wait_us), (compute, compute_us), ("encode", encode_us))
        for name, us in steps:
            start_s, at_s = at_s, min(ended_s, at_s + us / 1e6)
            if name:
                self._add(name, batch, (start_s, at_s), replica=receipt.replica)

    def _add(
        self,
        name: str,
        parent: str,
        times: tuple[float, float],
        attributes: Attributes | None = None,
        error: str = "",
        replica: str = "",
    ) -> str:
        """Add a span and return its id."""
        start_s, end_s = times
        id = self._new_id()
        kinds: dict[str, Kind] = {"send": "client", "batch": "server"}
        self.spans.append(
            Span(
                name,
                kinds.get(name, "internal"),
                self._trace.trace_id,
                id,
                parent,
                name == "batch",
                start_s + self._unix_s,
                end_s + self._unix_s,
                replica,
                attributes or {},
                error,
            )
        )
        return id


def _attributes(record: RequestRecord) -> Attributes:
    """Return attributes by OpenTelemetry's conventions for HTTP servers, and those of fngate."""
    found: Attributes = {
        "http.request.method": record.method or "POST",
        "http.route": ROUTE,
        "url.path": f"/fn/{record.function}",
        "url.scheme": "http",
        "http.request.body.size": record.bytes_in,
        "http.response.body.size": record.bytes_out,
        "fngate.request_id": record.request_id,
        "fngate.function": record.function,
        "fngate.revision": record.revision,
        "fngate.replica": record.replica,
        "fngate.queue_ms": record.queue_ms,
        "fngate.sends": record.sends,
    }
    if record.status:
        found["http.response.status_code"] = record.status
    if record.outcome != "ok":
        found["error.type"] = record.outcome
    if record.first_byte_ms is not None:
        found["fngate.first_byte_ms"] = record.first_byte_ms
    if record.receipt is not None:
        found |= _on(record.receipt)
        if record.receipt.host:
            found["fngate.host"] = record.receipt.host
        if record.receipt.meta is not NO_RUN:
            found["fngate.rows"] = record.receipt.meta.rows
        found["fngate.is_cold"] = record.receipt.is_cold
    return found


def _on(receipt: Receipt) -> Attributes:
    """Return the attributes of the devices that a replica ran on: the first one, and all."""
    devices = receipt.devices
    return {"fngate.device": devices[0] if devices else "", "fngate.devices": devices}


def _sent_to(replica: str, error: str) -> Attributes:
    """Return the attributes of a send to a replica."""
    found: Attributes = {"fngate.replica": replica}
    if error:
        found["error.type"] = error
    return found
