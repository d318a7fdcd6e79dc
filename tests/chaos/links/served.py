"""`fnctl` with a door of links over TLS in its process, which admits three replicas of the test:
`python -m tests.chaos.links.served FOLDER serve ...`.

FOLDER gets `target.json`, the identities, and every half second `seen.json`: what the admissions
were asked, and the round trips of PINGs to the good replica.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import admin.serve
from admin.cli.main import main
from admin.compose import OpenDriver
from admin.settings import Settings
from hosts.tls.authority import AUTHORITY_FILE, Authority
from hosts.tls.door import LinkDoor
from pool_manager.hosts.kinds import Engines
from runtime_image.contract.addresses import TlsAddress
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.enrolment import SERVER_NAME, replica_name
from runtime_image.contract.link import VERSION, Kind
from runtime_image.link.frames import FrameReader, LinkError, pack
from runtime_image.link.reception import read_hello, welcome
from tests.chaos.footprint import pause
from tests.chaos.links import identities
from tests.support.small_authority import Identity, issued

GOOD: Final = "aaaa0001"
OTHER: Final = "bbbb0002"
USED: Final = "cccc0003"
TOKENS: Final = {GOOD: "11" * 32, OTHER: "22" * 32, USED: "33" * 32}
FILE_SIZE: Final = 32 * 1024 * 1024
PING_EVERY_S: Final = 0.02
TOLD_EVERY_S: Final = 0.5
EPOCH: Final = 7
READ: Final = 65536


@dataclass
class Admitted:
    """A replica that the door knows; every one has enrolled before the test."""

    id: str
    door: Doors
    is_enrolled: bool = True

    @property
    def token(self) -> str:
        """The token of its record."""
        return TOKENS[self.id]

    async def enrol(self, host: str, port: int) -> ReplicaRecord:
        """Nobody enrols here: count it."""
        self.door.seen[f"enrolled {self.id}"] += 1
        raise AssertionError(f"enrolled from {host}:{port}")

    def connected(self, sock: socket.socket) -> None:
        """Welcome the link if it has the token, as a manager does."""
        self.door.seen[f"connected {self.id}"] += 1
        task = asyncio.ensure_future(self._welcomed(sock))
        self.door.tasks.add(task)
        task.add_done_callback(self.door.tasks.discard)

    async def _welcomed(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError, LinkError):
            sock.setblocking(False)
            hello = await read_hello(sock, 5.0)
            if hello["token"] != self.token:
                self.door.seen[f"refused {self.id}"] += 1
                return
            self.door.seen[f"welcomed {self.id}"] += 1
            welcome(sock, None)
            await self._pinged(sock)

    async def _pinged(self, sock: socket.socket) -> None:
        loop, frames = asyncio.get_running_loop(), FrameReader()
        while True:
            sent_s = time.monotonic()
            await loop.sock_sendall(sock, b"".join(pack(Kind.PING)))
            while True:
                count = await loop.sock_recv_into(sock, frames.buffer())
                if not count:
                    return
                if frames.received(count):
                    break
            self.door.pings.append((sent_s, time.monotonic() - sent_s))
            await pause(PING_EVERY_S)

    def file(self, sha256: str) -> Path | None:
        """Only the good replica has a file."""
        return self.door.file if self.id == GOOD and sha256 == self.door.digest else None


@dataclass
class Doors:
    """The door, and what its admissions have seen."""

    folder: Path
    seen: Counter[str] = field(default_factory=Counter)
    pings: list[tuple[float, float]] = field(default_factory=list)
    """When each PING was sent (system monotonic clock), and seconds to its PONG."""
    tasks: set[asyncio.Future[None]] = field(default_factory=set)
    file: Path = Path()
    digest: str = ""

    async def serve(self, data: Path) -> None:
        """Open the door, and report until cancelled."""
        authority = Authority.open(data / "link", EPOCH, time.time)
        door = LinkDoor(TlsAddress("127.0.0.1", 0), None, authority, time.time)
        self.file = self.folder / "model.bin"
        self.file.write_bytes(bytes(range(256)) * (FILE_SIZE // 256))
        self.digest = hashlib.sha256(self.file.read_bytes()).hexdigest()
        await door.open()
        try:
            for id in TOKENS:
                door.admit(id, Admitted(id, self))
            self._write(door, data)
            while True:
                await pause(TOLD_EVERY_S)
                self._tell(door)
        finally:
            await door.close()

    def _write(self, door: LinkDoor, data: Path) -> None:
        kept = (data / "link" / AUTHORITY_FILE).read_bytes()
        genuine = Identity.load(kept, kept)
        for name, identity in identities.hostile(genuine, GOOD, OTHER, EPOCH).items():
            identity.write(self.folder, name)
        issued(genuine, replica_name(GOOD), epoch=EPOCH).write(self.folder, "good")
        (self.folder / "authority.pem").write_text(door.authority_pem)
        target = {
            "host": door.address.host,
            "port": door.address.port,
            "server_name": SERVER_NAME,
            "folder": str(self.folder),
            "good": GOOD,
            "good_token": TOKENS[GOOD],
            "used_token": TOKENS[USED],
            "file": self.digest,
        }
        written = self.folder / "target.new"
        written.write_text(json.dumps(target))
        written.rename(self.folder / "target.json")

    def _tell(self, door: LinkDoor) -> None:
        written = self.folder / "seen.new"
        seen = {
            "seen": self.seen,
            "pings": self.pings,
            "refusals": dict(door.refusals()),
            "version": VERSION,
        }
        written.write_text(json.dumps(seen))
        written.rename(self.folder / "seen.json")


def run() -> None:
    """Take FOLDER off the command line, then serve."""
    doors = Doors(Path(sys.argv.pop(1)))
    serve = admin.serve._serve

    async def served(
        settings: Settings, drivers: Mapping[str, OpenDriver], engines: Engines
    ) -> None:
        async with asyncio.TaskGroup() as group:
            door = group.create_task(doors.serve(settings.data))
            try:
                await serve(settings, drivers, engines)
            finally:
                door.cancel()

    admin.serve._serve = served
    main()


if __name__ == "__main__":
    run()
