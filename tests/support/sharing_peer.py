"""Test-controlled data socket of a replica, with its end of the side channel."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from runtime_image.contract.link import SLAB_NOTICE, VERSION, Flag, Kind
from runtime_image.link.frames import Frame, FrameReader
from runtime_image.link.shared_memory import SideChannel, SlabRange, make_slab
from runtime_image.link.stream import FrameStream
from runtime_image.replica.shared_memory import LinkBodies
from tests.support.peers import Peer


class SharingPeer(Peer):
    """Data socket with shared memory. `side` and `shared` belong to the newest link."""

    side: SideChannel
    shared: LinkBodies

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[SharingPeer]:
        """Accept links while the block runs."""
        self._sides: list[LinkBodies] = []
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.path))
            listener.listen(10)
            listener.setblocking(False)
            loop.add_reader(listener, self._accept_raw, listener)
            try:
                yield self
            finally:
                loop.remove_reader(listener)
                for stream in self._streams:
                    stream.abort("the peer closes")
                for shared in self._sides:
                    self.die(shared)
                await asyncio.sleep(0)

    def _accept_raw(self, listener: socket.socket) -> None:
        sock, _ = listener.accept()
        # HELLO is sent in the same turn as the connection is made.
        data, descriptors, _, _ = socket.recv_fds(sock, 10_000, 1)
        reader = FrameReader()
        reader.buffer()[: len(data)] = data
        for frame in reader.received(len(data)):
            self.frames.put_nowait(frame)
        if descriptors:
            self.side = SideChannel(socket.socket(fileno=descriptors[0]))
            self.shared = LinkBodies(self.side, lambda _seconds, _action: None)
            self._sides.append(self.shared)
        self.passed = len(descriptors)
        stream = FrameStream(self.frames.put_nowait, self.lost.put_nowait, "peer")
        self._streams.append(stream)
        loop = asyncio.get_running_loop()
        self._opening = loop.create_task(
            loop.create_unix_connection(lambda: stream, sock=sock), name="peer"
        )

    async def greet(self, said: bytes = b'{"slabs": true}') -> None:
        """Receive a gateway's HELLO and agree to share memory."""
        hello = await self.next(Kind.HELLO)
        assert hello.aux == VERSION
        await self._opening
        self.send(Kind.HELLO, body=said, aux=VERSION)

    async def request(self) -> tuple[Frame, bytes]:
        """Return the next request and its body, inline or in a slab."""
        frame = await self.next(Kind.REQUEST)
        if not frame.flags & Flag.SLAB:
            return frame, bytes(frame.body)
        body = bytes(self.shared.request_body(frame.body))
        self.shared.release()
        return frame, body

    def announce(self, number: int = 1, size: int = 2**20, content: bytes = b"") -> None:
        """Announce a slab for answers."""
        descriptor, memory = make_slab(size, read_only=False)
        memory[: len(content)] = content
        memory.close()
        self.pass_on(SLAB_NOTICE.pack(number, size), descriptor)

    def pass_on(self, notice: bytes, *descriptors: int) -> None:
        """Send any notice over the side channel; the descriptors are closed here."""
        socket.send_fds(self.side.sock, [notice], list(descriptors))
        for descriptor in descriptors:
            os.close(descriptor)

    def answer_at(self, id: int, place: SlabRange, **fields: Any) -> None:
        """Send an answer that refers to this place in a slab."""
        self.answer(id, place.pack(), flags=Flag.SLAB, **fields)

    @staticmethod
    def die(shared: LinkBodies) -> None:
        """Close a link's side channel as a process exit does."""
        shared._requests.clear()
        shared._answers.close()
        shared.channel.close()
