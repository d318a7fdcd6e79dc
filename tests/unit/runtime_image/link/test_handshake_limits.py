"""Limits of handshakes that strangers begin."""

from __future__ import annotations

import pytest

from runtime_image.link.handshake_limits import (
    RATE,
    SOURCE_BURST,
    SOURCE_RATE,
    UNFINISHED_MAX,
    UNFINISHED_SOURCE_MAX,
    HandshakeLimits,
    source_of,
)

ONE, OTHER = source_of("10.0.0.1"), source_of("10.0.0.2")


def burst(limits: HandshakeLimits, source: str, now: float) -> int:
    """Return how many handshakes may begin, each of which fails at once."""
    count = 0
    while limits.begin(source, now):
        limits.end(source, is_good=False)
        count += 1
    return count


@pytest.mark.parametrize(
    ("host", "same"),
    [
        ("2001:db8:0:1::7", "2001:db8:0:1:ffff::9"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::2"),
    ],
)
def test_a_source_is_a_network_of_64_bits(host: str, same: str) -> None:
    """Addresses that one owner has at will are one source; IPv4 is itself."""
    assert source_of(host) == source_of(same)
    assert source_of(host) != source_of("2001:db8:0:2::7")


def test_a_source_is_limited_and_others_are_not() -> None:
    """One source may fail SOURCE_BURST times at once, then SOURCE_RATE times a second. Others have
    what is left of the rate of all."""
    limits = HandshakeLimits(0.0)

    assert burst(limits, ONE, 0.0) == SOURCE_BURST
    assert burst(limits, OTHER, 0.0) == RATE - SOURCE_BURST
    assert burst(limits, ONE, 0.5) == 10
    assert burst(limits, ONE, 60.0) == SOURCE_BURST


def test_all_sources_together_are_limited() -> None:
    """Many sources share one limit."""
    limits = HandshakeLimits(0.0)
    sources = [source_of(f"2001:db8:0:{number:x}::1") for number in range(1, 1000)]

    assert sum(burst(limits, source, 0.0) for source in sources) == RATE
    assert not limits.begin(OTHER, 0.0)


def test_success_is_not_limited() -> None:
    """Handshakes that succeed take no tokens."""
    limits = HandshakeLimits(0.0)
    for _ in range(1000):
        assert limits.begin(ONE, 0.0)
        limits.end(ONE, is_good=True)


def test_unfinished_handshakes_are_limited() -> None:
    """One source holds half of the places at most; a place that is left is free again."""
    limits = HandshakeLimits(0.0)
    sources, seconds = [source_of(f"10.0.1.{number}") for number in range(9)], (0.0, 1.0)
    tries = [(source, now) for now in seconds for source in sources for _ in range(200)]
    begun = [source for source, now in tries if limits.begin(source, now)]

    assert [begun.count(source) for source in sources[:2]] == 2 * [UNFINISHED_SOURCE_MAX]
    assert len(begun) == UNFINISHED_MAX
    limits.end(sources[0], is_good=False)
    assert limits.begin(sources[8], 1.0)


def test_memory_is_bounded() -> None:
    """Sources are forgotten when their tokens are all there again."""
    limits = HandshakeLimits(0.0)
    for number in range(20_000):
        now = number / RATE
        source = source_of(f"2001:db8:{number >> 16:x}:{number & 0xFFFF:x}::1")
        assert limits.begin(source, now)
        limits.end(source, is_good=False)

    assert len(limits._sources) <= RATE * SOURCE_BURST / SOURCE_RATE + 1
