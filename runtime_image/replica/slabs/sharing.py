"""Shared memory of all of a replica's links, as its serving part sees it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from runtime_image.contract.link import Flag
from runtime_image.link.frames import Frame, LinkError
from runtime_image.link.side_channel import SideChannel
from runtime_image.link.socket_end import SocketEnd
from runtime_image.replica.intake import Job
from runtime_image.replica.loop import Loop
from runtime_image.replica.slabs.bodies import SharedBodies

Body = bytes | bytearray | memoryview


class Sharing:
    """Links without a side channel have all bodies in frames. `broken(link)` hears of a gateway
    that breaks the rules of one."""

    def __init__(self, loop: Loop, broken: Callable[[int], None]) -> None:
        self._loop = loop
        self._broken = broken
        self._bodies: dict[int, SharedBodies] = {}

    def greet(self, link: int, end: SocketEnd) -> bool:
        """Take the side channel that came beside HELLO; whether there is one."""
        descriptor = end.take_descriptor()
        if descriptor is None:
            return False
        try:
            sock = socket.socket(fileno=descriptor)
        except OSError as error:
            os.close(descriptor)
            raise LinkError(f"expected a socket beside HELLO: {error}") from error
        bodies = SharedBodies(SideChannel(sock), self._loop.after)
        self._bodies[link] = bodies
        bodies.is_watched = True
        self._loop.watch(sock, lambda: self._readable(link, bodies))
        return True

    def request(self, link: int, frame: Frame) -> Body:
        """The body of a REQUEST, wherever it lies: a memoryview is to be `returned`."""
        if not frame.flags & Flag.SLAB:
            return frame.body
        bodies = self._bodies.get(link)
        if bodies is None:
            raise LinkError("a body in shared memory on a link without")
        return bodies.request(frame.body)

    def returned(self, job: Job) -> None:
        """A job's body is not read any more; said again, it means nothing."""
        if not isinstance(job.body, memoryview):
            return
        job.body = b""
        bodies = self._bodies[job.link]
        bodies.returned()
        if bodies.is_closed:
            del self._bodies[job.link]

    def answer(self, link: int, body: Body) -> tuple[Body, int]:
        """Body and flags of a RESPONSE."""
        bodies = self._bodies.get(link)
        place = bodies.answer(body) if bodies is not None else None
        return (body, 0) if place is None else (place, Flag.SLAB)

    def freed(self, link: int, frame: Frame) -> None:
        """A FREED frame. Raises LinkError where nothing is to free."""
        bodies = self._bodies.get(link)
        if bodies is None:
            raise LinkError("FREED on a link without shared memory")
        bodies.freed(frame.body)

    def drop(self, link: int) -> None:
        """A link is gone; its bodies stay until the last of its jobs is done."""
        bodies = self._bodies.get(link)
        if bodies is None:
            return
        self._forget(bodies)
        bodies.drop()
        if bodies.is_closed:
            del self._bodies[link]

    def _readable(self, link: int, bodies: SharedBodies) -> None:
        if not bodies.is_watched:  # the link ended in this very turn
            return
        try:
            bodies.read_notices()
        except EOFError:
            self._forget(bodies)
        except LinkError:
            self._broken(link)

    def _forget(self, bodies: SharedBodies) -> None:
        if bodies.is_watched:
            bodies.is_watched = False
            self._loop.forget(bodies.channel.sock)
