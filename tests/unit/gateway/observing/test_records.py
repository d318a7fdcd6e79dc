"""Tests of request records and their trace context."""

from __future__ import annotations

import pytest

from gateway.dispatch.call import Attempt, Call
from gateway.observing.records import (
    CLIENT_LEFT,
    SAMPLED,
    RequestEnd,
    RequestInfo,
    Trace,
    continue_trace,
    is_sampled,
    make_record,
    parse_traceparent,
    trace_id,
)
from runtime_image.link.meta import RequestMeta
from tests.support.records import RECEIPT, TRACE

ASKED = RequestInfo("id-1", "", "digits", "digits@1", 10.0, 7, None)
CALL = Call("default/digits@2", RequestMeta("", "", -1, ""), b"body", 11.0, 66.0, 60.0)


def test_a_request_that_was_answered() -> None:
    """The record names the revision that answered, which may differ from the requested one after
    traffic moved."""
    CALL.link, CALL.sent_s, CALL.sends = "r1", 11.5, 1
    record = make_record(ASKED, RequestEnd("ok", 12.0, 200, 9, RECEIPT, 5.0), CALL, 1000.0)
    assert (record.at_s, record.ms, record.queue_ms) == (1000.0, 2000.0, 500.0)
    assert (record.revision, record.replica, record.sends) == ("digits@2", "r1", 1)
    assert (record.status, record.bytes_in, record.bytes_out) == (200, 7, 9)
    assert (record.receipt, record.trace, record.journey) == (RECEIPT, None, None)


def test_a_request_that_was_refused_at_once() -> None:
    """The record of a refused request names no replica and has no send or queue time."""
    traced = ASKED._replace(trace=TRACE, revision="")
    record = make_record(traced, RequestEnd("unknown_function", 10.5, 404, 100), None, 1000.0)
    assert (record.replica, record.sends, record.queue_ms) == ("", 0, 0.0)
    assert record.journey is not None
    assert (record.journey.began_s, record.journey.ended_s) == (10.0, 10.5)
    assert (record.journey.arrived_s, record.journey.sent_s) == (0.0, 0.0)


def test_a_client_that_left_while_it_waited() -> None:
    """All of the request's time counts as queue time."""
    call = Call("default/digits@1", CALL.meta, b"body", 11.0, 66.0, 60.0)
    record = make_record(ASKED, RequestEnd(CLIENT_LEFT, 14.0), call, 1000.0)
    assert (record.outcome, record.status, record.queue_ms) == (CLIENT_LEFT, 0, 3000.0)


def test_a_requeued_request_is_not_at_a_replica() -> None:
    """Its last send is an attempt, not the current one."""
    call = Call("default/digits@1", CALL.meta, b"body", 11.0, 66.0, 60.0)
    call.sent_s = 11.5
    call.attempts = (Attempt("r1", 11.5, 12.0, has_died=True),)
    traced = ASKED._replace(trace=TRACE)
    record = make_record(traced, RequestEnd("wait_budget_over", 14.0, 503, 9), call, 1000.0)
    assert record.journey is not None
    assert (record.journey.sent_s, record.journey.attempts) == (0.0, call.attempts)


def test_an_invalid_function_name_is_not_recorded() -> None:
    """Names come from clients: line ends and secrets must not reach a log."""
    for name in ("a\nb", "../x", "", "a" * 80, "Digits"):
        record = make_record(ASKED._replace(function=name), RequestEnd("x", 11.0), None, 0.0)
        assert record.function == ""


ID, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GIVEN = f"00-{ID}-{PARENT}-01"


@pytest.mark.parametrize(
    "text", [GIVEN, f"00-{ID}-{PARENT}-00", f"01-{ID}-{PARENT}-01", f"cc-{ID}-{PARENT}-ff-more"]
)
def test_a_standard_traceparent_is_read(text: str) -> None:
    """Valid headers are kept, also those of a later version with more fields."""
    assert parse_traceparent(text) == text
    assert trace_id(text) == ID


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        GIVEN.upper(),
        f" {GIVEN}",
        f"{GIVEN}-more",
        f"{GIVEN}\n",
        f"ff-{ID}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{ID}-{'0' * 16}-01",
        f"00-{ID}-{PARENT}-1",
        f"00-{ID[1:]}-{PARENT}-01",
        f"0x-{ID}-{PARENT}-01",
        f"cc-{ID}-{PARENT}-01more",
        f"cc-{ID}-{PARENT}-01-{'m' * 300}",
    ],
)
def test_an_invalid_traceparent_is_ignored(text: str) -> None:
    """Headers that the standard calls invalid are ignored, and so are overlong ones."""
    assert parse_traceparent(text) == ""


def test_the_lowest_flag_bit_means_sampled() -> None:
    """The lowest bit of the flags decides, whatever the other bits are."""
    flags = ("00", "01", "02", "03", "fe", "ff")
    assert [is_sampled(f"00-{ID}-{PARENT}-{two}") for two in flags] == [False, True] * 3


def test_a_continued_trace_has_the_sender_as_parent() -> None:
    """The trace id and the random flag stay; the span id is new."""
    assert continue_trace(GIVEN, "cd" * 8) == Trace(ID, "cd" * 8, PARENT, 1)
    assert continue_trace(f"00-{ID}-{PARENT}-ff", "cd" * 8).traceparent == f"00-{ID}-{'cd' * 8}-03"


def test_a_trace_that_begins_here_has_no_parent() -> None:
    """A new trace has no parent span, and its header for replicas is valid."""
    trace = Trace(ID, PARENT, "", SAMPLED)
    assert (trace.parent_id, parse_traceparent(trace.traceparent)) == ("", GIVEN)


def test_an_empty_header_has_no_trace_id() -> None:
    """An empty traceparent has an empty trace id."""
    assert trace_id("") == ""
