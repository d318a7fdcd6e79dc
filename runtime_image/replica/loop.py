"""The replica's event loop: readiness of sockets, timers, posted callbacks.

Not asyncio, whose import adds about 25 ms to a cold start, a fifth of ONNX Runtime's own import
time. A replica has only a few sockets, a few threads and a few timers.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import selectors
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Protocol

Callback = Callable[[], None]


class Watched(Protocol):
    """A socket, or a listener that is like one."""

    def fileno(self) -> int:
        """Return the descriptor."""


class Loop:
    """Event loop. A turn handles readable sockets, posted callbacks, due timers, then `turn_end`.

    All callbacks run in the thread that calls `run`. Only `post` may be called from other threads
    and from signal handlers.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.turn_end: Callback = lambda: None
        self._selector = selectors.DefaultSelector()
        self._writing: set[Watched] = set()
        self._either: set[Watched] = set()
        """Sockets whose callback is for both kinds of events."""
        self._buffering: dict[Watched, Callable[[], int]] = {}
        """Sockets watched for reading that may hold bytes back from the selector, and how many."""
        self._posted: deque[Callback] = deque()
        self._is_woken = False
        self._timers: list[tuple[float, int, Callback]] = []
        self._order = count()
        self._running = True
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self._selector.register(self._wake_in, selectors.EVENT_READ, self._woken)

    def watch(self, sock: Watched, readable: Callback) -> None:
        """Call `readable` in every turn in which `sock` is readable. Unwatch with `forget`."""
        self._selector.register(sock, selectors.EVENT_READ, readable)
        self._reads(sock, True)

    def when_writable(self, sock: Watched, writable: Callback) -> None:
        """Call `writable` in every turn in which `sock` is writable, until `forget`."""
        self._selector.register(sock, selectors.EVENT_WRITE, writable)

    def want_write(self, sock: Watched, wanted: bool) -> None:
        """Also wake up when `sock` is writable; `turn_end` then flushes."""
        if wanted == (sock in self._writing):
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
        self._selector.modify(sock, events, self._selector.get_key(sock).data)
        (self._writing.add if wanted else self._writing.discard)(sock)

    def rewatch(self, sock: Watched, old: int, new: int, ready: Callback) -> None:
        """Call `ready` in every turn in which `sock` is ready for the events `new` of `selectors`;
        `old` are those of the last call. 0: not watched."""
        if old and new:
            self._selector.modify(sock, new, ready)
        elif new:
            self._selector.register(sock, new, ready)
        elif old:
            self._selector.unregister(sock)
        (self._either.add if new else self._either.discard)(sock)
        self._reads(sock, bool(new & selectors.EVENT_READ))

    def forget(self, sock: Watched) -> None:
        """Stop watching `sock`; call this before closing it."""
        self._selector.unregister(sock)
        self._writing.discard(sock)
        self._buffering.pop(sock, None)

    def _reads(self, sock: Watched, wanted: bool) -> None:
        """Note whether `sock` is watched for reading, if it decrypts more than it hands out."""
        pending = getattr(sock, "pending", None)
        if pending is not None:
            if wanted:
                self._buffering[sock] = pending
            else:
                self._buffering.pop(sock, None)

    def post(self, callback: Callback) -> None:
        """Run `callback` soon in the loop's thread."""
        self._posted.append(callback)
        # This appends before it reads `_is_woken`; `_woken` clears it before the posted callbacks
        # run. So either the loop is still to wake up and sees the callback, or it wakes again.
        # A wake-up costs a system call on both sides.
        if not self._is_woken:
            self._is_woken = True
            # A full pipe contains enough wake-ups.
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake_out, b"\0")

    def after(self, delay_s: float, callback: Callback) -> None:
        """Run `callback` once, `delay_s` seconds from now."""
        heapq.heappush(self._timers, (self.clock() + delay_s, next(self._order), callback))

    def stop(self) -> None:
        """End `run` after this turn."""
        self._running = False

    def run(self) -> None:
        """Run turns until `stop`."""
        while self._running:
            self._turn()

    def close(self) -> None:
        """Close the loop's descriptors: the selector and the wake-up pipe."""
        self._selector.close()
        os.close(self._wake_in)
        os.close(self._wake_out)

    def _turn(self) -> None:
        for key, events in self._selector.select(self._patience_s()):
            is_read = events & selectors.EVENT_READ or key.events == selectors.EVENT_WRITE
            if is_read or key.fileobj in self._either:
                key.data()
        if self._buffering:
            for sock in self._unread():
                if sock in self._buffering:  # else forgotten by an earlier callback
                    self._selector.get_key(sock).data()
        while self._posted:
            self._posted.popleft()()
        now = self.clock()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()
        self.turn_end()

    def _patience_s(self) -> float | None:
        if self._posted or (self._buffering and self._unread()):
            return 0.0
        if not self._timers:
            return None
        return max(0.0, self._timers[0][0] - self.clock())

    def _unread(self) -> list[Watched]:
        """Return the sockets with bytes that no selector shows."""
        return [sock for sock, pending in self._buffering.items() if pending()]

    def _woken(self) -> None:
        os.read(self._wake_in, 4096)
        self._is_woken = False
