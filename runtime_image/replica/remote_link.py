"""The control link of a replica to a manager on another machine.

The connection passes through a tunnel or a network that may hang: connect(2) proves nothing, and
the end of the stream may come late or never. So a link counts from WELCOME to the third missed
PING, and a `Lease` decides how long the replica may accept requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from runtime_image.contract.control import Hello
from runtime_image.contract.link import Kind
from runtime_image.link.frames import Frame, LinkError, Piece
from runtime_image.link.handshake import greet_remote, pack_hello
from runtime_image.link.socket_end import SocketEnd
from runtime_image.replica.dialling import Dialler
from runtime_image.replica.lease import Lease
from runtime_image.replica.loop import Loop
from runtime_image.replica.manager_link import RECONNECT_S, DialingLink, NoManager

WELCOME_S = 5.0
"""Seconds after which a HELLO that is not answered counts as lost."""
PINGS_MISSED_MAX: Final = 3
WATCH_S: Final = 1.0
"""Max seconds between two looks at the lease and the last PING."""
HELD_MAX: Final = 64
"""Max frames that wait for WELCOME."""

clock_of_boot: Callable[[], float] = partial(time.clock_gettime, time.CLOCK_BOOTTIME)


class RemoteLink(DialingLink):
    """The control link: one connection at a time, each with a rising number.

    Frames that are sent between HELLO and WELCOME wait; without a connection they are dropped,
    since the next HELLO carries the whole state.
    """

    def __init__(  # noqa: PLR0913 - the composition of the replica's parts
        self,
        loop: Loop,
        dialler: Dialler,
        orphan_s: float,
        *,
        hello: Callable[[int], Hello],
        on_frame: Callable[[Frame], None],
        orphaned: Callable[[], None],
        clock: Callable[[], float] = clock_of_boot,
    ) -> None:
        """`hello(dial)` returns HELLO with the whole state. `orphaned` is called once, when the
        lease is over. `clock` also counts while the machine sleeps."""
        super().__init__(loop, dialler)
        self._orphan_s = orphan_s
        self._hello = hello
        self._on_frame = on_frame
        self._orphaned = orphaned
        self._clock = clock
        self._lease = Lease(orphan_s, clock())
        self._is_welcome = False
        self._held: list[list[Piece]] = []
        self._hello_s = 0.0
        self._heard_s = 0.0
        self._ping_s = 0.0
        self._is_orphaned = False

    # The first connection

    def greet(self) -> list[Frame]:
        """Connect, blocking; return the frames that came after WELCOME, for `deliver`. Raises
        NoManager."""
        while True:
            try:
                frames = self._greet_once()
            except (LinkError, OSError) as error:
                if self._lease.is_over(self._clock()):
                    why = f"no manager for {self._orphan_s:g} s: {error}"
                    raise NoManager(why) from error
                time.sleep(RECONNECT_S)
            else:
                self._loop.after(WATCH_S, self._watch)
                return frames

    def _greet_once(self) -> list[Frame]:
        self._dials += 1
        sock = self._dialler.connect(WELCOME_S)
        try:
            self._hello_s = self._clock()
            reader, frames = greet_remote(sock, self._hello(self._dials))
        except BaseException:
            sock.close()
            raise
        self._adopt(SocketEnd(sock, reader))
        self._welcome(frames[0])
        return frames[1:]

    # The link

    def guard(self) -> None:
        """Call `orphaned` if the lease is over. Called after anything new was read and before it is
        accepted: this process may have been stopped for any time."""
        if not self._is_orphaned and self._lease.is_over(self._clock()):
            self._is_orphaned = True
            self._orphaned()

    def send(self, frame: list[Piece]) -> None:
        """ControlLink: queue a frame."""
        if self._end is None:
            return
        if self._is_welcome:
            self._end.send(frame)
        elif len(self._held) < HELD_MAX:
            self._held.append(frame)

    def deliver(self, frame: Frame) -> None:
        """ControlLink: handle a frame of the manager."""
        if not self._is_welcome:
            self._welcome(frame)
        elif frame.kind is Kind.PING:
            self._lease.on_ping(frame.aux)
            self._on_frame(frame)
            self._lease.on_pong(self._clock())
        elif frame.kind is Kind.CERTIFICATE:
            self._dialler.renew(frame)
        else:
            self._on_frame(frame)

    def _welcome(self, frame: Frame) -> None:
        if frame.kind is not Kind.WELCOME:
            raise LinkError(f"expected WELCOME, got {frame.kind.name}")
        self._is_welcome = True
        self._ping_s = frame.aux / 1e3
        self._lease.on_welcome(self._hello_s)
        held, self._held = self._held, []
        for one in held:
            self.send(one)

    def _adopt(self, end: SocketEnd) -> None:
        self._end, self._is_welcome, self._heard_s = end, False, self._clock()
        self._loop.watch(end.sock, self._readable)

    def _readable(self) -> None:
        end = self._end
        if end is None:
            return
        self.guard()
        try:
            frames = end.receive()
            if frames:
                self._heard_s = self._clock()
            for frame in frames or ():
                self.deliver(frame)
        except LinkError:
            frames = None
        if frames is None and self._end is end:
            self._lose()

    def _watch(self) -> None:
        """Look at the lease, and end a silent connection."""
        self.guard()
        if self._end is not None and self._clock() - self._heard_s >= self._patience_s():
            self._lose()
        self._loop.after(min(WATCH_S, self._ping_s or WATCH_S), self._watch)

    def _patience_s(self) -> float:
        if not self._is_welcome:
            return WELCOME_S
        return PINGS_MISSED_MAX * self._ping_s or float("inf")

    def _lose(self) -> None:
        if self._close_end():
            self._held.clear()
            self._loop.after(RECONNECT_S, self._redial)

    def _redial(self) -> None:
        if not self._is_orphaned:
            self._dial()

    def _not_connected(self) -> None:
        self._loop.after(RECONNECT_S, self._redial)

    def _connected(self, end: SocketEnd) -> None:
        if self._is_orphaned:
            end.close()
            return
        self._hello_s = self._clock()
        self._adopt(end)
        end.send(pack_hello(self._hello(self._dials)))
