"""Files of a door: answers the FETCHes of replicas, each with a range of a file by its content."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from hosts.tls.admission import ReplicaEntry
from hosts.tls.peers import Head, Peer, parse_fetch, read_body, read_head
from runtime_image.contract.enrolment import Fetch
from runtime_image.contract.link import Kind
from runtime_image.contract.model import PART_MAX
from runtime_image.link.frames import pack

REQUEST_MAX: Final = 4096
"""Max bytes of a FETCH."""
SENDING_MAX: Final = 32
"""FETCHes that are answered at the same time, over all replicas; more wait in order."""
PART: Final = PART_MAX // 4
"""Bytes that are read and sent at once: more would keep other connections waiting, and take memory
for each."""
TURN_S: Final = 30.0
"""Seconds that a FETCH may take once it has its turn. Then the connection is closed, and its
replica goes on at its byte on another one, behind all that wait: replicas that do not read hold no
turns."""
IDLE_S: Final = 60.0
"""Seconds that a connection may wait for its next FETCH."""


class FileServing:
    """Sends files to replicas."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(SENDING_MAX)

    async def serve(self, peer: Peer, entry: ReplicaEntry, first: Head, body: bytes) -> None:
        """Answer the FETCHes of a connection, one after the other, until its end. Raises LinkError
        for any other frame, OSError."""
        head: Head | None = first
        while head is not None:
            request = parse_fetch(body)
            async with self._turns, asyncio.timeout(TURN_S):
                fault = await self._send(peer, entry, head.id, request)
                if fault:
                    await peer.send_json(Kind.FAILED, {"reason": fault}, head.id)
                else:
                    await peer.send(*pack(Kind.END, head.id))
            async with asyncio.timeout(IDLE_S):
                head = await read_head(peer.reader, {Kind.FETCH: REQUEST_MAX})
                body = b"" if head is None else await read_body(peer.reader, head)

    async def _send(self, peer: Peer, entry: ReplicaEntry, id: int, request: Fetch) -> str:
        """Send the PARTs of a range; return why that failed, "" if it did not."""
        sha256, at = request["sha256"], request["offset"]
        end = at + request["length"]
        path = entry.admission.file(sha256)
        if path is None:
            return f"file {sha256}: expected one of the files of this replica's model"
        loop = asyncio.get_running_loop()
        while at < end:
            try:
                part = await loop.run_in_executor(None, _read, path, at, min(PART, end - at))
            except OSError as error:
                return f"file {sha256} cannot be read: {error.strerror}"
            if not part:
                return f"file {sha256}: expected {end} bytes or more, it has {at} or fewer"
            await peer.send(*pack(Kind.PART, id, part))
            at += len(part)
            entry.served_bytes += len(part)
        return ""


def _read(path: Path, at: int, size: int) -> bytes:
    """Return a part of a file. It is opened for each part: a connection that waits for its peer
    holds no descriptor, and opening takes a hundredth of the time of a part."""
    with path.open("rb", buffering=0) as file:
        file.seek(at)
        return file.read(size)
