"""Tests of the state that gateways get, and of the server's sessions with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from admin.workers import messages as m
from admin.workers.hub import TOGETHER, Hub, StateFeed, pieces
from admin.workers.messages import FunctionNow
from admin.workers.replica import CatalogReplica
from admin.workers.requests import Handlers
from admin.workers.session import Session
from gateway.http.connected import Connected, Connections
from gateway.settings import GatewaySettings
from registry.catalog import Catalog, Deployed
from registry.errors import ServerAway
from registry.exchange import Expected
from registry.model.history import ColdStart
from registry.model.keys import Key
from registry.model.revisions import Interface
from registry.openness import Openness
from registry.store.keys import KeyRing
from registry.tasks import Tasks
from registry.upstream_keys import UpstreamKey, UpstreamKeys
from tests.support import nouns
from tests.support.interfaces import python_revision
from tests.support.server import encoded_pair

KEY = Key("k", "ab" * 32, ("invoke",))
UPSTREAM_KEY = UpstreamKey("k", "s3cret")
OTHER = Key("o", "cd" * 32, ("read",))
GUESS = Expected(0.1, 0.2, 0.3, 0)
ONE = Connections([Connected("k", "events", 2.0, "/a", True)], 1, 0)
TWO = Connections([Connected("k", "websocket", 1.0, "/b", True)], 1, 3)
BOTH = Connections([*TWO.items, *ONE.items], 2, 3)


class Told:
    """Gateway that keeps the messages it receives, and answers what `answers` has."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.messages: list[m.Down] = []
        self.answers: Handlers = {m.Applied: lambda _question: None}
        self.comes_back = False

    async def come(self, hub: Hub) -> None:
        """Begin a session."""
        ours, theirs = encoded_pair()
        self._tasks, self._hub, self.theirs = Tasks("test"), hub, theirs
        self.session = Session(theirs, "gateway", "server", self.answers, self._tasks)
        server = hub.session(ours, {})
        welcome = m.Welcome(self.name, GatewaySettings(), "json", "", False, True)
        await server.open(
            lambda: hub.add(self.name, server, welcome), lambda _message: None, self._lost
        )
        await self.session.open(lambda: None, self.messages.append, lambda _reason: None)

    def _lost(self, _reason: str) -> None:
        self._hub.remove(self.name, comes_back=self.comes_back)

    async def leave(self, *, comes_back: bool) -> None:
        """End the session."""
        self.comes_back = comes_back
        self.theirs.close()
        for _ in range(3):
            await asyncio.sleep(0)

    async def end(self) -> None:
        """Answer nothing more."""
        await self._tasks.close()

    def mirror(self) -> CatalogReplica:
        """Return a catalog replica built from the messages so far."""
        mirror = CatalogReplica()
        for message in self.messages:
            if isinstance(message, m.State):
                mirror.apply(message)
        return mirror


class Rig:
    """Hub between a server's state and two gateways."""

    def __init__(self) -> None:
        self.catalog = Catalog([nouns.deployed("digits")])
        self.ring = KeyRing([KEY])
        self.estimates = {"default/digits@1": Expected(1.0, 1.5, 2.0, 3)}
        self.upstream_keys = UpstreamKeys()
        self.upstream_keys.put(UPSTREAM_KEY)
        self.feed = StateFeed(
            self.catalog,
            self.ring,
            self.upstream_keys,
            lambda pool: self.estimates.get(pool, GUESS),
        )
        self.hub = Hub(self.feed.whole)
        self.end = self.feed.follow(self.hub.send_all)
        self.a, self.b = Told("a"), Told("b")


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """A rig with one function and one key."""
    rig = Rig()
    yield rig
    rig.end()
    await rig.hub.close()


async def test_a_new_gateway_receives_the_whole_state_then_began(rig: Rig) -> None:
    """A new gateway receives its configuration, keys, functions and estimates, then Began."""
    await rig.a.come(rig.hub)

    mirror = rig.a.mirror()
    assert mirror.catalog.all() == rig.catalog.all()
    assert (mirror.ring.all(), mirror.ring.openness) == ((KEY,), Openness.CLOSED)
    assert mirror.upstream_keys.all() == (UPSTREAM_KEY,)
    assert mirror.expected == rig.estimates
    kinds = [type(one) for one in rig.a.messages]
    assert kinds[:3] == [m.Welcome, m.Keys, m.UpstreamKeysNow]
    assert kinds[-1] is m.Began


