"""Tests of questions and answers over a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from admin.workers import messages as m
from admin.workers import requests
from admin.workers.requests import Handlers, Requests
from gateway.http.connected import Connected, Connections
from registry.errors import (
    FnError,
    FunctionFailing,
    NoRoom,
    QueueFull,
    ServerAway,
    UnknownFunction,
)
from registry.tasks import Tasks
from tests.support.operator import until

OPEN = Connections([Connected("k", "events", 2.0, "/a", True)], 1, 0)
LOAD = m.LoadModel("default", "digits", 30.0)


@dataclass
class Rig:
    """Two ends whose messages are encoded on their way. `loads` are those that the server has
    begun; a silent server gets nothing."""

    tasks: Tasks = field(default_factory=lambda: Tasks("test"))
    loads: list[asyncio.Future[None]] = field(default_factory=list)
    is_silent: bool = False
    to_server: list[m.Exchanged] = field(default_factory=list)

    def __post_init__(self) -> None:
        handlers: Handlers = {m.LoadModel: self.load, m.ListConnections: lambda _question: OPEN}
        self.gateway = Requests(self.up, {}, self.tasks)
        self.server = Requests(self.down, handlers, self.tasks)

    def up(self, message: m.Exchanged) -> None:
        """Pass a message of the gateway on."""
        self.to_server.append(message)
        if not self.is_silent:
            decoded = m.decode_up(m.encode(message))
            assert isinstance(decoded, m.Ask | m.Answer | m.Leave)
            self.server.on_message(decoded)

    def down(self, message: m.Exchanged) -> None:
        """Pass a message of the server on."""
        decoded = m.decode_down(m.encode(message))
        assert isinstance(decoded, m.Ask | m.Answer | m.Leave)
        self.gateway.on_message(decoded)

    async def load(self, _question: m.LoadModel) -> None:
        """Answer when the test says so."""
        self.loads.append(asyncio.get_running_loop().create_future())
        await self.loads[-1]

    async def loading(self, count: int = 1) -> list[asyncio.Task[None]]:
        """Begin loads; return their tasks when the server has them."""
        asked = [asyncio.create_task(self.gateway.ask(LOAD)) for _ in range(count)]
        await until(lambda: len(self.loads) == count)
        return asked


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """Two ends."""
    rig = Rig()
    yield rig
    await rig.tasks.close()


async def test_a_plain_handler_answers_at_once(rig: Rig) -> None:
    """The answer of a plain function is there before any task runs, and of its type."""
    answer = rig.gateway.begin(m.ListConnections("default", "web"))

    assert answer.result() == OPEN
    answer.cancel()
    await asyncio.sleep(0)
    assert [type(one) for one in rig.to_server] == [m.Ask]


async def test_each_question_has_its_answer(rig: Rig) -> None:
    """Answers may come in another order than the questions."""
    first, second = await rig.loading(2)
    rig.loads[1].set_result(None)
    await second
    assert not first.done()
    rig.loads[0].set_result(None)

    await first


@pytest.mark.parametrize(
    "error",
    [
        FunctionFailing("it fails", retry_after_s=3.0, admin_detail={"log_tail": ["x"]}),
        NoRoom("no room", retry_after_s=5.0),
        QueueFull("too many"),
        UnknownFunction("no function", detail={"nearest": ["digit"]}),
    ],
)
async def test_an_error_arrives_as_it_was(rig: Rig, error: FnError) -> None:
    """Class, text, retry and details are those that the other end raised."""
    (asking,) = await rig.loading()
    rig.loads[0].set_exception(error)

    with pytest.raises(type(error)) as caught:
        await asking
    found = caught.value
    assert (found.message, found.retry_after_s) == (error.message, error.retry_after_s)
    assert (found.detail, found.admin_detail) == (error.detail, error.admin_detail)


async def test_a_defect_says_nothing(rig: Rig) -> None:
    """Whatever else is raised becomes the problem that hides internals."""
    (asking,) = await rig.loading()
    rig.loads[0].set_exception(KeyError("secret"))

    with pytest.raises(FnError, match="see the server's log"):
        await asking


async def test_a_plain_handler_that_raises_answers_too(rig: Rig) -> None:
    """The error of a plain function is an answer, and the stream goes on."""

    def fails(_question: m.ListConnections) -> Connections:
        raise NoRoom("no room")

    rig.server = Requests(rig.down, {m.ListConnections: fails}, rig.tasks)
    with pytest.raises(NoRoom):
        await rig.gateway.ask(m.ListConnections("default", "web"))


async def test_who_leaves_ends_the_work_for_him_alone(rig: Rig) -> None:
    """The other end stops working for a question whose asker has left."""
    first, second = await rig.loading(2)
    first.cancel()
    await until(rig.loads[0].cancelled)
    assert not rig.loads[1].done()
    rig.loads[1].set_result(None)

    await second


async def test_a_question_that_is_left_at_once_is_never_begun(rig: Rig) -> None:
    """Leaving may overtake the beginning of the work."""
    rig.server.on_message(m.Ask(1, LOAD))
    rig.server.on_message(m.Leave(1))
    for _ in range(3):
        await asyncio.sleep(0)

    assert rig.loads == []
    assert len(rig.tasks) == 0


async def test_the_end_of_the_stream_ends_both(rig: Rig) -> None:
    """Questions fail, later ones at once, and the other end stops working for them."""
    (asking,) = await rig.loading()
    rig.server.lose()
    await until(rig.loads[0].cancelled)
    rig.gateway.lose()

    with pytest.raises(ServerAway):
        await asking
    with pytest.raises(ServerAway):
        await rig.gateway.ask(LOAD)


async def test_questions_are_bounded_by_kind(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more of a kind than its limit is refused at once; other kinds have their own, and one
    that is left makes room."""
    monkeypatch.setattr(m.LoadModel, "at_once", 2)
    first, second = await rig.loading(2)
    with pytest.raises(QueueFull):
        await rig.gateway.ask(LOAD)
    assert await rig.gateway.ask(m.ListConnections("default", "web")) == OPEN
    first.cancel()
    await asyncio.wait([first])
    third = asyncio.create_task(rig.gateway.ask(LOAD))
    await until(lambda: len(rig.loads) == 3)
    for one in rig.loads[1:]:
        one.set_result(None)

    await second
    await third


