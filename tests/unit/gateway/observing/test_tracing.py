"""Tests of the sampling of requests, and of their spans."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from random import Random

import pytest

from gateway.dispatch.call import Attempt
from gateway.observing.batching import BATCH
from gateway.observing.records import CLIENT_LEFT, RequestRecord, parse_traceparent
from gateway.observing.tracing import BATCHES_MAX, Span, Tracer, spans_of
from gateway.replies import NO_RUN
from tests.support.records import META, RECEIPT, RECORD, TRACE, TRACED

ID, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Zeros(Random):
    """Random source that returns only zeros."""

    def getrandbits(self, k: int, /) -> int:
        """Return 0."""
        return 0


@contextmanager
def tracing(ratio: float, random: Random | None = None) -> Iterator[Tracer]:
    """Yield a tracer that discards its records."""
    tracer = Tracer(ratio, lambda _records, _left_out: None, random or Random(7))
    yield tracer
    tracer.close()


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_the_clients_sampling_decision_wins(ratio: float) -> None:
    """A traceparent decides whether the request is traced, whatever the own sampling ratio."""
    with tracing(ratio) as tracer:
        trace = tracer.begin(f"00-{ID}-{PARENT}-01")
        assert trace is not None
        assert (trace.trace_id, trace.parent_id) == (ID, PARENT)
        assert tracer.begin(f"00-{ID}-{PARENT}-00") is None


def test_other_requests_are_sampled_by_ratio() -> None:
    """Requests without a traceparent are traced by the ratio: none at 0, all at 1."""
    for ratio, least, most in ((0.0, 0, 0), (0.25, 200, 300), (1.0, 1000, 1000)):
        with tracing(ratio) as tracer:
            traced = sum(tracer.begin("") is not None for _ in range(1000))
        assert least <= traced <= most


def test_ids_are_never_all_zeros() -> None:
    """Ids are never zero, because the standard ignores such a trace."""
    with tracing(1.0, Zeros()) as tracer:
        trace = tracer.begin("")
    assert trace is not None
    assert parse_traceparent(trace.traceparent)


def test_records_are_written_by_a_thread_that_sees_the_end() -> None:
    """The end callback runs after the last record was written."""
    seen: list[object] = []

    def write(records: list[RequestRecord], _left_out: int) -> None:
        seen.extend([*records, threading.current_thread().name])

    tracer = Tracer(1.0, write, Random(7), lambda: seen.append("ended"))
    tracer.record(TRACED)
    tracer.close()
    assert seen == [TRACED, "traces", "ended"]


def test_a_collector_that_hangs_costs_little_memory() -> None:
    """Only a few batches are queued for a hanging collector; further records are dropped."""
    hangs, written = threading.Event(), []

    def write(records: list[RequestRecord], left_out: int) -> None:
        hangs.wait(10)
        written.append((len(records), left_out))

    tracer = Tracer(1.0, write, Random(7))
    for _ in range(100 * BATCH):
        tracer.record(TRACED)
    hangs.set()
    tracer.close()

    assert BATCHES_MAX * BATCH <= sum(count for count, _ in written) <= (BATCHES_MAX + 2) * BATCH


PHASES = {"place": 10.0, "start": 20.0, "import": 300.0, "load": 70.0}


def ids() -> Callable[[], str]:
    """Return a source of ids 1, 2, 3 ..."""
    numbers = count(1)
    return lambda: f"{next(numbers):016x}"


def made(record: RequestRecord) -> dict[str, Span]:
    """Return the record's spans by name, the second of a name with #2. Check that each parent
    precedes its child."""
    found: dict[str, Span] = {}
    known = {TRACE.parent_id, TRACE.span_id}
    for span in spans_of(record, ids()):
        assert span.parent_id in known
        assert span.start_s <= span.end_s
        known.add(span.span_id)
        found[f"{span.name}#2" if span.name in found else span.name] = span
    return found


def times(span: Span) -> tuple[float, float]:
    """Return start and end in milliseconds since the request's begin."""
    return round((span.start_s - 999.0) * 1e3, 3), round((span.end_s - 999.0) * 1e3, 3)


