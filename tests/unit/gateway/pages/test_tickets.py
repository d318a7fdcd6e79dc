"""Tests of tickets: single use, age and number."""

from __future__ import annotations

import pytest

from gateway.pages.tickets import LIFETIME_S, PER_KEY_MAX, Ticket, Tickets
from registry.errors import QueueFull


class Clock:
    """Clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """Clock at 100 s."""
    return Clock()


def test_a_ticket_is_valid_once(clock: Clock) -> None:
    """It returns what it was issued for, and then nothing."""
    tickets = Tickets(clock)
    word = tickets.issue("key", "jupyter", "/lab?reset")

    assert tickets.redeem(word, "jupyter") == Ticket("key", "jupyter", "/lab?reset", 160.0)
    assert tickets.redeem(word, "jupyter") is None
    assert len(tickets) == 0


def test_words_cannot_be_guessed(clock: Clock) -> None:
    """256 random bits each, in characters that need no escape in an address."""
    words = {Tickets(clock).issue("key", "jupyter") for _ in range(50)}

    assert len(words) == 50
    assert {len(word) for word in words} == {43}
    assert all(word.replace("-", "").replace("_", "").isalnum() for word in words)


def test_a_ticket_expires(clock: Clock) -> None:
    """After LIFETIME_S, whether or not anything has removed it."""
    tickets = Tickets(clock)
    early, late = tickets.issue("key", "jupyter"), tickets.issue("key", "jupyter")
    clock.now += LIFETIME_S - 0.01
    assert tickets.redeem(early, "jupyter") is not None
    clock.now += 0.01

    assert tickets.redeem(late, "jupyter") is None


def test_a_ticket_at_another_function_is_spent(clock: Clock) -> None:
    """It opens neither that function nor, afterwards, its own."""
    tickets = Tickets(clock)
    word = tickets.issue("key", "jupyter")

    assert tickets.redeem(word, "evil") is None
    assert tickets.redeem(word, "jupyter") is None


@pytest.mark.parametrize("word", ["", "x", "\udcff", "y" * 1_000_000])
def test_an_unknown_word_is_none(clock: Clock, word: str) -> None:
    """Any text may come from a client."""
    assert Tickets(clock).redeem(word, "jupyter") is None


def test_a_key_has_few_tickets(clock: Clock) -> None:
    """A further one replaces the key's oldest, and nobody else's."""
    tickets = Tickets(clock)
    other = tickets.issue("other", "jupyter")
    words = [tickets.issue("key", "jupyter") for _ in range(PER_KEY_MAX + 1)]

    assert tickets.redeem(words[0], "jupyter") is None
    assert tickets.redeem(words[1], "jupyter") is not None
    assert tickets.redeem(other, "jupyter") is not None


def test_their_number_is_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond TICKETS_MAX none is issued until the first ones expire."""
    monkeypatch.setattr("gateway.pages.tickets.TICKETS_MAX", 50)
    tickets = Tickets(clock)
    for number in range(50):
        tickets.issue(f"key-{number}", "jupyter")
    with pytest.raises(QueueFull):
        tickets.issue("one-more", "jupyter")
    clock.now += LIFETIME_S

    assert tickets.issue("one-more", "jupyter")
    assert len(tickets) == 1