async def test_a_gateway_that_joins_late_knows_the_same(rig: Rig) -> None:
    """The whole state and later changes give the same state, whenever a gateway joins."""
    await rig.a.come(rig.hub)
    rig.catalog.put(nouns.deployed("digits", 2))
    rig.catalog.put(nouns.deployed("other"))
    rig.ring.put(OTHER)
    await rig.b.come(rig.hub)
    rig.ring.remove(KEY)
    rig.ring.decide(Openness.OPEN)
    rig.upstream_keys.put(UpstreamKey("k", "new"))
    rig.upstream_keys.put(UpstreamKey("gone", "x"))
    rig.upstream_keys.remove("gone")
    rig.catalog.remove("other")

    for told in (rig.a, rig.b):
        mirror = told.mirror()
        assert mirror.catalog.revisions("digits") == rig.catalog.revisions("digits")
        assert mirror.catalog.find("other") is None
        assert (mirror.ring.all(), mirror.ring.openness) == ((OTHER,), Openness.OPEN)
        assert mirror.upstream_keys.all() == (UpstreamKey("k", "new"),)


async def test_a_gateway_that_comes_back_forgets_what_is_gone(rig: Rig) -> None:
    """What was removed while a gateway was apart goes from its copy, keys before all else."""
    await rig.a.come(rig.hub)
    await rig.a.leave(comes_back=True)
    rig.catalog.remove("digits")
    rig.ring.remove(KEY)
    rig.upstream_keys.remove("k")
    await rig.a.come(rig.hub)

    mirror = rig.a.mirror()
    assert (mirror.catalog.all(), mirror.ring.all(), mirror.upstream_keys.all()) == ((), (), ())


async def test_a_key_is_told_before_functions_and_is_in_no_text(rig: Rig) -> None:
    """A gateway never has a revision without its key. What a log may have of a message is not the
    value."""
    await rig.a.come(rig.hub)

    kinds = [type(message) for message in rig.a.messages]
    assert kinds.index(m.UpstreamKeysNow) < kinds.index(m.Functions)
    assert "s3cret" not in f"{rig.a.messages!r} {rig.a.messages}"


async def test_a_start_with_many_functions_comes_in_pieces(rig: Rig) -> None:
    """The state is split, so that no message grows with what functions are; the first has their
    names."""
    for number in range(2 * TOGETHER):
        rig.catalog.put(nouns.deployed(f"f{number}"))
    await rig.a.come(rig.hub)

    found = [one for one in rig.a.messages if isinstance(one, m.Functions)]
    assert [len(one.functions) for one in found] == [0, TOGETHER, TOGETHER, 1]
    assert len(found[0].existing or ()) == 2 * TOGETHER + 1
    assert rig.a.mirror().catalog.all() == rig.catalog.all()


async def test_a_revision_is_told_before_its_pool(rig: Rig) -> None:
    """A new revision and its estimate are sent before endpoints of its pool."""
    await rig.a.come(rig.hub)
    rig.catalog.subscribe(lambda _change: rig.hub.send_endpoints(b"endpoints"))
    rig.catalog.put(nouns.deployed("new"))

    kinds = [type(message) for message in rig.a.messages]
    after = kinds[kinds.index(m.Began) + 1 :]
    assert after == [m.Functions, m.Estimates, m.Pools]


def test_estimates_are_told_as_they_change() -> None:
    """After a cold start only the estimate of its pool is sent."""
    rig = Rig()
    faster = rig.estimates["default/digits@1"] = Expected(0.1, 0.5, 0.9, 4)
    record = ColdStart("default", "digits", 1, "r", "cpu", 0.0, 500.0, {})

    assert rig.feed.after(record) == m.Estimates({"default/digits@1": faster})


async def test_a_change_is_settled_when_every_gateway_has_it(rig: Rig) -> None:
    """`settled` returns once every living gateway has applied the change."""
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def slow(_question: m.Applied) -> None:
        await answer

    rig.b.answers = {m.Applied: slow}
    for told in (rig.a, rig.b):
        await told.come(rig.hub)
    settling = asyncio.create_task(rig.hub.settled())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not settling.done()
    await rig.b.leave(comes_back=False)

    await settling
    answer.cancel()


