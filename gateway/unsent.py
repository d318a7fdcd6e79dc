"""Answers that their clients have not taken yet: bytes counted, and clients that are cut.

An answer is never refused, delayed or truncated for want of room. Its bytes are in the same count
as the bodies of requests, so while clients leave too much no request is admitted on any door, and
the clients that take nothing are cut. Event loop thread only.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import math
import socket
import struct
import termios
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

import structlog

from gateway.dispatch.held import HeldBytes
from gateway.replies import Body

log = structlog.get_logger()

STILL_S: Final = 30.0
"""Seconds within which a client takes at least something of a whole answer."""
PART: Final = 20
"""While the count is over its limit, a client that takes less than 1/N of its bytes in STILL_S
counts as one that takes nothing: it would need more than ten minutes for them."""
CUT_PART: Final = 16
"""Where the count is over its limit, at most 1/N of the clients that take nothing are cut at a
time, so that one that holds much does not cost all others their downloads."""
CUTS_MAX: Final = 16
CUTS_S: Final = 0.1
"""Max clients that are cut at once, and seconds until the next ones: to end a connection with some
MiB in the kernel takes 0.8 ms."""
MEASURED_MAX: Final = 1000
"""Max clients of one sweep whose progress is read from the kernel, in 5 us each."""
PART_BYTES: Final = 1024 * 1024
"""Bytes. Bodies that are larger are written in parts of this size."""
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of 0 seconds: closing the socket resets the connection."""
_INFO_SIZE: Final = 128
_ACKED_AT: Final = 120
"""Offset of `tcpi_bytes_acked` in `struct tcp_info` (linux/tcp.h)."""


def clients_to_cut(waiting: Iterable[UnsentAnswer], over: int, now: float) -> list[UnsentAnswer]:
    """Return the clients to cut at `now`. Pure. `over`: bytes by which the count is over its limit.

    1. Those that have taken nothing of a whole answer for STILL_S.
    2. If that does not free `over` bytes: those that have not taken 1/PART of theirs for STILL_S,
       the longest first, until it does, at most 1/CUT_PART of them and at least one.
    """
    due = now - STILL_S
    cut: list[UnsentAnswer] = []
    slow: list[UnsentAnswer] = []
    for one in waiting:
        if one.moved_s <= due and not one.may_pause:
            cut.append(one)  # 1
            over -= one.bytes
        elif one.paced_s <= due:
            slow.append(one)
    if over <= 0 or not slow:
        return cut
    slow.sort(key=lambda one: one.paced_s)
    for one in slow[: math.ceil(len(slow) / CUT_PART)]:  # 2
        if over <= 0:
            break
        cut.append(one)
        over -= one.bytes
    return cut


class UnsentAnswer:
    """What one client has not taken yet.

    A door without a transport calls `add` and `taken`; `close` when the client is gone. `cut` ends
    the connection or the call so that the client sees an incomplete answer.
    """

    __slots__ = ("_answers", "_cut", "_paced", "_total", "bytes", "may_pause", "moved_s", "paced_s")

    def __init__(
        self, answers: UnsentAnswers, cut: Callable[[], object], *, may_pause: bool = False
    ) -> None:
        self._answers = answers
        self._cut = cut
        self._total = self._paced = 0
        self.bytes = 0
        """Bytes of memory that the answer takes."""
        self.may_pause = may_pause
        """Whether the answer is an exchange's: a pause alone is no reason to cut the client."""
        self.moved_s = 0.0
        """When the client last took anything, or got its answer; seconds."""
        self.paced_s = 0.0
        """When it had last taken another 1/PART of its bytes, or got its answer; seconds."""

    def add(self, count: int) -> None:
        """Count `count` more bytes that the client has to take."""
        if not self.bytes and count:
            self._answers.begin(self)
        self.bytes += count
        self._answers.count(count)

    def taken(self, count: int) -> None:
        """Stop counting `count` bytes: the client has taken them."""
        count = min(count, self.bytes)
        self.progress(self._total + count, self._answers.clock())
        self.bytes -= count
        self._answers.count(-count)
        if not self.bytes:
            self._answers.end(self)

    def close(self) -> None:
        """Stop counting: the client has taken everything, or is gone. Idempotent."""
        if self.bytes:
            self._answers.count(-self.bytes)
            self.bytes = 0
            self._answers.end(self)

    def progress(self, total: int, now: float) -> None:
        """Note what the client has taken until `now`. `total`: a number that grows with it."""
        if total <= self._total:
            return
        self._total = total
        self.moved_s = now
        if (total - self._paced) * PART >= self.bytes:
            self._paced = total
            self.paced_s = now

    def measure(self, now: float) -> None:
        """Read what the client has taken; does nothing where `taken` reports it."""

    def cut(self) -> None:
        """Cut the client."""
        self.close()
        self._cut()


