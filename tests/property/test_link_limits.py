"""Property tests of the limits of the door for replicas: any order of peers that come and go."""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque

import pytest

from hosts.tls import limits
from hosts.tls.limits import Limits, Refusal
from runtime_image.link.handshake_limits import source_of
from tests.support.doses import amount

SEQUENCES = amount(1_000, 100_000)
pytestmark = pytest.mark.timeout(amount(60, 3600))
EVENTS = 60
WINDOW_S = 1.0


def sources(chance: random.Random) -> list[str]:
    """Return addresses of a few machines, or of very many."""
    count = chance.choice([1, 2, 10, 300, 3000])
    return [f"10.{n // 65536}.{n // 256 % 256}.{n % 256}" for n in range(count)]


@pytest.mark.parametrize("seed", range(4))
def test_nothing_exceeds_its_limit(seed: int) -> None:
    """In each sequence of connections that begin, end and pause: no more are unfinished than the
    limits say, in all and by source; no more begin in a second than burst and rate; the table of
    sources is bounded; and a refused connection counts nowhere."""
    chance = random.Random(seed)
    for _ in range(SEQUENCES // 4):
        now_s = chance.uniform(0, 1e6)
        subject = Limits(now_s)
        whence = sources(chance)
        known = {source for source in whence if chance.random() < chance.choice([0, 0.1, 1])}
        unfinished: list[tuple[str, bool]] = []
        began: list[tuple[float, str]] = []
        pace_s = chance.choice([0.0, 1e-4, 0.01, 1.0])
        ends = chance.choice([0.02, 0.4, 0.6])
        for _ in range(chance.randrange(1, EVENTS) * chance.choice([1, 1, 1, 20])):
            now_s += chance.random() * pace_s
            if unfinished and chance.random() < ends:
                source, is_known = unfinished.pop(chance.randrange(len(unfinished)))
                subject.finish(source, is_known=is_known)
            else:
                source = chance.choice(whence)
                is_known = source in known
                if subject.begin(source, now_s, is_known=is_known) is None:
                    unfinished.append((source, is_known))
                    began.append((now_s, source))
            assert subject.unfinished == len(unfinished) <= limits.UNFINISHED_MAX
            assert len(subject._sources) <= limits.SOURCES_MAX
        unknown = sum(not is_known for _, is_known in unfinished)
        assert unknown <= limits.UNKNOWN_UNFINISHED_MAX
        by_source = Counter(source for source, _ in unfinished)
        assert max(by_source.values(), default=0) <= limits.SOURCE_UNFINISHED_MAX
        check_rates(began, many=len(whence) > limits.SOURCES_MAX)


def check_rates(began: list[tuple[float, str]], *, many: bool) -> None:
    """Check the rates of connections that were let begin, in each window of a second. Of `many`
    sources some are forgotten, and may begin another burst."""
    lanes: defaultdict[str, list[float]] = defaultdict(list)
    for at_s, source in began:
        lanes[""].append(at_s)
        lanes[source].append(at_s)
    for source, times in lanes.items():
        if source and many:
            continue
        burst, rate_s = (
            (limits.SOURCE_BURST, limits.SOURCE_RATE_S) if source else (limits.BURST, limits.RATE_S)
        )
        first = 0
        for last, at_s in enumerate(times):
            while times[first] < at_s - WINDOW_S:
                first += 1
            assert last - first + 1 <= burst + rate_s * WINDOW_S + 1


def test_a_source_that_is_quiet_gets_in_again() -> None:
    """Whatever a source has done, it may begin a connection after it has ended its own ones and
    was quiet for a second, if the door has room."""
    chance = random.Random(7)
    for _ in range(SEQUENCES // 10):
        subject, now_s = Limits(0.0), 0.0
        begun = 0
        for _ in range(chance.randrange(1, 200)):
            now_s += chance.random() * 0.01
            begun += subject.begin("10.0.0.1", now_s, is_known=False) is None
        for _ in range(begun):
            subject.finish("10.0.0.1", is_known=False)
        assert subject.begin("10.0.0.1", now_s + 1.0, is_known=False) is None


@pytest.mark.parametrize(
    ("host", "same"),
    [
        ("192.0.2.1", "::ffff:192.0.2.1"),
        ("2001:db8::1", "2001:db8::ffff:1"),
        ("fe80::1%eth0", "fe80::2"),
    ],
)
def test_addresses_of_one_owner_are_one_source(host: str, same: str) -> None:
    """An IPv4 address in IPv6 is the IPv4 address; a network of 64 bits is one source."""
    assert source_of(host) == source_of(same)
    assert source_of(host) != source_of("2001:db8:0:1::1")


def test_a_source_that_refuses_nothing_takes_nothing_of_others() -> None:
    """A flood of one source takes at most its own share, so that others begin at once."""
    subject = Limits(0.0)
    said = Counter(subject.begin("10.0.0.1", n / 1e4, is_known=False) for n in range(10_000))

    assert said[None] == limits.SOURCE_UNFINISHED_MAX
    assert said[Refusal.SOURCE_FULL] == 10_000 - said[None]
    assert subject.begin("10.0.0.2", 1.0, is_known=False) is None


def test_no_flood_of_unknown_sources_keeps_a_known_source_out() -> None:
    """Whatever other sources do, however many they are and however long they stay, a source that
    a replica has come from begins two connections a second."""
    chance = random.Random(7)
    for _ in range(SEQUENCES // 100):
        subject, now_s = Limits(0.0), 0.0
        whence = sources(chance)
        stays_s = chance.choice([0.0, 0.1, 5.0])
        unfinished: deque[tuple[float, str]] = deque()
        next_s = 0.0
        for _ in range(2000):
            now_s += chance.random() * chance.choice([1e-4, 1e-2])
            while unfinished and unfinished[0][0] <= now_s:
                subject.finish(unfinished.popleft()[1], is_known=False)
            source = chance.choice(whence)
            if subject.begin(source, now_s, is_known=False) is None:
                unfinished.append((now_s + stays_s, source))
            if now_s >= next_s:
                next_s = now_s + 0.5
                assert subject.begin("192.0.2.1", now_s, is_known=True) is None
                subject.finish("192.0.2.1", is_known=True)
