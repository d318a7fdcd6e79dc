"""One stream between a server and a gateway, the same at both ends: Hello, then all messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from admin.workers.messages import (
    Answer,
    Ask,
    Beat,
    Hello,
    Leave,
    Message,
    check_version,
    own_hello,
)
from admin.workers.requests import Handlers, Requests
from admin.workers.stream import Stream
from registry.tasks import Tasks

BEAT_S: Final = 1.0
SILENT_MAX: Final = 15
"""Beats of this end without any message of the other end, after which that one hangs."""
UNSAID_MAX: Final = 60
"""The same before its Hello: its process may still be starting."""


class Session:
    """One end of a stream from its Hello to its end. Event loop thread only.

    Messages that break the protocol end the stream; so does Hello of another version, and `parted`
    then says why. So does silence, and `is_silent` says so. Silence is counted in beats of this
    end, not in seconds: a process that was stopped has heard nothing meanwhile, and blames nobody.
    """

    def __init__(
        self, stream: Stream, own: str, other: str, handlers: Handlers, tasks: Tasks
    ) -> None:
        """`own` and `other` are what the two ends are called. `handlers` answer the other end's
        questions, in `tasks`."""
        self._stream = stream
        self._names = own, other
        self.requests = Requests(stream.send, handlers, tasks)
        self._has_said_hello = False
        self._silent = 0
        """Beats of this end since the other end's last message."""
        self.is_agreed = False
        """Whether the other end has said Hello in this version."""
        self.parted = ""
        self.is_silent = False

    async def open(
        self,
        on_agreed: Callable[[], None],
        receive: Callable[[Any], None],
        on_lost: Callable[[str], None],
    ) -> None:
        """Say Hello. `on_agreed` is called when the other end has, `receive` with each message
        after that but beats, questions and answers, `on_lost` once with the reason of the end."""
        self._on_agreed, self._receive, self._on_lost = on_agreed, receive, on_lost
        await self._stream.open(self._on_message, self._on_end)
        self._say_hello()

    def send(self, message: Message) -> None:
        """Send a message; call it from `on_agreed` on. It is dropped after the end."""
        self._stream.send(message)

    def beat(self) -> None:
        """Say that this end lives, and end the stream if the other end is silent. Call it every
        BEAT_S."""
        self._silent += 1
        if self._silent > (SILENT_MAX if self.is_agreed else UNSAID_MAX):
            self.is_silent = True
            self._stream.abort(f"sent no message for {self._silent * BEAT_S:.0f} s")
        elif self.is_agreed:
            self._stream.send(Beat())

    def close(self) -> None:
        """End the stream after all sent messages."""
        self._stream.close()

    def _on_message(self, message: Message) -> None:
        """Handle a message. Raises ValueError or msgspec.DecodeError if it breaks the protocol."""
        self._silent = 0
        if isinstance(message, Hello):
            self._on_hello(message)
        elif not self.is_agreed:
            raise ValueError(f"expected Hello first, got {type(message).__name__}")
        elif isinstance(message, Ask | Answer | Leave):
            self.requests.on_message(message)
        elif not isinstance(message, Beat):
            self._receive(message)

    def _on_hello(self, hello: Hello) -> None:
        if self.is_agreed:
            raise ValueError("expected one Hello, got another one")
        # What waits in the stream arrives while it is opened: `on_agreed` must not precede Hello.
        self._say_hello()
        self.parted = check_version(hello, *self._names)
        if self.parted:
            self._stream.close()
        else:
            self.is_agreed = True
            self._on_agreed()

    def _say_hello(self) -> None:
        if not self._has_said_hello:
            self._has_said_hello = True
            self._stream.send(own_hello())

    def _on_end(self, reason: str) -> None:
        self.is_agreed = False
        self.requests.lose()
        self._on_lost(reason)
