"""Tests of what is known of a request in the end."""

from __future__ import annotations

from gateway.dispatch.call import Attempt, Call
from gateway.observing.records import CLIENT_LEFT, RequestEnd, RequestInfo, make_record
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
