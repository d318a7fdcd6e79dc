"""Tests of the server as a gateway sees it: questions, and reports that are counted once."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from admin.workers import client as client_module
from admin.workers import messages as m
from admin.workers.client import UNKNOWN_REVISION, Seen, ServerClient
from admin.workers.requests import away
from gateway.metrics.samples import RateSample
from gateway.observing.errors import Failure
from registry.errors import BadRequest
from registry.exchange import Expected
from registry.usage import UsageRow
from tests.support import nouns

POOL = "default/digits@1"
USED = UsageRow("k", "default", "f", 0, calls=1)


class Link:
    """Server of a client, which keeps what is sent and asked. It comes back after `apart` looks."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.errors: list[Exception] = []
        self.is_whole, self.is_gone = True, False

    def send(self, message: m.Up) -> None:
        """Keep a message."""
        self.sent.append(message)

    async def ask(self, question: m.AnyQuestion) -> Any:
        """Keep a question; answer with the next error, or what fits all."""
        self.sent.append(question)
        if self.errors:
            raise self.errors.pop(0)
        return []

    async def whole(self) -> None:
        """Come back."""
        self.is_whole = True
        await asyncio.sleep(0)


def client(link: Link, known: dict[str, Expected] | None = None) -> ServerClient:
    """Return a client of this server."""
    return ServerClient(cast("Any", link), {} if known is None else known)


def test_demand_is_passed_as_it_is() -> None:
    """A demand report is forwarded without being decoded; a lost worker is reported by the end of
    its stream."""
    link = Link()
    server = client(link)
    server.receive_demand(b"demand")
    server.worker_lost("7")

    assert link.sent == [m.Wants(b"demand")]


def test_estimates_are_those_of_the_moment() -> None:
    """The client reads estimates live, so that later ones count."""
    known: dict[str, Expected] = {}
    server = client(Link(), known)
    assert server.expected("default/f@1") == UNKNOWN_REVISION
    known["default/f@1"] = Expected(1.0, 1.5, 2.0, 3)

    assert server.expected("default/f@1") == Expected(1.0, 1.5, 2.0, 3)


async def test_models_and_statistics_are_asked_for() -> None:
    """Loading, unloading and statistics are questions to the server."""
    link, deployed = Link(), nouns.deployed()
    server = client(link)
    await server.load(deployed, 2.5)
    await server.unload(deployed)
    assert await server.statistics([POOL]) == []

    assert link.sent == [
        m.LoadModel("default", "digits@1", 2.5),
        m.UnloadModel("default", "digits"),
        m.ReadStatistics([POOL]),
    ]


async def test_a_report_has_what_the_gateway_has_seen() -> None:
    """Tasks, rates, failures and reasons are reported unchanged."""
    link = Link()
    answered = [RateSample("default", "f", (0, 1))]
    failures = [Failure("default", "f", "f@1", "not_ready", 1.0, "", "", "id")]
    server = client(link)
    server.look = lambda: Seen(4, answered, failures, ["task x ended"])
    await server.report()

    assert link.sent == [m.Activity(1, 4, answered, failures, ["task x ended"])]


async def test_what_a_look_counts_is_in_the_same_report() -> None:
    """The gateway passes on its sums of arrivals and usage when it is looked at."""
    link = Link()
    server = client(link)

    def look() -> Seen:
        server.arrived("default", "f", 2)
        server.used(USED)
        return Seen()

    server.look = look
    await server.report()

    assert link.sent == [m.Activity(1, arrived=[m.Arrived("default", "f", 2)], used=[USED])]


async def test_what_happened_is_reported_once() -> None:
    """Requests and usage are summed up, a replica's cold start is noted once, and the next report
    has none of them."""
    link = Link()
    server = client(link)
    for name in ("f", "g", "f"):
        server.arrived("default", name)
        server.used(USED)
        server.on_cold_start("default", "f", "r1", {"load": 2.0})
    await server.report()
    await server.report()

    assert link.sent == [
        m.Activity(
            1,
            arrived=[m.Arrived("default", "f", 2), m.Arrived("default", "g", 1)],
            used=[USED._replace(calls=3)],
            woken=[m.Woken("default", "f", "r1", {"load": 2.0})],
        ),
        m.Activity(2),
    ]


async def test_a_report_without_an_answer_is_sent_again() -> None:
    """It keeps its number and content; what has happened since follows under the next one."""
    link = Link()
    server = client(link)
    link.errors = [away(), away()]
    server.arrived("default", "f")
    await server.report()
    server.arrived("default", "g")
    await server.report()
    await server.report()

    first = m.Activity(1, arrived=[m.Arrived("default", "f", 1)])
    assert link.sent == [first] * 3 + [m.Activity(2, arrived=[m.Arrived("default", "g", 1)])]


async def test_a_report_that_the_server_refuses_is_not_repeated() -> None:
    """The server has taken it and failed: it would fail again, for ever."""
    link = Link()
    server = client(link)
    link.errors = [BadRequest("no")]
    await server.report()
    await server.report()

    assert [one.number for one in link.sent] == [1, 2]


async def test_nothing_is_reported_while_apart() -> None:
    """A gateway that is apart keeps everything; the last report waits until it comes back."""
    link = Link()
    server = client(link)
    link.is_whole = False
    server.arrived("default", "f")
    await server.report()
    server.arrived("default", "g")
    assert link.sent == []
    await server.report_last()

    assert [[one.name for one in each.arrived] for each in link.sent] == [["f"], ["g"]]


async def test_the_last_report_waits_for_nobody_who_is_gone() -> None:
    """A gateway whose server is gone ends without an answer."""
    link = Link()
    link.is_whole, link.is_gone = False, True
    await client(link).report_last()

    assert link.sent == []


async def test_reports_follow_each_other() -> None:
    """A report waits for the answer to the one before."""
    link, held = Link(), asyncio.Event()

    async def ask(question: Any) -> None:
        link.sent.append(question)
        await held.wait()

    link.ask = ask  # type: ignore[method-assign]
    server = client(link)
    both = asyncio.gather(server.report(), server.report())
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(link.sent) == 1
    held.set()
    await both

    assert [one.number for one in link.sent] == [1, 2]


async def test_cold_starts_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond WOKEN_MAX replicas the oldest one is left out."""
    monkeypatch.setattr(client_module, "WOKEN_MAX", 2)
    link = Link()
    server = client(link)
    for replica in ("a", "b", "c"):
        server.on_cold_start("default", "f", replica, {})
    await server.report()

    assert [one.replica for one in link.sent[0].woken] == ["b", "c"]