async def test_a_change_waits_for_a_gateway_that_is_apart(rig: Rig) -> None:
    """A gateway whose stream broke has the change once it has come back: until then it may still
    accept a key that was removed."""
    await rig.a.come(rig.hub)
    await rig.a.leave(comes_back=True)
    rig.ring.remove(KEY)
    settling = asyncio.create_task(rig.hub.settled())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not settling.done()
    await rig.a.come(rig.hub)

    await settling
    assert rig.a.mirror().ring.all() == ()


async def test_a_change_does_not_wait_for_ever(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """`settled` gives up on a gateway that does not answer in time, or stays apart."""
    monkeypatch.setattr(m.Applied, "answer_s", 0.01)
    rig.a.answers = {m.Applied: never}
    await rig.a.come(rig.hub)
    rig.hub.remove("b", comes_back=True)

    await rig.hub.settled()


async def never(_question: Any) -> None:
    """Answer nothing."""
    await asyncio.Event().wait()


async def test_without_gateways_all_is_settled(rig: Rig) -> None:
    """Without gateways `settled` returns at once, and messages go nowhere."""
    await rig.a.come(rig.hub)
    await rig.a.leave(comes_back=False)
    await rig.hub.settled()
    rig.hub.send_endpoints(b"x")

    assert isinstance(rig.a.messages[-1], m.Began)


async def test_the_answers_of_all_are_joined(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open exchanges are those of all gateways that answer; one that fails, does not answer, or
    has too many questions open, is left out."""
    monkeypatch.setattr(m.ListConnections, "answer_s", 0.05)
    monkeypatch.setattr(m.ListConnections, "at_once", 1)
    rig.a.answers = {m.ListConnections: lambda _question: ONE}
    rig.b.answers = {m.ListConnections: lambda _question: TWO}
    others = [Told("c"), Told("d")]
    others[0].answers = {m.ListConnections: never}
    others[1].answers = {m.ListConnections: lambda _question: 1 // 0}
    for told in (rig.a, rig.b, *others):
        await told.come(rig.hub)
    first = asyncio.create_task(rig.hub.connections("default", "web"))
    await asyncio.sleep(0)
    assert (await rig.hub.connections("default", "web")).counting in (0, 2)

    assert await first == BOTH


async def test_a_gateway_that_ends_is_not_waited_for(rig: Rig) -> None:
    """The others' answers are enough; without any there is none."""
    assert await rig.hub.connections("default", "web") == Connections([], 0, 0)
    rig.a.answers = {m.ListConnections: lambda _question: ONE}
    rig.b.answers = {m.ListConnections: never}
    for told in (rig.a, rig.b):
        await told.come(rig.hub)
    asking = asyncio.create_task(rig.hub.connections("default", "web"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not asking.done()
    await rig.b.leave(comes_back=False)

    assert await asking == ONE
    await rig.b.end()


async def test_questions_of_gateways_are_answered(rig: Rig) -> None:
    """Handlers that are set later answer; the end of the session ends what is asked."""
    unloaded: list[str] = []

    async def unload(asked: m.UnloadModel) -> None:
        unloaded.append(asked.name)

    rig.hub.answer({m.UnloadModel: unload, m.LoadModel: never})
    await rig.a.come(rig.hub)
    await rig.a.session.requests.ask(m.UnloadModel("default", "digits"))
    assert unloaded == ["digits"]
    loading = asyncio.create_task(rig.a.session.requests.ask(m.LoadModel("default", "digits", 9.0)))
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(rig.hub._tasks) == 1
    await rig.a.leave(comes_back=False)
    assert len(rig.hub._tasks) == 0

    with pytest.raises(ServerAway):
        await loading


def test_long_schemas_make_shorter_messages() -> None:
    """A message has a limit, which functions with long schemas would exceed together."""
    short, long = (python_revision(Interface(schema="x" * size)) for size in (10, 60))
    owner = nouns.function("web")
    functions = [
        FunctionNow("default", "web", [Deployed(owner, one)])
        for one in (short, long, long, short, short)
    ]

    sizes = [len(piece) for piece in pieces(functions, together=2, schemas_max=70)]

    assert sizes == [2, 2, 1]
    assert [len(piece) for piece in pieces(functions[1:3], schemas_max=50)] == [1, 1]
    assert [*pieces([])] == []
