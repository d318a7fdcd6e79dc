"""Test-controlled gateway half of shared bodies, for tests of a replica."""

from __future__ import annotations

import mmap
import os
import socket

from runtime_image.link.shared_memory import (
    SideChannel,
    SlabNotice,
    SlabRange,
    make_slab,
    open_for_reading,
)


class GatewaySide:
    """One end of a side channel with its own slabs. `theirs` is the replica's end."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel = SideChannel(ours)
        self._slabs: dict[int, mmap.mmap] = {}
        self._answers: dict[int, int] = {}

    def announce(self, number: int, size: int = 2**20) -> None:
        """Create a slab and announce it to the replica."""
        descriptor, memory = make_slab(size, read_only=True)
        passed = open_for_reading(descriptor)
        assert self.channel.announce(number, size, passed)
        os.close(passed)
        os.close(descriptor)
        self._slabs[number] = memory

    def put(self, number: int, body: bytes, offset: int = 0) -> SlabRange:
        """Write a body into a slab."""
        self._slabs[number][offset : offset + len(body)] = body
        return SlabRange(number, offset, len(body))

    def hear(self) -> SlabNotice | None:
        """Receive the replica's next slab notice; keep its descriptor."""
        notice = self.channel.receive()
        if notice is not None and notice.size:
            self._answers[notice.number] = notice.descriptor
        return notice

    def read(self, place: SlabRange) -> bytes:
        """Read an answer from an announced slab."""
        return os.pread(self._answers[place.slab], place.length, place.offset)

    def in_memory(self, number: int) -> int:
        """Return the memory in bytes that an answer slab occupies."""
        return os.fstat(self._answers[number]).st_blocks * 512

    def close(self) -> None:
        """Release all slabs, descriptors and both ends."""
        for memory in self._slabs.values():
            memory.close()
        for descriptor in self._answers.values():
            os.close(descriptor)
        self._answers.clear()
        self.theirs.close()
        self.channel.close()