async def test_a_silent_end_is_not_waited_for(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question ends at its limit without an answer; one that comes later is dropped."""
    monkeypatch.setattr(m.LoadModel, "answer_s", 0.0)
    rig.is_silent = True
    with pytest.raises(ServerAway):
        await rig.gateway.ask(m.LoadModel("default", "digits", 0.0))

    rig.gateway.on_message(m.Answer(1))
    assert [type(one) for one in rig.to_server] == [m.Ask, m.Leave]


async def test_an_answer_counts_once(rig: Rig) -> None:
    """A repeated answer is dropped, and so is one to nothing."""
    rig.is_silent = True
    answer = rig.gateway.begin(LOAD)
    for one in (1, 1, 2):
        rig.gateway.on_message(m.Answer(one))

    assert answer.result() is None


async def test_an_answer_of_another_type_breaks_the_protocol(rig: Rig) -> None:
    """An answer that is not of the question's type raises, and the question stays open."""
    rig.is_silent = True
    answer = rig.gateway.begin(LOAD)
    with pytest.raises(msgspec.DecodeError):
        rig.gateway.on_message(m.Answer(1, msgspec.Raw(m.encode([1]))))

    assert not answer.done()


@pytest.mark.parametrize(
    ("asks", "most", "reason"),
    [
        ([m.Ask(1, m.Applied())], 9, "Applied: expected a question for this end"),
        ([m.Ask(1, LOAD), m.Ask(1, LOAD)], 9, "its number is in use"),
        ([m.Ask(1, LOAD), m.Ask(2, LOAD)], 1, "too many are open"),
    ],
)
async def test_questions_that_break_the_protocol(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, asks: list[m.Ask], most: int, reason: str
) -> None:
    """A question that this end cannot have, a number twice, and one too many raise."""
    monkeypatch.setattr(requests, "ANSWERING_MAX", most)
    for one in asks[:-1]:
        rig.server.on_message(one)
    with pytest.raises(ValueError, match=reason):
        rig.server.on_message(asks[-1])


def test_every_error_has_a_code_of_its_own() -> None:
    """The class of an error is found by its code."""
    found: dict[str, Any] = requests.CLASSES
    assert found["no_room"] is NoRoom
    assert found["internal"] is FnError
