"""What a sidecar is told about connections between two exchanges."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gateway.dispatch.keeping import LATE_S, SPAN_S, KeptConnections
from runtime_image.contract.link import Flag, Kind
from runtime_image.contract.server import MAX_GRACE_S

INF = float("inf")


@dataclass(eq=False)
class Connection:
    """A connection that was opened for exchange `id`."""

    id: int
    known_id: int = 0
    opened_s: float = 0.0
    idle_since_s: float = 0.0
    is_told: bool = False
    has_failed: bool = False


class World:
    """Connections and the frames about them."""

    def __init__(self) -> None:
        self.frames: list[tuple[Kind, int, int, int]] = []
        self.kept: KeptConnections[Connection] = KeptConnections(
            lambda *frame: self.frames.append(frame)
        )

    def open(self, id: int, now: float = 0.0) -> Connection:
        """Open a connection for an exchange."""
        self.kept.request(id, is_free=False)
        connection = Connection(id)
        self.kept.opened(connection, now)
        return connection

    def told(self) -> list[tuple[Kind, int, int, int]]:
        """Return the frames since the last call."""
        frames, self.frames = self.frames, []
        return frames


@pytest.fixture
def world() -> World:
    return World()


def kept(id: int, ago_ms: int = 0) -> tuple[Kind, int, int, int]:
    """The end of an exchange whose connection stays."""
    return (Kind.END, id, Flag.KEPT, ago_ms)


def reused(id: int, old: int) -> tuple[Kind, int, int, int]:
    """The use of an idle connection."""
    return (Kind.OPEN, id, Flag.REUSE, old)


def test_requests_and_ends_without_keeping_are_told_at_once(world: World) -> None:
    """OPEN, with FREE for an exchange without a slot; END for a connection that is closed."""
    one = world.open(1)
    world.kept.request(2, is_free=True)
    world.kept.drop(one)
    assert world.told() == [(Kind.OPEN, 1, 0, 0), (Kind.OPEN, 2, Flag.FREE, 0), (Kind.END, 1, 0, 0)]


def test_the_end_of_a_failed_exchange_says_so(world: World) -> None:
    """What its server has sent is no progress."""
    one = world.open(1)
    one.has_failed = True
    world.kept.drop(one)
    assert world.told()[-1] == (Kind.END, 1, Flag.FAILED, 0)


def test_an_end_is_told_late_with_its_age(world: World) -> None:
    """The oldest first, each once; the return value says when the next one is due."""
    for id, end_s in ((1, 1.0), (2, 1.002)):
        world.kept.keep(world.open(id), end_s)
    world.told()
    assert world.kept.tell_due(1.001) == pytest.approx(1.0 + LATE_S)
    assert world.told() == []
    assert world.kept.tell_due(1.0 + LATE_S) == pytest.approx(1.002 + LATE_S)
    assert world.told() == [kept(1, round(LATE_S * 1e3))]
    assert world.kept.tell_due(2.0) == INF
    assert world.told() == [kept(2, 998)]
    assert world.kept.tell_due(3.0) == INF
    assert world.told() == []


def test_an_exchange_at_once_after_another_is_not_told(world: World) -> None:
    """The connection keeps its known id, under which its end is told at last."""
    one = world.open(1)
    for id in (2, 3):
        world.kept.keep(one, 1.0)
        assert world.kept.newest() is one
        world.kept.reuse(one, id, 1.001)
    assert (one.id, one.known_id, len(world.kept)) == (3, 1, 0)
    world.kept.keep(one, 1.5)
    world.kept.tell_due(1.5 + LATE_S)
    assert world.told()[1:] == [kept(1, round(LATE_S * 1e3))]
    world.kept.reuse(one, 4, 1.6)
    assert world.told() == [reused(4, 1)]
    world.kept.keep(one, 1.7)
    world.kept.reuse(one, 5, 1.7)
    world.kept.drop(one)
    assert world.told() == [(Kind.END, 4, 0, 0)]


def test_an_open_is_renewed_before_its_exchanges_take_too_long(world: World) -> None:
    """The sidecar ends what it takes for one exchange; a renewal restarts its clock."""
    assert SPAN_S < MAX_GRACE_S - 1
    one = world.open(1)
    world.kept.keep(one, SPAN_S)
    world.told()
    world.kept.reuse(one, 2, SPAN_S)
    assert world.told() == [kept(1), reused(2, 1)]
    assert (one.known_id, one.opened_s) == (2, SPAN_S)


def test_while_links_wait_nothing_is_late(world: World) -> None:
    """`hasten` tells what was not told, and later ends at once; `relax` revokes it."""
    one, two = world.open(1), world.open(2)
    world.kept.keep(one, 1.0)
    world.told()
    world.kept.hasten(1.001)
    assert world.told() == [kept(1, 1)]
    world.kept.keep(two, 1.002)
    assert world.told() == [kept(2)]
    assert list(world.kept) == [one, two]
    world.kept.reuse(two, 3, 1.003)
    assert world.told() == [reused(3, 2)]
    world.kept.relax()
    world.kept.keep(two, 1.004)
    assert world.told() == []


def test_idle_connections_are_taken_by_their_known_id(world: World) -> None:
    """A recall finds what is idle, and nothing else."""
    one = world.open(1)
    world.kept.keep(one, 1.0)
    world.kept.reuse(one, 2, 1.0)
    assert world.kept.take(1) is None
    world.kept.keep(one, 1.0)
    world.told()
    assert world.kept.take(2) is None
    assert world.kept.oldest() is one
    assert world.kept.take(1) is one
    assert world.told() == [(Kind.END, 1, 0, 0)]
    assert (world.kept.newest(), world.kept.oldest()) == (None, None)


def test_ids_that_come_again_are_vacated(world: World) -> None:
    """Before an id is told for another exchange, who is known by it gets its own one."""
    one, two = world.open(1), world.open(2)
    for connection, id in ((one, 2 + 10), (two, 1)):
        world.kept.keep(connection, 0.0)
        world.kept.reuse(connection, id, 0.0)
    world.told()
    world.kept.request(2, is_free=False)
    # The second connection is known by 2 and carries 1, by which the first one is known.
    assert world.told() == [kept(2), kept(1), reused(12, 1), reused(1, 2), (Kind.OPEN, 2, 0, 0)]


def test_a_lost_link_is_told_nothing(world: World) -> None:
    """`clear` returns what is idle and forgets what is in use."""
    one, two = world.open(1), world.open(2)
    for connection in (one, two):
        world.kept.keep(connection, 0.0)
    world.kept.reuse(two, 3, 0.0)
    world.told()
    assert world.kept.clear() == [one]
    assert (len(world.kept), world.told()) == (0, [])
