"""Tests of events as server-sent events."""

from __future__ import annotations

import json

import pytest

from admin.events.log import Event
from admin.events.sse import ITEMS_MAX, PIECE, Position, frame, frames, listing, pieces, position


def test_an_event_is_three_lines_and_an_empty_one() -> None:
    """An event has id, type and data lines and an empty line; without an id it does not move the
    position to resume from."""
    assert frame("ready", b"{}", "b-7") == b"id: b-7\nevent: ready\ndata: {}\n\n"
    assert frame("beat", b"{}") == b"event: beat\ndata: {}\n\n"


@pytest.mark.parametrize("text", ["", "7", "-7", "b-", "b--", "b-x", "b-٣", "b-" + "9" * 16])
def test_a_malformed_position_is_none(text: str) -> None:
    """Anything that is not a position reads as None."""
    assert position(text) is None


def test_a_position_reads_as_it_was_written() -> None:
    """A position reads back as written, even if the boot's name has a dash."""
    assert position(str(Position("a-b", 12))) == Position("a-b", 12)


def test_things_of_one_kind_share_an_event() -> None:
    """Consecutive items of one kind share an event with the last one's id; occurrences stand
    alone."""
    news = [
        Event(1, "functions", "f", b'{"name":"f"}'),
        Event(2, "functions", "g", b'{"name":"g"}'),
        Event(3, "decision", "f", b'{"text":"x"}'),
        Event(4, "decision", "f", b'{"text":"y"}'),
        Event(5, "functions", "f", b'{"name":"f"}'),
    ]

    told = [one.split(b"\n")[:3] for one in frames(news, "b")]

    assert [lines[0] for lines in told] == [b"id: b-2", b"id: b-3", b"id: b-4", b"id: b-5"]
    first = json.loads(told[0][2].removeprefix(b"data: "))
    assert first == {"items": [{"name": "f"}, {"name": "g"}]}


def test_an_event_does_not_grow_without_end() -> None:
    """A thousand functions are split into several events."""
    news = [Event(n, "functions", "f", b"{}") for n in range(ITEMS_MAX + 1)]

    assert [one.count(b"{}") for one in frames(news, "b")] == [ITEMS_MAX, 1]


def test_a_snapshot_has_no_ids() -> None:
    """Snapshot events have no ids and contain many items each."""
    told = list(listing("devices", [b"{}"] * (ITEMS_MAX + 1)))

    assert [one.count(b"{}") for one in told] == [ITEMS_MAX, 1]
    assert not any(b"id:" in one for one in told)
    assert list(listing("devices", [])) == []


def test_pieces_are_whole_events() -> None:
    """Events are joined into pieces of bounded size; a longer event is a piece of its own."""
    events = [b"a" * 10, b"b" * PIECE, b"c" * (PIECE - 1), b"d", b"e"]

    assert pieces(events) == [events[0], events[1], events[2] + b"d", b"e"]
    assert pieces([]) == []


def test_a_follower_of_one_function_hears_of_that_alone() -> None:
    """A follower of one function gets its events and those that concern no function."""
    news = [
        Event(1, "functions", "f", b"1"),
        Event(2, "functions", "g", b"2"),
        Event(3, "devices", "", b"3"),
    ]

    assert [one.split(b"data: ")[1] for one in frames(news, "b", "g")] == [
        b'{"items":[2]}\n\n',
        b'{"items":[3]}\n\n',
    ]