def travelled(**changes: object) -> RequestRecord:
    """Return the traced request with changes to its journey."""
    assert TRACED.journey is not None
    return TRACED._replace(journey=TRACED.journey._replace(**changes))


def test_an_untraced_request_has_no_spans() -> None:
    """A record without a trace has no spans."""
    assert spans_of(RECORD, ids()) == []


def test_a_warm_request() -> None:
    """The replica's spans are centred in the time between send and answer."""
    spans = made(TRACED)
    assert list(spans) == ["POST /fn/{name}", "send", "batch", "decode", "compute", "encode"]
    assert times(spans["POST /fn/{name}"]) == (0, 1000)
    assert times(spans["send"]) == (100, 1000)
    assert times(spans["batch"]) == (545, 555)
    assert times(spans["decode"]) == (545, 546)
    assert times(spans["compute"]) == (548, 551)
    assert times(spans["encode"]) == (551, 555)
    assert [span.replica for span in spans.values()] == ["", "", "r1", "r1", "r1", "r1"]
    assert [span.kind for span in spans.values()][:3] == ["server", "client", "server"]
    assert spans["compute"].parent_id == spans["batch"].span_id
    assert spans["batch"].parent_id == spans["send"].span_id
    assert spans["send"].parent_id == TRACE.span_id


def test_replica_times_are_clipped_to_the_send() -> None:
    """Times that a replica reports are clipped to the duration of the send."""
    lies = RECEIPT._replace(meta=META._replace(compute_us=2**32 - 1, decode_us=2**32 - 1))
    spans = made(TRACED._replace(receipt=lies))
    assert times(spans["batch"]) == times(spans["decode"]) == (100, 1000)
    assert times(spans["compute"]) == times(spans["encode"]) == (1000, 1000)


def test_a_cold_start_waited_for_from_its_begin() -> None:
    """The phases follow each other and end when the link is up."""
    cold = RECEIPT._replace(phases=PHASES, is_first=True)
    spans = made(travelled(sent_s=9.52, connected_s=9.51)._replace(receipt=cold))
    names = ["POST /fn/{name}", "hold", "cold start", *PHASES]
    assert list(spans) == [*names, "send", "batch", "decode", "first_run", "encode"]
    assert times(spans["hold"]) == (100, 520)
    assert times(spans["cold start"]) == (110, 510)
    assert [times(spans[phase]) for phase in PHASES] == [
        (110, 120),
        (120, 140),
        (140, 440),
        (440, 510),
    ]
    assert spans["load"].parent_id == spans["cold start"].span_id
    assert spans["cold start"].parent_id == spans["hold"].span_id


def test_a_cold_start_that_began_before_the_request() -> None:
    """Only the part of the cold start that this request waited for is in its spans."""
    cold = RECEIPT._replace(phases=PHASES)
    spans = made(travelled(sent_s=9.35, connected_s=9.35)._replace(receipt=cold))
    assert times(spans["cold start"]) == (100, 350)
    assert [times(spans[phase]) for phase in ("import", "load")] == [(100, 280), (280, 350)]
    assert "place" not in spans


def test_a_request_that_was_sent_twice() -> None:
    """Each send is a span, and so is the wait between them."""
    died = Attempt("r0", 9.1, 9.3, has_died=True)
    spans = made(travelled(sent_s=9.5, attempts=(died,)))
    assert list(spans)[1:4] == ["send", "hold", "send#2"]
    assert times(spans["send"]) == (100, 300)
    assert times(spans["hold"]) == (300, 500)
    assert times(spans["send#2"]) == (500, 1000)
    assert spans["send"].error == spans["send"].attributes["error.type"] == "replica_died"
    assert spans["send"].attributes["fngate.replica"] == "r0"
    assert (spans["send#2"].error, spans["POST /fn/{name}"].error) == ("", "")


