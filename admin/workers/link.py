"""A gateway's end of the protocol: its streams, one after the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import structlog

from admin.workers.messages import Began, Question, Up
from admin.workers.requests import Handlers, away
from admin.workers.session import BEAT_S, Session
from admin.workers.stream import Stream
from registry.tasks import Tasks, every

log = structlog.get_logger()
T = TypeVar("T")

FLUSH_S: Final = 2.0
"""Max seconds to write the last messages."""


Door = Callable[[], Awaitable[Stream | None]]
"""Returns a gateway's next stream, to be opened; None once the server is gone. It is the one way in
to the protocol."""


class ServerLink:
    """The server, over one stream after the other. Event loop thread only.

    A gateway whose stream breaks waits for the next one, which begins with the whole state. Until
    all of that has come it is *apart*: it sends nothing, so it has no demand. A server that is
    gone, or of another version, is gone for ever.
    """

    def __init__(self, door: Door, handlers: Handlers, receive: Callable[[Any], None]) -> None:
        """`handlers` answer the server's questions, `receive` gets all its other messages."""
        self._door = door
        self._handlers = handlers
        self._receive = receive
        self._session: Session | None = None
        self._lost = asyncio.Event()
        self._changed = asyncio.Event()
        self._is_closed = False
        self._tasks = Tasks("server link")
        self.is_whole = False
        """True unless this gateway is apart."""
        self.is_gone = False

    def open(self, on_gone: Callable[[], None]) -> None:
        """Begin to take streams. `on_gone` is called once, unless this link is closed before."""
        self._tasks.spawn("streams", self._follow(on_gone))
        self._tasks.spawn("beats", every(BEAT_S, self._beat))

    def send(self, message: Up) -> None:
        """Send a message, unless this gateway is apart."""
        if self._session is not None and self.is_whole:
            self._session.send(message)

    async def ask(self, question: Question[T]) -> T:
        """Return the server's answer. Raises what `Requests.ask` does; ServerAway at once while
        this gateway is apart, as a question must not precede Hello."""
        if self._session is None or not self.is_whole:
            raise away()
        return await self._session.requests.ask(question)

    async def whole(self) -> None:
        """Return once this gateway is not apart, or the server is gone."""
        while not (self.is_whole or self.is_gone):
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        """End the stream after the last messages are written, for at most FLUSH_S."""
        self._is_closed = True
        if self._session is not None:
            self._session.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_S):
                    await self._lost.wait()
        await self._tasks.close()

    async def _follow(self, on_gone: Callable[[], None]) -> None:
        while not self.is_gone and (stream := await self._door()) is not None:
            self._lost.clear()
            self._session = Session(stream, "gateway", "server", self._handlers, self._tasks)
            await self._session.open(lambda: None, self._on_message, self._on_lost)
            await self._lost.wait()
        self.is_gone = True
        self._changed.set()
        if not self._is_closed:
            on_gone()

    def _on_message(self, message: Any) -> None:
        if isinstance(message, Began):
            self.is_whole = True
            self._changed.set()
        self._receive(message)

    def _beat(self) -> None:
        if self._session is not None:
            self._session.beat()

    def _on_lost(self, reason: str) -> None:
        assert self._session is not None
        parted = self._session.parted
        if parted:
            log.error("this gateway parts from its server", reason=parted)
            self.is_gone = True
        elif not self._is_closed:
            log.info("the stream to the server ended", reason=reason)
        self._session, self.is_whole = None, False
        self._lost.set()
