"""Tests of one end of a stream: beats, and how silence ends it. The test's beats are the clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from admin.workers import messages as m
from admin.workers.session import SILENT_MAX, UNSAID_MAX, Session
from registry.tasks import Tasks
from tests.support.server import encoded_pair


class End:
    """A session with what it received, and the reasons of its ends. Once agreed it sends Ready or
    Began."""

    def __init__(self, own: str, other: str, stream: Any) -> None:
        self.tasks = Tasks("test")
        self.first = m.Began() if own == "server" else m.Ready(80)
        self.session = Session(stream, own, other, {}, self.tasks)
        self.received: list[Any] = []
        self.lost: list[str] = []

    async def open(self) -> None:
        """Open it."""
        agreed = lambda: self.session.send(self.first)  # noqa: E731
        await self.session.open(agreed, self.received.append, self.lost.append)


@pytest.fixture
def ends() -> tuple[End, End]:
    """Both ends of a stream, not opened yet."""
    ours, theirs = encoded_pair()
    return End("server", "gateway", ours), End("gateway", "server", theirs)


async def settle() -> None:
    """Let the end of a stream be noticed."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_beats_keep_both_ends(ends: tuple[End, End]) -> None:
    """Two ends that beat live for ever; nobody else sees a beat."""
    for one in ends:
        await one.open()
    for _ in range(3 * SILENT_MAX):
        for one in ends:
            one.session.beat()
    await settle()

    assert [one.lost for one in ends] == [[], []]
    assert [one.received for one in ends] == [[m.Ready(80)], [m.Began()]]


@pytest.mark.parametrize("which", [0, 1])
async def test_each_end_notices_that_the_other_one_hangs(ends: tuple[End, End], which: int) -> None:
    """A stream that stays open and silent, since the other process is stopped or its connection
    half open, ends after SILENT_MAX beats, whichever end is silent."""
    for one in ends:
        await one.open()
    end = ends[which]
    for _ in range(SILENT_MAX):
        end.session.beat()
    await settle()
    assert (end.lost, end.session.is_silent) == ([], False)
    end.session.beat()
    await settle()

    assert end.lost == [f"sent no message for {SILENT_MAX + 1} s"]
    assert end.session.is_silent
    assert not ends[1 - which].session.is_silent


@pytest.mark.parametrize("first", [0, 1])
async def test_hello_comes_first_whoever_opens_first(ends: tuple[End, End], first: int) -> None:
    """The other end's Hello may wait in a stream that is being opened: the answer to it follows the
    own Hello."""
    await ends[first].open()
    await ends[1 - first].open()
    await settle()

    assert [one.lost for one in ends] == [[], []]
    assert [one.received for one in ends] == [[m.Ready(80)], [m.Began()]]


async def test_any_message_ends_a_silence(ends: tuple[End, End]) -> None:
    """A busy end need not beat in time."""
    server, gateway = ends
    for one in ends:
        await one.open()
    for _ in range(2 * SILENT_MAX):
        server.session.beat()
        gateway.session.send(m.Ready(80))
    await settle()

    assert server.lost == []


async def test_an_end_without_hello_has_longer(ends: tuple[End, End]) -> None:
    """A process that is starting says nothing, and gets no beats, for UNSAID_MAX."""
    server, gateway = ends
    await server.open()
    for _ in range(UNSAID_MAX):
        server.session.beat()
    await settle()
    assert server.lost == []
    server.session.beat()
    await settle()
    await gateway.open()
    await settle()

    assert server.session.is_silent
    assert gateway.received == []


async def test_a_process_that_was_stopped_blames_nobody(ends: tuple[End, End]) -> None:
    """Time in which this end did not run counts as one beat: what the other end sent meanwhile
    waits in the socket."""
    server, gateway = ends
    for one in ends:
        await one.open()
    server.session.beat()  # and then it is stopped for minutes, and its timer fires once
    server.session.beat()
    gateway.session.beat()
    server.session.beat()
    await settle()

    assert server.lost == []
