"""Tests of request records and their trace context."""

from __future__ import annotations

import pytest

from gateway.dispatch.call import Attempt, Call
from gateway.observing.records import (
    CLIENT_LEFT,
    RequestEnd,
    RequestInfo,
    Trace,
    continue_trace,
    is_sampled,
    make_record,
    new_trace,
    parse_traceparent,
    trace_id,
)
from runtime_image.link.meta import RequestMeta
from tests.support.records import RECEIPT, TRACE

ASKED = RequestInfo("id-1", "", "digits", "digits@1", 10.0, 7, None)
CALL = Call("default/digits@2", RequestMeta("", "", -1, ""), b"body", 11.0, 66.0, 60.0)


def test_a_request_that_was_answered() -> None:
    """By another revision than was asked, since traffic had moved."""
    CALL.link, CALL.sent_s, CALL.sends = "r1", 11.5, 1
    record = make_record(ASKED, RequestEnd("ok", 12.0, 200, 9, RECEIPT, 5.0), CALL, 1000.0)
    assert (record.at_s, record.ms, record.queue_ms) == (1000.0, 2000.0, 500.0)
    assert (record.revision, record.replica, record.sends) == ("digits@2", "r1", 1)
    assert (record.status, record.bytes_in, record.bytes_out) == (200, 7, 9)
    assert (record.receipt, record.trace, record.journey) == (RECEIPT, None, None)


def test_a_request_that_was_refused_at_once() -> None:
    """It never came near a replica."""
    traced = ASKED._replace(trace=TRACE, revision="")
    record = make_record(traced, RequestEnd("unknown_function", 10.5, 404, 100), None, 1000.0)
    assert (record.replica, record.sends, record.queue_ms) == ("", 0, 0.0)
    assert record.journey is not None
    assert (record.journey.began_s, record.journey.ended_s) == (10.0, 10.5)
    assert (record.journey.arrived_s, record.journey.sent_s) == (0.0, 0.0)


def test_a_client_that_left_while_it_waited() -> None:
    """All its time was waiting."""
    call = Call("default/digits@1", CALL.meta, b"body", 11.0, 66.0, 60.0)
    record = make_record(ASKED, RequestEnd(CLIENT_LEFT, 14.0), call, 1000.0)
    assert (record.outcome, record.status, record.queue_ms) == (CLIENT_LEFT, 0, 3000.0)


def test_one_that_came_back_and_waits_again_is_not_at_a_replica() -> None:
    """Its last time with one is an attempt in vain."""
    call = Call("default/digits@1", CALL.meta, b"body", 11.0, 66.0, 60.0)
    call.sent_s = 11.5
    call.attempts = (Attempt("r1", 11.5, 12.0, has_died=True),)
    traced = ASKED._replace(trace=TRACE)
    record = make_record(traced, RequestEnd("wait_budget_over", 14.0, 503, 9), call, 1000.0)
    assert record.journey is not None
    assert (record.journey.sent_s, record.journey.attempts) == (0.0, call.attempts)


def test_what_is_no_name_is_not_kept() -> None:
    """It comes from whoever sends anything: line ends, secrets."""
    for name in ("a\nb", "../x", "", "a" * 80, "Digits"):
        record = make_record(ASKED._replace(function=name), RequestEnd("x", 11.0), None, 0.0)
        assert record.function == ""


ID, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GIVEN = f"00-{ID}-{PARENT}-01"


@pytest.mark.parametrize(
    "text", [GIVEN, f"00-{ID}-{PARENT}-00", f"01-{ID}-{PARENT}-01", f"cc-{ID}-{PARENT}-ff-more"]
)
def test_a_header_of_the_standard_is_read(text: str) -> None:
    """Also one of a later version, which may say more."""
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
def test_whatever_else_there_is_is_ignored(text: str) -> None:
    """As the standard has it; so is what is too long to be passed on."""
    assert parse_traceparent(text) == ""


def test_who_sends_a_trace_says_whether_it_is_recorded() -> None:
    """By the lowest bit of its flags, whatever the others say."""
    flags = ("00", "01", "02", "03", "fe", "ff")
    assert [is_sampled(f"00-{ID}-{PARENT}-{two}") for two in flags] == [False, True] * 3


def test_a_trace_goes_on_below_its_sender() -> None:
    """The trace's id stays, and what is said of its randomness; the span is ours."""
    assert continue_trace(GIVEN, "cd" * 8) == Trace(ID, "cd" * 8, PARENT, 1)
    assert continue_trace(f"00-{ID}-{PARENT}-ff", "cd" * 8).traceparent == f"00-{ID}-{'cd' * 8}-03"


def test_a_trace_that_begins_here_has_no_parent() -> None:
    """What replicas are told of it can be read."""
    trace = new_trace(ID, PARENT)
    assert (trace.parent_id, parse_traceparent(trace.traceparent)) == ("", GIVEN)


def test_no_header_is_of_no_trace() -> None:
    """Where `read` gave nothing."""
    assert trace_id("") == ""
