"""Tests of the bound on connections."""

from __future__ import annotations

import resource

import pytest

from gateway.http.connections import AGAIN_S, KEPT_BACK, ConnectionLimit, connections_max


class One:
    """A connection."""

    def __init__(self, *, is_idle: bool = True, quiet_s: int = 0, opened_s: float = 0.0) -> None:
        self.opened_s = opened_s
        self.is_idle = is_idle
        self.quiet_s = quiet_s
        self.is_closed = False

    def evict(self) -> None:
        self.is_closed = True


class World:
    """A population, and a clock that stands still."""

    def __init__(self, most: int, *there: One) -> None:
        self.there: set[One] = set(there)
        self.now = 0.0
        self.clients = ConnectionLimit(most, [self.there], lambda: self.now)

    def enter(self) -> bool:
        one = One(is_idle=True)
        self.there.add(one)
        admitted = self.clients.admit(one)
        assert not one.is_closed
        if not admitted:
            self.there.remove(one)
        return admitted


def test_the_quietest_idle_connection_makes_room() -> None:
    """One that works is never closed, however quiet."""
    busy, old, young = One(is_idle=False, quiet_s=90), One(quiet_s=60), One(quiet_s=5)
    world = World(3, busy, old, young)
    assert world.enter()
    assert [one.is_closed for one in (busy, old, young)] == [False, True, False]


def test_of_those_equally_quiet_the_oldest_goes() -> None:
    """A newcomer whose request is still on its way is not taken for a silent one."""
    young, old = One(opened_s=2.0), One(opened_s=1.0)
    world = World(2, young, old)
    assert world.enter()
    assert [one.is_closed for one in (young, old)] == [False, True]


def test_many_are_closed_at_once_where_there_are_many() -> None:
    """Looking at all of them is done for each thirty-second part only."""
    world = World(64, *(One(quiet_s=n) for n in range(64)))
    assert world.enter()
    assert sorted(one.quiet_s for one in world.there if one.is_closed) == [62, 63]


def test_newcomers_are_refused_where_all_work(capsys: pytest.CaptureFixture[str]) -> None:
    """At once, without looking at all again for a while; told once a minute."""
    busy = One(is_idle=False)
    world = World(1, busy)
    assert not any(world.enter() for _ in range(100))
    busy.is_idle = True
    assert not world.enter()
    world.now += AGAIN_S
    assert world.enter()
    assert busy.is_closed
    assert capsys.readouterr().out.count("connections are refused") == 1


def test_descriptors_are_kept_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside those in use already; a server always takes one connection."""
    limits = {"now": (256, 256)}
    monkeypatch.setattr(resource, "getrlimit", lambda _what: limits["now"])
    assert 1 <= connections_max(1000) < 256 - KEPT_BACK
    assert connections_max(5) == 5
    limits["now"] = (10, 10)
    assert connections_max(1000) == 1
    limits["now"] = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert connections_max(1000) == 1000