class UnsentBuffer(UnsentAnswer):
    """The unsent bytes of a connection, in its transport's buffer.

    After `watch`, the transport calls its protocol's `pause_writing` for the first unsent byte and
    `resume_writing` once there is none; the protocol passes that on to `pause`, and to `close` or
    `write_more`. An answer is kept until its last byte is sent, so the count does not shrink
    between the two. `rest`: what follows of a body that is written in parts.
    """

    __slots__ = ("_transport", "rest")

    def __init__(self, answers: UnsentAnswers) -> None:
        super().__init__(answers, self._reset)
        self._transport: asyncio.Transport | None = None
        self.rest = memoryview(b"")

    def watch(self, transport: asyncio.Transport) -> None:
        """Watch the buffer of a connection's transport."""
        self._transport = transport
        transport.set_write_buffer_limits(0)

    def pause(self, *, may_pause: bool) -> None:
        """Count the buffer. `may_pause`: the answer is an exchange's."""
        self.may_pause = may_pause
        if self._transport is not None:
            self.at_least(self._transport.get_write_buffer_size())

    def write(self, pieces: list[Body]) -> None:
        """Write a whole answer: its head, and its body where that is a piece of its own.

        A large body is written in parts, as the client takes them: a transport may copy what the
        kernel does not take. It counts whole until its last part is taken.
        """
        if self._transport is None:
            return
        for piece in pieces:
            if len(piece) <= PART_BYTES:
                self._transport.write(piece)
            else:
                self.rest = memoryview(piece)
                self.write_more()
        if self.bytes:
            self.may_pause = False
            self.at_least(len(pieces[-1]))

    def write_more(self) -> bool:
        """Write parts of the rest until the client has to take them. Returns whether it has to.

        To be called when there are no unsent bytes.
        """
        transport = self._transport
        while self.rest and transport is not None:
            transport.write(self.rest[:PART_BYTES])
            self.rest = self.rest[PART_BYTES:]
            if transport.get_write_buffer_size():
                return True
        return False

    def close(self) -> None:
        """Stop counting and drop the rest. Idempotent."""
        self.rest = memoryview(b"")
        super().close()

    def at_least(self, count: int) -> None:
        """Count `count` bytes, if fewer are counted."""
        if count > self.bytes:
            self.add(count - self.bytes)

    def measure(self, now: float) -> None:
        """Read from the kernel what the client has taken.

        That the buffer shrinks does not show it: the kernel takes some MiB at a time.
        """
        transport = self._transport
        unsent = 0 if transport is None else transport.get_write_buffer_size()
        if transport is None or not (unsent or self.rest):
            self.close()
            return
        self.at_least(unsent)
        total = taken_bytes(transport.get_extra_info("socket"), unsent)
        if not self._total:
            self._total = self._paced = total
        else:
            self.progress(total, now)

    def _reset(self) -> None:
        if self._transport is not None:
            reset(self._transport)


class UnsentAnswers:
    """All unsent answers of one process. `clock` returns seconds on any scale.

    `held` counts these bytes, too. `cuts`: how many clients were cut so far.
    """

    def __init__(self, held: HeldBytes, clock: Callable[[], float]) -> None:
        self._held = held
        self._all: dict[UnsentAnswer, None] = {}
        self._again: asyncio.TimerHandle | None = None
        self.clock = clock
        self.count = held.hold_answers
        self.cuts = 0

    def __len__(self) -> int:
        return len(self._all)

    @property
    def bytes(self) -> int:
        """Bytes of all of them."""
        return self._held.unsent

    def begin(self, one: UnsentAnswer) -> None:
        """Watch a client that has not taken everything."""
        one.moved_s = one.paced_s = self.clock()
        self._all[one] = None

    def end(self, one: UnsentAnswer) -> None:
        """Watch a client no more."""
        self._all.pop(one, None)

    def sweep(self) -> int:
        """Cut the clients that take nothing; to be called once a second. Returns their number.

        More than CUTS_MAX are cut in several turns of the event loop.
        """
        if not self._all:
            return 0
        now = self.clock()
        for one in list(itertools.islice(self._all, MEASURED_MAX)):
            del self._all[one]
            self._all[one] = None  # the next sweep begins with the others
            one.measure(now)
        over = self._held.bytes - self._held.most
        due = clients_to_cut(self._all, over, now)
        cut = due[:CUTS_MAX]
        for one in cut:
            one.cut()
        if len(due) > CUTS_MAX:
            if self._again is not None:
                self._again.cancel()
            self._again = asyncio.get_running_loop().call_later(CUTS_S, self.sweep)
        self.cuts += len(cut)
        if cut:
            log.warning("clients were cut: they do not take their answers", count=len(cut))
        return len(cut)


def reset(transport: asyncio.Transport) -> None:
    """Reset a connection, so that a cut answer never looks complete; unsent bytes are dropped."""
    sock = transport.get_extra_info("socket")
    if sock.family != socket.AF_UNIX:
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()


def taken_bytes(sock: socket.socket, unsent: int) -> int:
    """Return a number that grows as the peer takes bytes; `unsent`: bytes that the kernel lacks.

    TCP: the acknowledged bytes. Otherwise: the bytes that are left, negative.
    """
    try:
        if sock.family != socket.AF_UNIX:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_SIZE)
            return int.from_bytes(info[_ACKED_AT:_INFO_SIZE], "little") + 1
        left = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, struct.pack("i", 0))
        return -unsent - int(struct.unpack("i", left)[0])
    except (OSError, ValueError):
        return 0