def test_a_returned_send_is_no_error() -> None:
    """A send that a full or draining replica returned is not an error span."""
    back = Attempt("r0", 9.1, 9.3, has_died=False)
    spans = made(travelled(sent_s=9.3, attempts=(back,)))
    assert list(spans)[1:3] == ["send", "send#2"]
    assert (spans["send"].error, "error.type" in spans["send"].attributes) == ("", False)


@pytest.mark.parametrize(
    ("outcome", "status", "error", "sent_error"),
    [
        ("execution_timeout", 504, "execution_timeout", "execution_timeout"),
        ("bad_input", 400, "", "bad_input"),
        (CLIENT_LEFT, 0, "", ""),
    ],
)
def test_a_request_that_failed_at_a_replica(
    outcome: str, status: int, error: str, sent_error: str
) -> None:
    """A client error does not mark the server span as failed, but `error.type` names it."""
    spans = made(TRACED._replace(outcome=outcome, status=status, receipt=None))
    assert list(spans) == ["POST /fn/{name}", "send"]
    root = spans["POST /fn/{name}"]
    assert (root.error, spans["send"].error) == (error, sent_error)
    assert root.attributes["error.type"] == outcome
    assert root.attributes.get("http.response.status_code", 0) == status


def test_a_request_that_was_never_sent() -> None:
    """The request has a hold span until its end, or only the root span if it was refused before its
    body arrived."""
    assert list(made(travelled(sent_s=0.0))) == ["POST /fn/{name}", "hold"]
    assert list(made(travelled(arrived_s=0.0, sent_s=0.0))) == ["POST /fn/{name}"]


def test_attributes_are_those_of_the_conventions() -> None:
    """Attributes follow the OpenTelemetry conventions; our own start with `fngate`."""
    cold = RECEIPT._replace(phases=PHASES)
    attributes = made(TRACED._replace(receipt=cold))["POST /fn/{name}"].attributes
    assert attributes == {
        "http.request.method": "POST",
        "http.route": "/fn/{name}",
        "url.path": "/fn/digits",
        "url.scheme": "http",
        "http.request.body.size": 7,
        "http.response.body.size": 9,
        "http.response.status_code": 200,
        "fngate.request_id": "id-1",
        "fngate.function": "digits",
        "fngate.revision": "digits@1",
        "fngate.replica": "r1",
        "fngate.queue_ms": 0.1,
        "fngate.sends": 1,
        "fngate.device": "cpu-0",
        "fngate.devices": ("cpu-0",),
        "fngate.rows": 5,
        "fngate.is_cold": True,
    }


def test_another_host_is_named() -> None:
    """The request and its cold start name the host of the replica, unless it is this machine."""
    cold = RECEIPT._replace(phases=PHASES, host="gpu2")
    spans = made(travelled(sent_s=9.52, connected_s=9.51)._replace(receipt=cold))

    assert [name for name, span in spans.items() if "fngate.host" in span.attributes] == [
        "POST /fn/{name}",
        "cold start",
    ]
    assert spans["cold start"].attributes["fngate.host"] == "gpu2"


def test_spans_with_a_remote_parent_are_marked() -> None:
    """A span whose parent is in another process is marked as remote: the root below a client's
    span, and the replica's batch."""
    spans = made(TRACED)
    assert [name for name, span in spans.items() if span.is_remote] == ["batch"]
    assert TRACED.trace is not None
    ours = TRACED._replace(trace=TRACED.trace._replace(parent_id="ef" * 8))
    root = spans_of(ours, ids())[0]
    assert (root.is_remote, root.parent_id) == (True, "ef" * 8)


def test_an_exchange_has_its_method_and_no_batch() -> None:
    """A server's spans name the method and the first byte; what its server did is not known."""
    receipt = RECEIPT._replace(meta=NO_RUN)
    record = TRACED._replace(receipt=receipt, method="PUT", first_byte_ms=4.0)
    spans = spans_of(record, lambda: "0" * 16)

    assert [span.name for span in spans] == ["PUT /fn/{name}", "send"]
    assert spans[0].attributes["http.request.method"] == "PUT"
    assert spans[0].attributes["fngate.first_byte_ms"] == 4.0
    assert "fngate.rows" not in spans[0].attributes
