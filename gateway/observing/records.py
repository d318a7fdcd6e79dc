"""What became of one request to a function: one record each, for the access log and for traces.

Which trace a request belongs to (W3C Trace Context). Pure.
"""

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
"""A later version may say more; what is known of it stands where version 00 has it."""
_SAMPLED: Final = 1
_RANDOM: Final = 2


class Trace(NamedTuple):
    """A request that is traced; ids in lower-case hex. `parent_id` is "" where the trace begins
    here. `flags` as they are told to the replica."""

    trace_id: str
    span_id: str
    parent_id: str
    flags: int

    @property
    def traceparent(self) -> str:
        """What whoever works for this request is told."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


def parse_traceparent(text: str) -> str:
    """The header `traceparent` unchanged, "" where the standard has it ignored."""
    return text if _KNOWN.fullmatch(text) or _LATER.fullmatch(text) else ""


def trace_id(traceparent: str) -> str:
    """The trace that a header names which `read` let through; "" for ""."""
    return traceparent[3:35]


def is_sampled(traceparent: str) -> bool:
    """Whether whoever sent this header records the trace."""
    return bool(int(traceparent[53:55], 16) & _SAMPLED)


def new_trace(trace_id: str, span_id: str) -> Trace:
    """A trace that begins here."""
    return Trace(trace_id, span_id, "", _SAMPLED)


def continue_trace(traceparent: str, span_id: str) -> Trace:
    """The sender's trace, goes on with a span of ours."""
    flags = int(traceparent[53:55], 16) & _RANDOM | _SAMPLED
    return Trace(trace_id(traceparent), span_id, traceparent[36:52], flags)


CLIENT_LEFT = "client_left"
"""The outcome of a request whose client did not wait for its answer."""


class RequestTimings(NamedTuple):
    """Where a traced request was at what time, in monotonic seconds; `ended_s` is the same moment
    as its record's `at_s`. `arrived_s`: its body was there. `sent_s`: the last time to a replica,
    which was connected since `up_s`. 0 where it did not come so far.

    `attempts` are those before the last that came to nothing.
    """

    began_s: float
    ended_s: float
    arrived_s: float = 0.0
    sent_s: float = 0.0
    connected_s: float = 0.0
    attempts: tuple[Attempt, ...] = ()


class RequestRecord(NamedTuple):
    """One request. `at_s` is when it ended, in Unix seconds; `status` 0 where nothing was sent.

    `function` and `revision` are as they were asked for, "" where there is no such thing, unless
    a replica answered: that knows better. `replica` is the last that had it. `outcome` is "ok", an
    error's code, or CLIENT_LEFT. `bytes_in` counts a whole body, and nothing of one that was not.
    `receipt` is there where a replica answered, `trace` and `journey` where it is traced;
    `trace_id` also where only its client does that.
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


class RequestInfo(NamedTuple):
    """What is known of a request when it comes; `function` may be no name at all, `size` are the
    bytes of its body."""

    request_id: str
    trace_id: str
    function: str
    revision: str
    began_s: float
    size: int
    trace: Trace | None


class RequestEnd(NamedTuple):
    """How it ended: `now` is monotonic seconds, `size` the bytes of the answer's body. `up_s`:
    since when the replica that answered was connected."""

    outcome: str
    now: float
    status: int = 0
    size: int = 0
    receipt: Receipt | None = None
    connected_s: float = 0.0


def make_record(
    asked: RequestInfo, ending: RequestEnd, call: Call | None, at_s: float
) -> RequestRecord:
    """The record of a request that ended at `at_s` (Unix seconds); `call` if it was accepted."""
    request_id, trace_id, function, revision, began_s, bytes_in, trace = asked
    outcome, now, status, bytes_out, receipt, _ = ending
    # What no function is called may hold anything, line ends and secrets too.
    function = function if is_name(function) else ""
    replica, sends, queue_ms = "", 0, 0.0
    if call is not None:
        replica, sends = call.link, call.sends
        queue_ms = ((call.sent_s or now) - call.arrived_s) * 1e3
        # It may have followed its function's traffic.
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
    )


def _journey(began_s: float, ending: RequestEnd, call: Call | None) -> RequestTimings:
    if call is None:
        return RequestTimings(began_s, ending.now)
    sent_s, attempts = call.sent_s, call.attempts
    if attempts and attempts[-1].sent_s == sent_s:  # it waits again
        sent_s = 0.0
    return RequestTimings(began_s, ending.now, call.arrived_s, sent_s, ending.connected_s, attempts)
