"""Main loop of `fnctl top`: events and keys in, screens out; keys' requests run in threads."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from admin.cli.errors import refusal_text
from admin.cli.live.events import EventThread
from admin.cli.live.state import LiveState
from admin.cli.render import render_sleep, render_warm, render_why
from admin.cli.top.layout import HELP, ScreenState, screen_lines, wrapped
from admin.cli.top.lines import Line
from admin.cli.top.terminal import Screen, Terminal
from admin.cli.top.view import Request, Visible, press
from admin.client import routes
from admin.client.client import Client
from admin.client.sse import Disconnected
from admin.client.transport import ApiError, Unreachable
from admin.documents.requests import SleepRequest
from admin.text import one_line

AT_ONCE_MAX: Final = 8
WARM_S: Final = 60
"""Seconds to wait for a replica to become ready; its start continues afterwards."""
REDRAW_S: Final = 0.25
MESSAGE_S: Final = 8.0
WHY_S: Final = 2.0
"""Seconds between two requests of the why page."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a request as text, on one line unless the request is a why."""

    request: Request
    text: str


class BackgroundRequests:
    """Runs requests in threads: at most `AT_ONCE_MAX` at a time, without duplicates.

    The threads hold only a connection: the process may exit while they run.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._done: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._threads: dict[Request, threading.Thread] = {}

    def start(self, request: Request) -> bool:
        """Start `request`; return False if it is running already or too many others are."""
        if request in self._threads or len(self._threads) >= AT_ONCE_MAX:
            return False
        name = f"{request.verb} {request.name}"
        thread = threading.Thread(target=self._perform, args=(request,), name=name, daemon=True)
        self._threads[request] = thread
        thread.start()
        return True

    def outcomes(self) -> Iterator[Outcome]:
        """Yield the results since the last call."""
        while not self._done.empty():
            outcome = self._done.get()
            self._threads.pop(outcome.request).join()
            yield outcome

    def join(self, timeout_s: float) -> None:
        """Wait for every request, up to `timeout_s` for each."""
        for thread in list(self._threads.values()):
            thread.join(timeout_s)

    def _perform(self, request: Request) -> None:
        try:
            text = self._answer(request)
        except ApiError as error:
            text = f"{request.verb} {request.name}: {refusal_text(error)}"
        except Unreachable as error:
            text = f"{request.verb} {request.name}: {error}"
        self._done.put(Outcome(request, text if request.verb == "why" else one_line(text)))

    def _answer(self, request: Request) -> str:
        if request.verb == "why":
            why = self._client.call(routes.WHY, request.name).value
            return render_why(why, (), datetime.now(UTC).timestamp())
        if request.verb == "warm":
            return render_warm(self._client.call(routes.WARM, request.name, wait_s=WARM_S).value)
        found = self._client.submit(routes.SLEEP, request.name, body=SleepRequest())
        return render_sleep(found.value)


class Top:
    """Running screen. `clock` returns monotonic seconds."""

    def __init__(
        self,
        event_thread: EventThread,
        requests: BackgroundRequests,
        screen: Screen,
        terminal: Terminal,
        *,
        url: str,
        clock: Callable[[], float],
    ) -> None:
        self._event_thread = event_thread
        self._requests = requests
        self._screen = screen
        self._terminal = terminal
        self._clock = clock
        self._live = LiveState()
        self._state = ScreenState(url)
        self._visible = Visible((), 1)
        self._why = ""
        self._why_due_s = 0.0
        self._message_until_s = 0.0
        self._needs_redraw = True
        """True if the terminal may show something other than the lines drawn last."""

    def run(self) -> Request:
        """Run until a key ends it; return that key's request, `quit` or `interrupt`.

        Raises ApiError or Unreachable if the server refuses its events, HungUp if the terminal is
        closed.
        """
        with ExitStack() as stack:
            stack.enter_context(self._terminal.taken())
            stack.callback(self._screen.close)
            while True:
                with self._terminal.raw():
                    self._screen.open()
                    ended = self._until_stopped()
                    self._screen.close()
                if ended is not None:
                    return ended
                self._terminal.stop()

    def _until_stopped(self) -> Request | None:
        """Run until a key ends it and return its request; None after Ctrl-Z."""
        due_s, self._needs_redraw = 0.0, True
        while True:
            now = self._clock()
            if now >= due_s:
                self._update(now)
                self._screen.show(self._layout(now), anew=self._needs_redraw)
                due_s, self._needs_redraw = now + REDRAW_S, False
            for key in self._terminal.wait(due_s - self._clock()):
                if ended := self._on_key(key):
                    return ended
                # The next key acts on the layout after this key, even if it is not drawn yet.
                self._layout(self._clock())
                due_s = 0.0
            if self._terminal.was_stopped():
                return None
            if self._terminal.was_resized():
                due_s, self._needs_redraw = 0.0, True

    def _update(self, now: float) -> None:
        for item in self._event_thread.take():
            self._live.apply(item, now)
            if isinstance(item, Disconnected):
                self._show_message(item.why, now)
        for outcome in self._requests.outcomes():
            if outcome.request.verb != "why":
                self._show_message(outcome.text, now)
            elif outcome.request.name == self._state.view.selected:
                self._why = f"{outcome.request.name}\n\n{outcome.text}"
        if self._message_until_s and now >= self._message_until_s:
            self._state, self._message_until_s = replace(self._state, message=""), 0.0
        if self._state.view.page == "why" and now >= self._why_due_s:
            self._perform(Request("why", self._state.view.selected), now)

    def _layout(self, now: float) -> list[Line]:
        """Return the current lines of the screen; the next key acts on this layout."""
        width, _ = size = self._screen.size
        pages = {"help": wrapped(HELP, width), "why": wrapped(self._why, width)}
        self._state = replace(self._state, pages=pages)
        lines, view, self._visible = screen_lines(self._live, self._state, now, size)
        self._state = replace(self._state, view=view)
        return lines

    def _on_key(self, key: str) -> Request | None:
        """Handle a key; return its request if that ends the screen."""
        view, request = press(self._state.view, key, self._visible)
        self._state = replace(self._state, view=view)
        if request is None:
            return None
        if request.verb in ("quit", "interrupt"):
            return request
        self._perform(request, self._clock())
        return None

    def _perform(self, request: Request, now: float) -> None:
        if request.verb == "redraw":
            self._needs_redraw = True
            return
        if request.verb == "why":
            self._why_due_s = now + WHY_S
            if not self._why.startswith(f"{request.name}\n"):
                self._why = f"{request.name}\n\nloading …"
            self._requests.start(request)
            return
        is_new = self._requests.start(request)
        self._show_message(
            f"{request.verb} {request.name} …" if is_new else "another command is still running",
            now,
        )

    def _show_message(self, text: str, now: float) -> None:
        self._state = replace(self._state, message=text)
        self._message_until_s = now + MESSAGE_S
