"""Questions to the other end of a stream, and answers to its questions: the one way to ask."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Final, TypeVar

import msgspec
import structlog

from admin.workers.messages import (
    Answer,
    AnyQuestion,
    Ask,
    Exchanged,
    Leave,
    Question,
    Refusal,
    decode_answer,
    encode,
)
from registry.errors import FnError, QueueFull, ServerAway
from registry.tasks import Tasks

log = structlog.get_logger()
T = TypeVar("T")

ANSWERING_MAX: Final = 15_000
"""Max questions of the other end that are being answered; more than its own limits allow."""
RETRY_S: Final = 1.0

Handler = Callable[[Any], object | Awaitable[object]]
"""Returns the answer to a question: a plain function at once, in the order of messages, a coroutine
function in a task. Raises FnError, which the asking end raises in its turn."""
Handlers = Mapping[type[Question[Any]], Handler]
Kind = type[Question[Any]]


def _classes(kind: type[FnError]) -> Iterator[type[FnError]]:
    yield kind
    for one in kind.__subclasses__():
        yield from _classes(one)


CLASSES: Final = {kind.code: kind for kind in _classes(FnError)}
"""Class of each error code. Subclasses that share a code are raised as the last one of them."""


class Requests:
    """Questions of one end of a stream, and of the other end. Event loop thread only."""

    def __init__(self, send: Callable[[Exchanged], None], handlers: Handlers, tasks: Tasks) -> None:
        """`send` sends to the other end; `handlers` answer its questions, in `tasks`."""
        self._send = send
        self._handlers = handlers
        self._tasks = tasks
        self._numbers = itertools.count(1)
        self._asked: dict[int, tuple[Kind, asyncio.Future[Any]]] = {}
        self._open: Counter[Kind] = Counter()
        self._answering: dict[int, asyncio.Task[None]] = {}
        self._is_lost = False

    async def ask(self, question: Question[T]) -> T:
        """Return the answer of the other end.

        Raises the FnError that it answers with, ServerAway if it does not answer within
        `question.within_s` or is lost, and QueueFull if too many such questions are open.
        """
        try:
            async with asyncio.timeout(question.within_s):
                return await self.begin(question)
        except TimeoutError:
            raise away() from None

    def begin(self, question: Question[T]) -> asyncio.Future[T]:
        """Ask; return the answer to come, which is cancelled by who waits for it no more. Raises
        ServerAway and QueueFull as `ask`."""
        kind = type(question)
        if self._is_lost:
            raise away()
        if self._open[kind] >= kind.at_once:
            raise QueueFull(
                f"{kind.at_once} requests wait for the process that administers this server",
                retry_after_s=RETRY_S,
            )
        number = next(self._numbers)
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._asked[number] = kind, answer
        self._open[kind] += 1
        answer.add_done_callback(partial(self._end, number))
        assert isinstance(question, AnyQuestion)
        self._send(Ask(number, question))
        return answer

    def on_message(self, message: Exchanged) -> None:
        """Handle a message of the other end. Raises ValueError or msgspec.DecodeError if it breaks
        the protocol; an answer that nobody waits for any more does not."""
        if isinstance(message, Ask):
            self._on_ask(message)
        elif isinstance(message, Answer):
            self._on_answer(message)
        elif (task := self._answering.pop(message.number, None)) is not None:
            task.cancel()

    def lose(self) -> None:
        """Handle the end of the stream: nobody answers, and nobody waits for answers."""
        self._is_lost = True
        for _, answer in self._asked.values():
            if not answer.done():
                answer.set_exception(away())
        for task in list(self._answering.values()):
            task.cancel()
        self._answering.clear()

    def _end(self, number: int, answer: asyncio.Future[Any]) -> None:
        """Forget a question; the other end need not answer one that was given up."""
        kind, _ = self._asked.pop(number)
        self._open[kind] -= 1
        if answer.cancelled() and not self._is_lost:
            self._send(Leave(number))

    def _on_answer(self, message: Answer) -> None:
        kind, answer = self._asked.get(message.number, (None, None))
        if kind is None or answer is None or answer.done():
            return
        if message.error is None:
            answer.set_result(decode_answer(kind, message.value))
        else:
            answer.set_exception(_error_of(message.error))

    def _on_ask(self, message: Ask) -> None:
        number, question = message.number, message.question
        handler = self._handlers.get(type(question))
        if handler is None:
            raise ValueError(f"{type(question).__name__}: expected a question for this end")
        if number in self._answering or len(self._answering) >= ANSWERING_MAX:
            raise ValueError(f"question {number}: its number is in use, or too many are open")
        if iscoroutinefunction(handler):
            answering = self._answer(number, question, handler)
            task = self._tasks.spawn(f"answer {number}", answering)
            self._answering[number] = task
            task.add_done_callback(lambda ended: self._ended(number, ended))
            return
        try:
            found = handler(question)
        except Exception as error:  # noqa: BLE001 - error boundary: `_refuse` logs it
            self._refuse(number, question, error)
        else:
            self._send(Answer(number, msgspec.Raw(encode(found))))

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        if self._answering.get(number) is task:
            del self._answering[number]

    async def _answer(
        self, number: int, question: AnyQuestion, handler: Callable[[Any], Awaitable[object]]
    ) -> None:
        try:
            answer = Answer(number, msgspec.Raw(encode(await handler(question))))
        except Exception as error:  # noqa: BLE001 - error boundary: `_refuse` logs it
            self._refuse(number, question, error)
        else:
            self._send(answer)

    def _refuse(self, number: int, question: AnyQuestion, error: Exception) -> None:
        """Answer with an error: the other end must have an answer."""
        if isinstance(error, FnError):
            said = (error.message, error.retry_after_s, error.detail, error.admin_detail)
            refusal = Refusal(error.code, *said)
        else:
            log.error("a question failed", question=type(question).__name__, exc_info=error)
            refusal = Refusal(FnError.code, "see the server's log")
        self._send(Answer(number, error=refusal))


def away() -> ServerAway:
    """Return the error of a question whose other end does not answer."""
    return ServerAway(
        "the process that administers this server does not answer; calls of functions may still"
        " work",
        retry_after_s=RETRY_S,
    )


def _error_of(refusal: Refusal) -> FnError:
    return CLASSES.get(refusal.code, FnError)(
        refusal.message,
        retry_after_s=refusal.retry_after_s,
        detail=refusal.detail,
        admin_detail=refusal.admin_detail,
    )
