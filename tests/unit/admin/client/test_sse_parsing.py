from __future__ import annotations

import pytest

from admin.client.sse import Event, EventTooLong, Parser


def test_an_event_has_id_type_and_data() -> None:
    """Fields may come in any order, with one space behind the colon or none."""
    parser = Parser()

    events = parser.feed(b"data: a\nid:7\nevent: lines\ndata:  b\n\n")

    assert events == [Event("7", "lines", "a\n b")]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_any_line_end_will_do(end: bytes) -> None:
    """LF, CR and CRLF end a line, also between two pieces."""
    stream = end.join([b"event: x", b"data: 1", b"", b"data: 2", b"", b""])
    parser = Parser()

    events = [event for byte in stream for event in parser.feed(bytes([byte]))]

    assert events == [Event("", "x", "1"), Event("", "message", "2")]


def test_comments_and_strange_fields_mean_nothing() -> None:
    """What begins with a colon is a comment; unknown fields, `retry` too, are left out."""
    parser = Parser()

    assert parser.feed(b": still here\nretry: 10\nfoo\ndata\n\n") == [Event("", "message", "")]


def test_an_event_without_data_is_none() -> None:
    """An empty line alone gives nothing, but the id before it counts, and its type is forgotten."""
    parser = Parser()

    assert parser.feed(b"id: 3\nevent: x\n\n") == []
    assert parser.last_id == "3"
    assert parser.feed(b"data: y\n\n") == [Event("3", "message", "y")]


def test_an_id_stays_until_another_comes() -> None:
    """Events without an id have the last one, an empty one takes it back, one with NUL is none."""
    parser = Parser("5")

    events = parser.feed(b"data: a\n\nid: 6\ndata: b\n\nid: 7\0\ndata: c\n\nid\ndata: d\n\n")

    assert [event.id for event in events] == ["5", "6", "6", ""]


def test_an_event_that_was_cut_off_does_not_count() -> None:
    """Without its empty line an event is none, and its id is not where to go on."""
    parser = Parser("1")

    assert parser.feed(b"id: 2\ndata: half") == []
    assert parser.last_id == "1"


def test_a_byte_order_mark_is_skipped_once() -> None:
    """It may stand before the first line only."""
    parser = Parser()

    events = parser.feed(b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\ndata: c\n\n")

    assert [event.data for event in events] == ["a", "c"]


@pytest.mark.parametrize("flood", [b"data: " + b"x" * 100, b"data: 12345678\n" * 12])
def test_an_endless_event_is_refused(flood: bytes) -> None:
    """Neither one line nor many may grow beyond the limit."""
    parser = Parser(event_max=64)

    with pytest.raises(EventTooLong, match="at most 64 bytes"):
        parser.feed(flood)
