"""Tests of the event log and of the state already sent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from admin.events.log import EventLog, Item, SentState


def numbers(ring: EventLog, seq: int) -> list[int] | None:
    """Return the numbers of the events after `seq`, or None for a gap."""
    news = ring.after(seq)
    return None if news is None else [one.seq for one in news]


def test_there_is_nothing_after_the_last_event() -> None:
    """After the last event there are no events, which is not a gap."""
    ring = EventLog()
    ring.add("decision", "f", b"{}")

    assert numbers(ring, 1) == []


def test_an_unknown_number_cannot_be_resumed() -> None:
    """A number of the future, or below the first, cannot be resumed."""
    ring = EventLog()
    ring.add("decision", "f", b"{}")

    assert (ring.after(2), ring.after(-1)) == (None, None)


def test_numbers_go_on_after_a_clearing() -> None:
    """Numbers continue after a clear, with a gap for readers of earlier events."""
    ring = EventLog()
    ring.add("decision", "f", b"{}")
    ring.clear()
    ring.add("decision", "f", b"{}")

    assert ring.after(1) is None
    assert numbers(ring, 2) == [3]


@given(st.lists(st.binary(max_size=20), max_size=40), st.integers(1, 10), st.integers(1, 60))
def test_the_log_returns_all_later_events_or_a_gap(
    data: list[bytes], items_max: int, bytes_max: int
) -> None:
    """From any number on, the log returns every later event or reports a gap, and stays within both
    limits."""
    ring = EventLog(items_max, bytes_max)
    for one in data:
        ring.add("decision", "", one)

    kept = 0
    for seq in range(ring.seq, -1, -1):
        news = ring.after(seq)
        if news is None:
            break
        kept = len(news)
        assert [one.data for one in news] == data[seq:]
    assert kept <= items_max
    assert sum(len(one) for one in data[len(data) - kept :]) <= bytes_max


WARM = Item("f", "f", b'{"state":"warm"}')


def test_only_changed_items_are_new() -> None:
    """An item is new at first and when it has changed, not when it is the same."""
    picture = SentState()

    assert picture.update("functions", WARM)
    assert not picture.update("functions", WARM)
    assert picture.update("functions", WARM._replace(data=b"{}"))


def test_kinds_are_apart() -> None:
    """A function and a replica may share an id."""
    picture = SentState()
    picture.update("functions", WARM)

    assert picture.update("replicas", WARM)
    assert picture.all("functions") == picture.all("replicas") == [WARM.data]


def test_a_removal_is_reported_once() -> None:
    """A removal is reported once, and only for items that were sent."""
    picture = SentState()
    picture.update("functions", WARM)

    assert picture.remove("functions", ["g", "f"]) == [WARM]
    assert picture.remove("functions", ["f"]) == []
    assert picture.update("functions", WARM)


def test_an_item_missing_from_the_list_is_removed() -> None:
    """Replicas and devices missing from their complete list are removed."""
    picture = SentState()
    for id in ("a", "b"):
        picture.update("replicas", Item(id, "", b""))

    assert [one.id for one in picture.remove_except("replicas", {"b"})] == ["a"]


def test_after_a_clear_every_item_is_new() -> None:
    """After a clear every item is new again."""
    picture = SentState()
    picture.update("functions", WARM)
    picture.clear()

    assert picture.all("functions") == []


def test_the_state_of_one_function_can_be_read() -> None:
    """The state of one function includes items that concern no function."""
    picture = SentState()
    for about in ("f", "g", ""):
        picture.update("replicas", Item(f"of {about}", about, about.encode()))

    assert picture.all("replicas", "g") == [b"g", b""]
