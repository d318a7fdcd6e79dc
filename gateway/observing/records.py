"""One record per request for the access log and for traces, and its W3C trace context. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from gateway.dispatch.call import Attempt, Call
from gateway.replies import Receipt
from registry.names import is_name

_KNOWN: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_LATER: Final = re.compile(
    r"(?!00|ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
    r"(?:-[\x21-\x7e]{0,200})?"
)
"""A later version may append fields; the known fields are where version 00 has them."""
SAMPLED: Final = 1
_RANDOM: Final = 2


class Trace(NamedTuple):
    """Trace of a request; ids in lower-case hex.

    `parent_id` is "" if the trace begins here. `flags` are those sent to the replica.
    """

    trace_id: str
    span_id: str
    parent_id: str
    flags: int

    @property
    def traceparent(self) -> str:
        """Header for requests made on behalf of this one."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


def parse_traceparent(text: str) -> str:
    """Return the header `traceparent` unchanged, "" if the standard requires ignoring it."""
    return text if _KNOWN.fullmatch(text) or _LATER.fullmatch(text) else ""


def trace_id(traceparent: str) -> str:
    """Return the trace id of a valid header; "" for ""."""
    return traceparent[3:35]


def is_sampled(traceparent: str) -> bool:
    """Return whether the sender of this header records the trace."""
    return bool(int(traceparent[53:55], 16) & SAMPLED)


def continue_trace(traceparent: str, span_id: str) -> Trace:
    """Return the sender's trace, with a span of this process."""
    flags = int(traceparent[53:55], 16) & _RANDOM | SAMPLED
    return Trace(trace_id(traceparent), span_id, traceparent[36:52], flags)


CLIENT_LEFT = "client_left"
"""Outcome of a request whose client disconnected before the answer."""


class RequestTimings(NamedTuple):
    """Times of a traced request in monotonic seconds; 0 for a stage that it did not reach.

    `ended_s` is the same moment as the record's `at_s`. `arrived_s`: the body was complete.
    `sent_s`: the call was last sent to a replica, whose link was established at `connected_s`.
    `attempts`: earlier sends without an answer.
    """

    began_s: float
    ended_s: float
    arrived_s: float = 0.0
    sent_s: float = 0.0
    connected_s: float = 0.0
    attempts: tuple[Attempt, ...] = ()


class RequestRecord(NamedTuple):
    """One request. `at_s` is when it ended, in Unix seconds; `status` is 0 if nothing was sent.

    `function` and `revision` are those requested, "" if they do not exist; an accepted call may
    have followed its function's traffic to another revision. `replica` is the last one that had it.
    `outcome` is "ok", an error's code, or CLIENT_LEFT. `bytes_in` is 0 unless the body was
    complete. `receipt` is set if a replica answered, `trace` and `journey` if the request is
    traced; `trace_id` also if only its client traces it. `method` and `first_byte_ms` (from sending
    the request to the first byte of the answer) are set only for server functions.
    """

    at_s: float
    request_id: str
    trace_id: str
    function: str
    revision: str
    replica: str
    outcome: str
    status: int
    bytes_in: int
    bytes_out: int
    ms: float
    queue_ms: float = 0.0
    sends: int = 0
    receipt: Receipt | None = None
    trace: Trace | None = None
    journey: RequestTimings | None = None
    method: str = ""
    first_byte_ms: float | None = None


class RequestInfo(NamedTuple):
    """A request as received; `function` may be any text, `size` is the body's in bytes.

    `method`: only of a request to a server function.
    """

    request_id: str
    trace_id: str
    function: str
    revision: str
    began_s: float
    size: int
    trace: Trace | None
    method: str = ""


class RequestEnd(NamedTuple):
    """How a request ended.

    `now`: monotonic seconds. `size`: bytes of the answer's body. `connected_s`: when the link of
    the replica that answered was established. `first_byte_ms`: only of a server function's answer.
    """

    outcome: str
    now: float
    status: int = 0
    size: int = 0
    receipt: Receipt | None = None
    connected_s: float = 0.0
    first_byte_ms: float | None = None


def make_record(
    asked: RequestInfo, ending: RequestEnd, call: Call | None, at_s: float
) -> RequestRecord:
    """Return the record of a request that ended at `at_s` (Unix seconds).

    `call` is None if the request was not accepted.
    """
    request_id, trace_id, function, revision, began_s, bytes_in, trace, method = asked
    outcome, now, status, bytes_out, receipt, _, first_byte_ms = ending
    # Text that is not a valid name may contain anything, even line ends and secrets.
    function = function if is_name(function) else ""
    replica, sends, queue_ms = "", 0, 0.0
    if call is not None:
        replica, sends = call.link, call.sends
        queue_ms = ((call.sent_s or now) - call.arrived_s) * 1e3
        if call.is_exchange and receipt is not None:
            queue_ms = receipt.queue_ms  # until it had its connection
        # The call may have followed its function's traffic.
        revision = call.pool.partition("/")[2]
    return RequestRecord(
        at_s,
        request_id,
        trace_id,
        function,
        revision,
        replica,
        outcome,
        status,
        bytes_in,
        bytes_out,
        (now - began_s) * 1e3,
        queue_ms,
        sends,
        receipt,
        trace,
        None if trace is None else _journey(began_s, ending, call),
        method,
        first_byte_ms,
    )


def _journey(began_s: float, ending: RequestEnd, call: Call | None) -> RequestTimings:
    if call is None:
        return RequestTimings(began_s, ending.now)
    sent_s, attempts = call.sent_s, call.attempts
    if attempts and attempts[-1].sent_s == sent_s:  # it is queued again
        sent_s = 0.0
    return RequestTimings(began_s, ending.now, call.arrived_s, sent_s, ending.connected_s, attempts)
