"""Tests of the shares of parties in places of one kind."""

from __future__ import annotations

import pytest

from registry.errors import QueueFull
from registry.shares import Shares


@pytest.mark.parametrize(
    ("places", "asked", "given"),
    [
        pytest.param(8, "aaaaaaaa", "aaaa", id="a lone party has half"),
        pytest.param(8, "aaaaaabbbb", "aaaabb", id="the next one half of the rest"),
        pytest.param(
            8, "aaaaabbbccd", "aaaabbcd", id="a new party finds a place while one is left"
        ),
        pytest.param(2, "aab", "ab", id="two places are for two parties"),
        pytest.param(1, "ab", "a", id="one place is for one party"),
        pytest.param(0, "a", "", id="no place"),
    ],
)
def test_a_party_has_no_more_places_than_are_free(places: int, asked: str, given: str) -> None:
    """Places are taken in the order in which they are asked for; the others are refused."""
    shares, taken = Shares("streams are open", places), ""
    for party in asked:
        try:
            shares.take(party)
        except QueueFull:
            continue
        else:
            taken += party
    assert taken == given
    assert len(shares) == len(given)


def test_a_place_that_was_given_back_can_be_taken_again() -> None:
    """What a party gave back no longer counts against it."""
    shares = Shares("streams are open", 2)
    for _ in range(3):
        shares.take("a")
        with pytest.raises(QueueFull, match="at most 2 are possible") as caught:
            shares.take("a")
        assert caught.value.retry_after_s
        shares.give_back("a")
    assert not len(shares)
