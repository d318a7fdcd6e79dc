"""What a key asks of the server, done in threads: the screen goes on meanwhile."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from admin.cli.failures import refusal
from admin.cli.text import one_line
from admin.cli.top.view import Request
from admin.cli.verbs import why
from admin.cli.verbs.operate import sleep, warm
from admin.transport import ApiError, Unreachable

if TYPE_CHECKING:
    from admin.client import Client

AT_ONCE_MAX: Final = 8
WARM_S: Final = 60
"""Seconds for a replica to become ready; it goes on after them, only nobody is told."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a request: a text for the reader, of one line unless it is a why."""

    request: Request
    text: str


class Errands:
    """Does requests with `client`, at most `AT_ONCE_MAX` at once and each only once at a time.

    Its threads hold nothing but a connection: they may be left behind.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._done: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._threads: dict[Request, threading.Thread] = {}

    def start(self, request: Request) -> bool:
        """Whether it is being done; not where it is already or too many others are."""
        if request in self._threads or len(self._threads) >= AT_ONCE_MAX:
            return False
        name = f"{request.verb} {request.name}"
        thread = threading.Thread(target=self._do, args=(request,), name=name, daemon=True)
        self._threads[request] = thread
        thread.start()
        return True

    def outcomes(self) -> Iterator[Outcome]:
        """What is done since this was asked last."""
        while not self._done.empty():
            outcome = self._done.get()
            self._threads.pop(outcome.request).join()
            yield outcome

    def join(self, timeout_s: float) -> None:
        """Wait until all is done, each for so long."""
        for thread in list(self._threads.values()):
            thread.join(timeout_s)

    def _do(self, request: Request) -> None:
        try:
            text = self._answer(request)
        except ApiError as error:
            text = f"{request.verb} {request.name}: {refusal(error)}"
        except Unreachable as error:
            text = f"{request.verb} {request.name}: {error}"
        self._done.put(Outcome(request, text if request.verb == "why" else one_line(text)))

    def _answer(self, request: Request) -> str:
        if request.verb == "why":
            now_s = datetime.now(UTC).timestamp()
            return why.render(self._client.why(request.name), now_s)
        if request.verb == "warm":
            return warm.render(self._client.warm(request.name, WARM_S))
        return sleep.render(self._client.put_to_sleep(request.name))
