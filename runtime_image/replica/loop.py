"""The replica's event loop: readiness of sockets, timers, posted callbacks.

Not asyncio, whose import adds about 25 ms to a cold start, a fifth of ONNX Runtime's own import
time. A replica has only a few sockets, a few threads and a few timers.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import selectors
import socket
from collections import deque
from collections.abc import Callable
from itertools import count

Callback = Callable[[], None]


class Loop:
    """Event loop. A turn handles readable sockets, posted callbacks, due timers, then `turn_end`.

    All callbacks run in the thread that calls `run`. Only `post` may be called from other threads
    and from signal handlers.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.turn_end: Callback = lambda: None
        self._selector = selectors.DefaultSelector()
        self._writing: set[socket.socket] = set()
        self._either: set[socket.socket] = set()
        """Sockets whose callback is for both kinds of events."""
        self._posted: deque[Callback] = deque()
        self._is_woken = False
        self._timers: list[tuple[float, int, Callback]] = []
        self._order = count()
        self._running = True
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self._selector.register(self._wake_in, selectors.EVENT_READ, self._woken)

    def watch(self, sock: socket.socket, readable: Callback) -> None:
        """Call `readable` in every turn in which `sock` is readable. Unwatch with `forget`."""
        self._selector.register(sock, selectors.EVENT_READ, readable)

    def when_writable(self, sock: socket.socket, writable: Callback) -> None:
        """Call `writable` in every turn in which `sock` is writable, until `forget`."""
        self._selector.register(sock, selectors.EVENT_WRITE, writable)

    def want_write(self, sock: socket.socket, wanted: bool) -> None:
        """Also wake up when `sock` is writable; `turn_end` then flushes."""
        if wanted == (sock in self._writing):
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
        self._selector.modify(sock, events, self._selector.get_key(sock).data)
        (self._writing.add if wanted else self._writing.discard)(sock)

    def rewatch(self, sock: socket.socket, old: int, new: int, ready: Callback) -> None:
        """Call `ready` in every turn in which `sock` is ready for the events `new` of `selectors`;
        `old` are those of the last call. 0: not watched."""
        if not old:
            self._selector.register(sock, new, ready)
        elif new:
            self._selector.modify(sock, new, ready)
        else:
            self._selector.unregister(sock)
        (self._either.add if new else self._either.discard)(sock)

    def forget(self, sock: socket.socket) -> None:
        """Stop watching `sock`; call this before closing it."""
        self._selector.unregister(sock)
        self._writing.discard(sock)

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
        while self._posted:
            self._posted.popleft()()
        now = self.clock()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()
        self.turn_end()

    def _patience_s(self) -> float | None:
        if self._posted:
            return 0.0
        if not self._timers:
            return None
        return max(0.0, self._timers[0][0] - self.clock())

    def _woken(self) -> None:
        os.read(self._wake_in, 4096)
        self._is_woken = False
