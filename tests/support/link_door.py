"""A door of links over TLS with replicas of tests, which speak to it over real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from hosts.tls.authority import Authority, Issued
from hosts.tls.door import LinkDoor
from runtime_image.contract.addresses import TlsAddress
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.enrolment import SERVER_NAME, replica_name
from runtime_image.contract.link import VERSION, Kind
from runtime_image.link.frames import Frame, FrameReader, pack

SILENCE_S = 20.0
"""Seconds after which a peer of a test gives up: longer than each limit of the door but one."""
GREETING = "a greeting"
T = TypeVar("T")


def record_of(id: str, address: str = "") -> ReplicaRecord:
    """Return the record of a replica."""
    return ReplicaRecord(
        *(id, f"token of {id}", "serve", "", "", "", (), "cpu", "", 1, 60.0, 0, 0.0, VERSION),
        host="elsewhere",
        data=address,
        greeting=GREETING,
    )


class Admitted:
    """An `Admission`, which remembers what it was asked."""

    def __init__(self, id: str, token: str | None = None) -> None:
        self.id = id
        self.token = f"token of {id}" if token is None else token
        self.enrolled: list[tuple[str, int]] = []
        self.was_enrolled = False
        """Whether an earlier server has enrolled it."""
        self.fault: Exception | None = None
        """What `enrol` raises."""
        self.links: asyncio.Queue[socket.socket] = asyncio.Queue()
        self.files: dict[str, Path] = {}

    @property
    def is_enrolled(self) -> bool:
        return self.was_enrolled or bool(self.enrolled)

    async def enrol(self, host: str, port: int) -> ReplicaRecord:
        self.enrolled.append((host, port))
        if self.fault is not None:
            raise self.fault
        return record_of(self.id, str(TlsAddress(host, port)))

    def connected(self, sock: socket.socket) -> None:
        self.links.put_nowait(sock)

    def file(self, sha256: str) -> Path | None:
        return self.files.get(sha256)


class Scene:
    """An open door on a free port, over the authority in a folder. `offset_s` moves its clock."""

    def __init__(self, folder: Path, epoch: int = 1, port: int = 0) -> None:
        self.offset_s = 0.0
        self.authority = Authority.open(folder / "link", epoch, self.wall)
        self.door = LinkDoor(TlsAddress("127.0.0.1", port), None, self.authority, self.wall)

    def wall(self) -> float:
        return time.time() + self.offset_s

    async def __aenter__(self) -> Scene:
        await self.door.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.door.close()

    def admit(self, id: str = "r1", **changes: Any) -> Admitted:
        """Admit a replica."""
        made = Admitted(id)
        for name, value in changes.items():
            setattr(made, name, value)
        self.door.admit(id, made)
        return made

    def peer(self, issued: Issued | None = None) -> Peer:
        """Return a connection with this certificate, or without one; blocking."""
        return Peer(self.door.address.port, context_of(self.authority.pem, issued))

    def replica(self, id: str = "r1") -> Peer:
        """Return a connection with the certificate of a replica; blocking."""
        return self.peer(self.authority.issue(replica_name(id)))


class Peer:
    """A blocking connection over TLS."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        raw = socket.create_connection(("127.0.0.1", port), SILENCE_S)
        try:
            self.sock = context.wrap_socket(raw, server_hostname=SERVER_NAME)
        except BaseException:
            raw.close()
            raise
        self._reader = FrameReader()
        self._frames: list[Frame] = []

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, kind: Kind, body: object = b"", id: int = 0) -> None:
        """Send a frame; a body that is not bytes is sent as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.sock.sendall(b"".join(pack(kind, id, data)))

    def enrol(self, token: str, port: int, version: Any = VERSION) -> None:
        """Send ENROL."""
        self.send(Kind.ENROL, {"version": version, "token": token, "port": port})

    def fetch(self, sha256: Any, offset: Any = 0, length: Any = 1, id: int = 7) -> None:
        """Send FETCH."""
        self.send(Kind.FETCH, {"sha256": sha256, "offset": offset, "length": length}, id)

    def frame(self) -> Frame | None:
        """Return the next frame, None at the end of the connection, however it came."""
        while not self._frames:
            try:
                count = self.sock.recv_into(self._reader.buffer())
            except (ssl.SSLError, ConnectionError):
                return None
            if not count:
                return None
            self._frames = self._reader.received(count)
        return self._frames.pop(0)

    def answer(self) -> tuple[Kind, Any] | None:
        """Return the next frame with its JSON, None at the end."""
        frame = self.frame()
        return None if frame is None else (frame.kind, json.loads(frame.body or b"null"))


class Listening:
    """What listens where a replica said it would: each connection is given to `serve`, blocking."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._serve = serve
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Listening:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                sock.settimeout(SILENCE_S)
                with sock, suppress(OSError):
                    self._serve(sock)


def greets(
    authority: str, issued: Issued, greeting: str | None = GREETING, *, stays: bool = True
) -> Callable[[socket.socket], None]:
    """Return a server of TLS that wants a client's certificate, greets as a replica (None: does
    not), and stays until the client leaves."""
    context = context_of(authority, issued, ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED

    def serve(sock: socket.socket) -> None:
        with context.wrap_socket(sock, server_side=True) as tls:
            if greeting is not None:
                tls.sendall(b"".join(pack(Kind.WELCOME, body=greeting.encode())))
            while stays and tls.recv(1024):
                pass
            with suppress(OSError):
                tls.unwrap()

    return serve


def context_of(
    authority: str, issued: Issued | None, protocol: Any = ssl.PROTOCOL_TLS_CLIENT
) -> ssl.SSLContext:
    """Return a context of a peer."""
    context = ssl.SSLContext(protocol)
    context.load_verify_locations(cadata=authority)
    if issued is not None:
        descriptor = os.memfd_create("certificate")
        os.write(descriptor, (issued.key + issued.certificate).encode())
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        os.close(descriptor)
    return context


async def blocking(call: Callable[[], T]) -> T:
    """Return what a blocking call returns, while the loop runs."""
    return await asyncio.to_thread(call)
