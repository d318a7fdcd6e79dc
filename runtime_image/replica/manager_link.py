"""The control link of a replica: one connection to its manager, with reconnects."""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from runtime_image.contract.control import CONTROL_SOCKET, Hello, Loaded, ReplicaRecord
from runtime_image.contract.link import VERSION
from runtime_image.link.frames import Frame, LinkError, Piece
from runtime_image.link.handshake import greet, pack_hello
from runtime_image.link.socket_end import SocketEnd
from runtime_image.replica.dialling import Dialler, UnixDialler
from runtime_image.replica.loop import Loop

if TYPE_CHECKING:
    from runtime_image.replica.seen_gpus import SeenGpus

RECONNECT_S = 0.2
"""Interval between two attempts to reconnect. Short: a restarted manager accepts calls soon after
its start."""


class NoManager(LinkError):
    """No manager on another machine answered within `orphan_s` after the start."""


class ControlLink(Protocol):
    """The control link, as the program of a replica uses it."""

    def send(self, frame: list[Piece]) -> None:
        """Queue a frame. It is dropped without a manager: HELLO carries the whole state anyway."""

    def flush(self) -> None:
        """Write the frames of this turn."""

    def deliver(self, frame: Frame) -> None:
        """Handle a frame that came with the handshake. Raises LinkError."""


def hello_of(
    record: ReplicaRecord,
    phases: dict[str, float],
    loaded: Loaded | None,
    dial: int,
    gpus: SeenGpus | None = None,
) -> Hello:
    """Return the HELLO of this process; `phases` in milliseconds, `loaded` None before the load.
    Waits for the first reading of `gpus`."""
    hello: Hello = {
        "token": record.token,
        "version": VERSION,
        "pid": os.getpid(),
        "features": [],
        "dial": dial,
        "bound": record.bound,
        "phases": phases,
    }
    if loaded is not None:
        hello["loaded"] = loaded
    if gpus is not None and (found := gpus.first()) is not None:
        hello["gpus"] = found
    return hello


def connect(run_dir: Path, hello: Hello) -> tuple[SocketEnd, socket.socket, list[Frame]]:
    """Connect to the manager of this machine and exchange the handshake, blocking.

    Returns the end of the link, the listener of data links, and frames that came after WELCOME.
    Raises LinkError if the manager refuses, OSError if it is gone.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(str(run_dir / CONTROL_SOCKET))
    reader, descriptor, frames = greet(sock, hello)
    return SocketEnd(sock, reader), socket.socket(fileno=descriptor), frames


class DialingLink(ABC):
    """A link that this process dials again after a loss: at most one connection at a time."""

    def __init__(self, loop: Loop, dialler: Dialler) -> None:
        self._loop = loop
        self._dialler = dialler
        self._end: SocketEnd | None = None
        self._dials = 0

    def flush(self) -> None:
        """Write the frames of this turn."""
        if self._end is None:
            return
        try:
            self._loop.want_write(self._end.sock, not self._end.flush())
        except LinkError:
            self._lose()

    @abstractmethod
    def _lose(self) -> None:
        """Handle a lost connection."""

    def _close_end(self) -> bool:
        """Close the connection; return whether there was one."""
        end, self._end = self._end, None
        if end is None:
            return False
        self._loop.forget(end.sock)
        end.close()
        return True

    def _dial(self) -> None:
        """Connect without blocking; `_connected` or `_not_connected` follows."""
        self._dialler.begin(self._loop, self._dialled)

    def _dialled(self, sock: socket.socket | None) -> None:
        if sock is None:
            self._not_connected()
            return
        self._dials += 1
        self._connected(SocketEnd(sock))

    @abstractmethod
    def _connected(self, end: SocketEnd) -> None:
        """Handle a new connection, which has been counted."""

    @abstractmethod
    def _not_connected(self) -> None:
        """Handle that nobody listens."""


class ManagerLink(DialingLink):
    """The control link to a manager on this machine: one connection, with reconnects.

    A replica without a manager keeps serving; after `orphan_s` seconds `orphaned` is called once.
    """

    def __init__(  # noqa: PLR0913 - the composition of the replica's parts
        self,
        loop: Loop,
        run_dir: Path,
        end: SocketEnd,
        *,
        orphan_s: float,
        hello: Callable[[int], Hello],
        on_frame: Callable[[Frame], None],
        orphaned: Callable[[], None],
    ) -> None:
        """`end` is the first connection. `hello(dial)` returns HELLO with the whole state."""
        super().__init__(loop, UnixDialler(str(run_dir / CONTROL_SOCKET)))
        self._orphan_s = orphan_s
        self._hello = hello
        self._on_frame = on_frame
        self._orphaned = orphaned
        self._dials = 1
        self._lost_s = 0.0
        self._adopt(end)

    def send(self, frame: list[Piece]) -> None:
        """Queue a frame. It is dropped if the link is lost: HELLO carries the whole state
        anyway."""
        if self._end is not None:
            self._end.send(frame)

    def deliver(self, frame: Frame) -> None:
        """ControlLink: handle a frame of the manager."""
        self._on_frame(frame)

    def _adopt(self, end: SocketEnd) -> None:
        self._end = end
        self._loop.watch(end.sock, self._readable)

    def _readable(self) -> None:
        if self._end is None:
            return
        try:
            frames = self._end.receive()
            for frame in frames or ():
                self._on_frame(frame)
        except LinkError:
            frames = None
        if frames is None:
            self._lose()

    def _lose(self) -> None:
        if not self._close_end():
            return
        self._lost_s = self._loop.clock()
        self._loop.after(RECONNECT_S, self._dial)

    def _connected(self, end: SocketEnd) -> None:
        self._adopt(end)
        self.send(pack_hello(self._hello(self._dials)))

    def _not_connected(self) -> None:
        if self._loop.clock() - self._lost_s >= self._orphan_s:
            self._orphaned()
        else:
            self._loop.after(RECONNECT_S, self._dial)
