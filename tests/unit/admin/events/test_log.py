"""The log of events and the state that was sent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from admin.events.log import EventLog, Item, SentState


def numbers(ring: EventLog, seq: int) -> list[int] | None:
    """The numbers of what came after `seq`."""
    news = ring.after(seq)
    return None if news is None else [one.seq for one in news]


def test_who_has_read_all_gets_nothing() -> None:
    """That is no gap."""
    ring = EventLog()
    ring.add("decision", "f", b"{}")

    assert numbers(ring, 1) == []


def test_what_was_never_said_cannot_be_resumed() -> None:
    """Neither a number of the future nor one below the first."""
    ring = EventLog()
    ring.add("decision", "f", b"{}")

    assert (ring.after(2), ring.after(-1)) == (None, None)


def test_numbers_go_on_after_a_clearing() -> None:
    """Whoever had read everything before must not take what comes next for its follow-up."""
    ring = EventLog()
    ring.add("decision", "f", b"{}")
    ring.clear()
    ring.add("decision", "f", b"{}")

    assert ring.after(1) is None
    assert numbers(ring, 2) == [3]


@given(st.lists(st.binary(max_size=20), max_size=40), st.integers(1, 10), st.integers(1, 60))
def test_all_that_is_kept_comes_in_order_or_nothing(
    data: list[bytes], items_max: int, bytes_max: int
) -> None:
    """From any number on there is either everything since, or the admission of a gap; and what is
    kept stays within both limits."""
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


def test_only_what_looks_different_is_news() -> None:
    """The first look is, the same once more is not, a change is."""
    picture = SentState()

    assert picture.update("functions", WARM)
    assert not picture.update("functions", WARM)
    assert picture.update("functions", WARM._replace(data=b"{}"))


def test_kinds_are_apart() -> None:
    """A function and a replica may have the same id."""
    picture = SentState()
    picture.update("functions", WARM)

    assert picture.update("replicas", WARM)
    assert picture.all("functions") == picture.all("replicas") == [WARM.data]


def test_what_is_gone_was_told_of() -> None:
    """Of what nobody was told, nobody need be told that it is gone; and only once of the rest."""
    picture = SentState()
    picture.update("functions", WARM)

    assert picture.remove("functions", ["g", "f"]) == [WARM]
    assert picture.remove("functions", ["f"]) == []
    assert picture.update("functions", WARM)


def test_what_is_not_listed_any_more_is_gone() -> None:
    """Replicas and devices are read as whole lists."""
    picture = SentState()
    for id in ("a", "b"):
        picture.update("replicas", Item(id, "", b""))

    assert [one.id for one in picture.remove_except("replicas", {"b"})] == ["a"]


def test_a_cleared_picture_is_new_again() -> None:
    """Nothing was told."""
    picture = SentState()
    picture.update("functions", WARM)
    picture.clear()

    assert picture.all("functions") == []


def test_one_function_can_be_looked_at_alone() -> None:
    """With what concerns everybody."""
    picture = SentState()
    for about in ("f", "g", ""):
        picture.update("replicas", Item(f"of {about}", about, about.encode()))

    assert picture.all("replicas", "g") == [b"g", b""]
