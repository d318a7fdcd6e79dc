"""Tests of what a traceparent says."""

from __future__ import annotations

import pytest

from gateway.observing.records import (
    Trace,
    continue_trace,
    is_sampled,
    new_trace,
    parse_traceparent,
    trace_id,
)

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
