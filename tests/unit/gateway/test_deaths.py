"""Tests of death causes: callers learn how their replica died once the cause is known."""

from __future__ import annotations

import asyncio

import pytest

from gateway.data_links import HeldCall, Outcome
from gateway.deaths import DeathCauses
from registry.errors import FnError, Poison, ReplicaDied
from registry.exchange import PoolEndpoints
from runtime_image.link.meta import RequestMeta

NEVER_S = 3600.0


class Caller:
    """Source of calls; keeps their outcomes."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []
        self.answered = asyncio.Event()

    def call(self, link: str) -> HeldCall:
        """Return a call that was sent to the replica of that name."""
        call = HeldCall("pool", RequestMeta("", "", -1, ""), b"", 0.0, 0.0, 0.0, done=self._done)
        call.link = link
        return call

    def _done(self, outcome: Outcome) -> None:
        assert isinstance(outcome, FnError)
        self.outcomes.append(f"{outcome.code}: {outcome.message}")
        self.answered.set()


@pytest.fixture
def caller() -> Caller:
    return Caller()


def make(timeout_s: float = NEVER_S) -> DeathCauses:
    return DeathCauses(asyncio.get_running_loop(), timeout_s)


def ended(*hung: str, **causes: str) -> PoolEndpoints:
    """Return endpoints with these causes of death by replica; `hung` are replaced servers."""
    return PoolEndpoints([], "waking", "", ended=causes, hung=list(hung))


async def test_the_error_of_a_replaced_server_says_so(caller: Caller) -> None:
    """A server that was replaced because it did not answer was not killed by the request; an error
    that names the request as the cause stays."""
    deaths = make()
    deaths.defer(caller.call("a"), ReplicaDied("it died"), ended())
    deaths.defer(caller.call("a"), Poison("3 died"), ended())

    deaths.on_causes(ended("a", a="is not answering: it is silent"))

    assert caller.outcomes == [
        "replica_hung: it died: it is not answering: it is silent",
        "poison: 3 died: the last one is not answering: it is silent",
    ]


async def test_an_error_has_the_cause_that_is_known(caller: Caller) -> None:
    """A cause reported before the error is added at once; for poison it is that of the last
    death."""
    deaths = make()

    deaths.defer(caller.call("a"), ReplicaDied("it died"), ended(a="was killed by SIGSEGV"))
    deaths.defer(caller.call("a"), Poison("3 died"), ended(a="was killed by SIGSEGV"))

    assert caller.outcomes == [
        "replica_died: it died: it was killed by SIGSEGV",
        "poison: 3 died: the last one was killed by SIGSEGV",
    ]


async def test_an_error_waits_for_its_cause(caller: Caller) -> None:
    """Each call is answered once, with the cause of its own replica's death; `close` answers the
    rest."""
    deaths = make()
    for link in ("a", "a", "b"):
        deaths.defer(caller.call(link), ReplicaDied(link), ended())

    deaths.on_causes(ended(c="was killed by SIGKILL"))
    assert caller.outcomes == []
    deaths.on_causes(ended(a="exited with code 3"))
    deaths.on_causes(ended(a="exited with code 3"))
    assert caller.outcomes == ["replica_died: a: it exited with code 3"] * 2

    deaths.close()
    deaths.close()
    assert caller.outcomes[2:] == ["replica_died: b"]


async def test_no_error_waits_for_ever(caller: Caller) -> None:
    """Without a cause in time, the error is answered without one."""
    deaths = make(timeout_s=0.0)
    deaths.defer(caller.call("a"), ReplicaDied("it died"), ended())

    async with asyncio.timeout(60):
        await caller.answered.wait()

    assert caller.outcomes == ["replica_died: it died"]


async def test_a_cancelled_call_gets_no_error(caller: Caller) -> None:
    """A cancelled call gets no outcome, neither from a cause nor from `close`."""
    deaths = make()
    call = caller.call("a")
    deaths.defer(call, ReplicaDied("it died"), ended())

    deaths.cancel(call)
    deaths.cancel(call)
    deaths.on_causes(ended(a="was killed by SIGKILL"))
    deaths.close()

    assert caller.outcomes == []
