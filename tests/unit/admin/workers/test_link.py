"""Tests of a gateway's end of the protocol, over memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from admin.workers import messages as m
from admin.workers.link import ServerLink
from admin.workers.stream import Stream
from registry.errors import ServerAway
from tests.support.server import encoded_pair

QUESTION = m.UnloadModel("default", "f")


async def test_nothing_is_asked_before_the_whole_state() -> None:
    """While a gateway is apart its questions fail at once: one that preceded Hello would end the
    new stream."""
    ours, theirs = encoded_pair()
    door = asyncio.Queue[Stream]()
    link = ServerLink(door.get, {}, lambda _message: None)
    link.open(lambda: None)
    heard: list[Any] = []
    with pytest.raises(ServerAway):
        await link.ask(QUESTION)
    door.put_nowait(theirs)
    await ours.open(heard.append, lambda _reason: None)
    ours.send(m.Hello(m.VERSION, "1"))
    await asyncio.sleep(0)
    with pytest.raises(ServerAway):
        await link.ask(QUESTION)
    ours.send(m.Began())
    await link.whole()
    asking = asyncio.create_task(link.ask(QUESTION))
    await asyncio.sleep(0)
    assert heard[1:] == [m.Ask(1, QUESTION)]
    ours.send(m.Answer(1))
    await asking
    await link.close()
