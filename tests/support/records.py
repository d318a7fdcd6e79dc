"""Minimal request records."""

from __future__ import annotations

from gateway.observing.records import RequestRecord, RequestTimings, Trace
from gateway.replies import Receipt
from runtime_image.link.meta import AnswerMeta

META = AnswerMeta("application/json", 1000, 2000, 3000, 4000, 5)
"""1 ms of decoding, 2 of waiting, 3 of computing, 4 of encoding; 5 rows."""
RECEIPT = Receipt("digits@1", "r1", ("cpu-0",), 0.1, {}, is_first=False, meta=META)
TRACE = Trace("ab" * 16, "cd" * 8, "", 1)
RECORD = RequestRecord(
    at_s=1000.0,
    request_id="id-1",
    trace_id="",
    function="digits",
    revision="digits@1",
    replica="r1",
    outcome="ok",
    status=200,
    bytes_in=7,
    bytes_out=9,
    ms=1000.0,
    queue_ms=0.1,
    sends=1,
    receipt=RECEIPT,
)
"""A successful warm request, not traced."""
TRACED = RECORD._replace(
    trace_id=TRACE.trace_id,
    trace=TRACE,
    journey=RequestTimings(began_s=9.0, ended_s=10.0, arrived_s=9.1, sent_s=9.1, connected_s=1.0),
)
"""The same request, traced: 1 s in total, 0.1 s of it for the body."""
