"""`fnctl top` on a terminal: news in, keys in, screens out, until somebody quits.

What a key asks of the server, done in threads: the screen goes on meanwhile.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from admin.cli.errors import refusal
from admin.cli.live.events import Broken, Feed
from admin.cli.live.state import Picture
from admin.cli.render import render_sleep, render_warm, render_why
from admin.cli.top.layout import HELP, Stage, screen, wrapped
from admin.cli.top.lines import Line
from admin.cli.top.terminal import Screen, Terminal
from admin.cli.top.view import Request, Sight, press
from admin.client.transport import ApiError, Unreachable
from admin.text import one_line

if TYPE_CHECKING:
    from admin.client.client import Client

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
            return render_why(self._client.why(request.name), now_s)
        if request.verb == "warm":
            return render_warm(self._client.warm(request.name, WARM_S))
        return render_sleep(self._client.put_to_sleep(request.name))


REDRAW_S: Final = 0.25
MESSAGE_S: Final = 8.0
WHY_S: Final = 2.0
"""Seconds between two looks at why a function is as it is."""


class Top:
    """The screen and what it shows. `clock` is steady seconds."""

    def __init__(
        self,
        feed: Feed,
        errands: Errands,
        paper: Screen,
        terminal: Terminal,
        *,
        url: str,
        clock: Callable[[], float],
    ) -> None:
        self._feed = feed
        self._errands = errands
        self._paper = paper
        self._terminal = terminal
        self._clock = clock
        self._picture = Picture()
        self._stage = Stage(url)
        self._sight = Sight((), 1)
        self._why = ""
        self._why_due_s = 0.0
        self._message_until_s = 0.0
        self._is_spoilt = True
        """Whether something else may stand on the screen than what was drawn last."""

    def run(self) -> Request:
        """Show it until a key ends it: that key's request, `quit` or `interrupt`.

        Raises ApiError or Unreachable where the server refuses its events, HungUp where the
        terminal is gone.
        """
        with ExitStack() as stack:
            stack.enter_context(self._terminal.taken())
            stack.callback(self._paper.close)
            while True:
                with self._terminal.raw():
                    self._paper.open()
                    ended = self._until_stopped()
                    self._paper.close()
                if ended is not None:
                    return ended
                self._terminal.stop()

    def _until_stopped(self) -> Request | None:
        """Until a key ends it, or None for Ctrl-Z."""
        due_s, self._is_spoilt = 0.0, True
        while True:
            now = self._clock()
            if now >= due_s:
                self._take_in(now)
                self._paper.show(self._laid_out(now), anew=self._is_spoilt)
                due_s, self._is_spoilt = now + REDRAW_S, False
            for key in self._terminal.wait(due_s - self._clock()):
                if ended := self._pressed(key):
                    return ended
                # Keys may come faster than they are drawn, and act on what the last one changed.
                self._laid_out(self._clock())
                due_s = 0.0
            if self._terminal.was_stopped():
                return None
            if self._terminal.was_resized():
                due_s, self._is_spoilt = 0.0, True

    def _take_in(self, now: float) -> None:
        for news in self._feed.take():
            if isinstance(news, Broken):
                self._picture.broke(news.why, now + news.pause_s)
                self._say(news.why, now)
            else:
                self._picture.apply(news.kind, news.data, now)
        for outcome in self._errands.outcomes():
            if outcome.request.verb != "why":
                self._say(outcome.text, now)
            elif outcome.request.name == self._stage.view.selected:
                self._why = f"{outcome.request.name}\n\n{outcome.text}"
        if self._message_until_s and now >= self._message_until_s:
            self._stage, self._message_until_s = replace(self._stage, message=""), 0.0
        if self._stage.view.page == "why" and now >= self._why_due_s:
            self._do(Request("why", self._stage.view.selected), now)

    def _laid_out(self, now: float) -> list[Line]:
        """The lines of the screen as it is now; what the next key acts on is what they show."""
        width, _ = size = self._paper.size
        pages = {"help": wrapped(HELP, width), "why": wrapped(self._why, width)}
        self._stage = replace(self._stage, pages=pages)
        lines, view, self._sight = screen(self._picture, self._stage, now, size)
        self._stage = replace(self._stage, view=view)
        return lines

    def _pressed(self, key: str) -> Request | None:
        """The request of a key that ends it."""
        view, request = press(self._stage.view, key, self._sight)
        self._stage = replace(self._stage, view=view)
        if request is None:
            return None
        if request.verb in ("quit", "interrupt"):
            return request
        self._do(request, self._clock())
        return None

    def _do(self, request: Request, now: float) -> None:
        if request.verb == "redraw":
            self._is_spoilt = True
            return
        if request.verb == "why":
            self._why_due_s = now + WHY_S
            if not self._why.startswith(f"{request.name}\n"):
                self._why = f"{request.name}\n\nasking why …"
            self._errands.start(request)
            return
        is_new = self._errands.start(request)
        self._say(
            f"{request.verb} {request.name} …" if is_new else "one thing after the other", now
        )

    def _say(self, text: str, now: float) -> None:
        self._stage = replace(self._stage, message=text)
        self._message_until_s = now + MESSAGE_S
