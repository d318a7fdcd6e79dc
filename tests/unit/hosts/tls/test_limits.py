"""Tests of what a door of links over TLS lets begin; `tests/property/test_link_limits.py` has the
bounds over random histories."""

from __future__ import annotations

import pytest

from hosts.tls import limits
from hosts.tls.limits import (
    BURST,
    RATE_S,
    SOURCE_BURST,
    SOURCE_RATE_S,
    SOURCE_UNFINISHED_MAX,
    SOURCES_MAX,
    UNFINISHED_MAX,
    UNKNOWN_BURST,
    UNKNOWN_UNFINISHED_MAX,
    Limits,
    Refusal,
    Tally,
)
from runtime_image.link.handshake_limits import source_of

Begun = Refusal | None


def begin(made: Limits, source: str, now_s: float, *, is_known: bool = True) -> Begun:
    """Begin a connection that ends at once."""
    refusal = made.begin(source, now_s, is_known=is_known)
    if refusal is None:
        made.finish(source, is_known=is_known)
    return refusal


def test_the_unfinished_of_a_source() -> None:
    """A source has SOURCE_UNFINISHED_MAX, and the next one when one is finished."""
    made = Limits(0.0)
    for _ in range(SOURCE_UNFINISHED_MAX):
        assert made.begin("a", 0.0, is_known=True) is None
    assert made.begin("a", 0.0, is_known=True) is Refusal.SOURCE_FULL
    assert made.begin("b", 0.0, is_known=True) is None
    made.finish("a", is_known=True)
    assert made.begin("a", 0.0, is_known=True) is None


def test_all_unfinished() -> None:
    """All sources together have UNFINISHED_MAX, strangers UNKNOWN_UNFINISHED_MAX of them."""
    made = Limits(0.0)
    for number in range(UNKNOWN_UNFINISHED_MAX):
        assert made.begin(f"s{number}", number, is_known=False) is None
    now_s = float(UNFINISHED_MAX)
    assert made.begin("s", now_s, is_known=False) is Refusal.FULL
    for number in range(UNFINISHED_MAX - UNKNOWN_UNFINISHED_MAX):
        assert made.begin(f"k{number}", now_s + number, is_known=True) is None
    now_s *= 2
    assert made.begin("k", now_s, is_known=True) is Refusal.FULL
    made.finish("k0", is_known=True)
    assert made.begin("k", now_s, is_known=True) is None


def test_the_rate_of_a_source() -> None:
    """SOURCE_BURST at once, then SOURCE_RATE_S in a second; it never saves up more."""
    made = Limits(0.0)
    assert [begin(made, "a", 0.0) for _ in range(SOURCE_BURST)] == [None] * SOURCE_BURST
    assert begin(made, "a", 0.0) is Refusal.SOURCE_RATE
    assert begin(made, "a", 1 / SOURCE_RATE_S) is None
    assert begin(made, "a", 1 / SOURCE_RATE_S) is Refusal.SOURCE_RATE
    later_s = 1e6
    made = Limits(0.0)
    found = [begin(made, "a", later_s) for _ in range(SOURCE_BURST + 1)]
    assert found == [None] * SOURCE_BURST + [Refusal.SOURCE_RATE]


def test_the_rate_of_all() -> None:
    """BURST at once over all sources, UNKNOWN_BURST of unknown sources, then RATE_S in a second."""
    made = Limits(0.0)
    for number in range(UNKNOWN_BURST):
        assert begin(made, f"s{number}", 0.0, is_known=False) is None
    assert begin(made, "s", 0.0, is_known=False) is Refusal.RATE
    for number in range(BURST - UNKNOWN_BURST):
        assert begin(made, f"k{number}", 0.0) is None
    assert begin(made, "k", 0.0) is Refusal.RATE
    assert begin(made, "k", 1 / RATE_S) is None


def test_a_clock_that_goes_back_gives_nothing() -> None:
    """Neither credit nor a debt comes of it."""
    made = Limits(100.0)
    for _ in range(SOURCE_BURST):
        assert begin(made, "a", 100.0) is None
    assert begin(made, "a", 50.0) is Refusal.SOURCE_RATE
    assert begin(made, "a", 51.0) is None


def test_sources_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond SOURCES_MAX the one seen longest ago is, but none with an unfinished connection."""
    assert SOURCES_MAX > UNFINISHED_MAX
    monkeypatch.setattr(limits, "SOURCES_MAX", 3)
    made = Limits(0.0)
    assert made.begin("held", 0.0, is_known=True) is None
    for number in range(100):
        assert begin(made, f"s{number}", float(number)) is None
    assert list(made._sources) == ["held", "s98", "s99"]
    made.finish("held", is_known=True)
    assert made.unfinished == 0


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
    ],
)
def test_sources(host: str, source: str) -> None:
    """An IPv4 address is one, and so are all IPv6 addresses of one network."""
    assert source_of(host) == source


def test_refusals_are_logged_at_powers_of_two() -> None:
    """Each reason is counted alone."""
    tally = Tally()
    logged = [number for number in range(1, 101) if tally.add(Refusal.RATE)]
    assert logged == [1, 2, 4, 8, 16, 32, 64]
    assert tally.add(Refusal.FULL)
    assert tally.counts == {**dict.fromkeys(Refusal, 0), Refusal.RATE: 100, Refusal.FULL: 1}
