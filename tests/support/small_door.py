"""The server's door for one replica, over the standard library's TLS; the test is the server."""

from __future__ import annotations

import json
import queue
import socket
import ssl
import tempfile
import threading
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from runtime_image.contract.addresses import TlsAddress
from runtime_image.contract.control import ReplicaRecord
from runtime_image.contract.enrolment import (
    GATEWAY_NAME,
    SERVER_NAME,
    Certificate,
    Enrolled,
    Entrance,
    replica_name,
)
from runtime_image.contract.link import Kind
from runtime_image.link.frames import Frame
from runtime_image.link.tls_socket import TlsSocket
from tests.support.blocking import BlockingLink
from tests.support.small_authority import SmallAuthority

HOST = "127.0.0.1"
PATIENCE_S = 60.0


class SmallDoor:
    """Enrols the replica of `record` as often as it asks, and hands out its control links.

    `refuse` is the reason of a FAILED after the next dial-back. `address` stays over `shut`.
    """

    def __init__(self, record: ReplicaRecord, *, token: str = "once", epoch: int = 1) -> None:
        self.record = record
        self.token = token
        self.epoch = epoch
        self.authority = SmallAuthority()
        self.refuse = ""
        self.asked: list[dict[str, Any]] = []
        """Bodies of ENROL."""
        self.address = TlsAddress(HOST, 0)
        self.data = TlsAddress(HOST, 0)
        """Where the replica listens, once it has enrolled."""
        self._links: queue.Queue[tuple[BlockingLink, Frame]] = queue.Queue()
        self._fetches: queue.Queue[tuple[BlockingLink, Frame]] = queue.Queue()
        self._sockets: list[socket.socket] = []
        self._listener: socket.socket | None = None
        self.open()

    def open(self) -> None:
        """Listen."""
        listener = socket.create_server(self.address[:2], backlog=64)
        self._listener = listener
        self.address = TlsAddress(HOST, listener.getsockname()[1])
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def shut(self) -> None:
        """Listen no more; open links stay."""
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
            self._listener.close()
            self._listener = None

    def close(self) -> None:
        """Shut, and close all links."""
        self.shut()
        for sock in self._sockets:
            sock.close()

    def entrance(self) -> Entrance:
        """Return the entrance of the replica."""
        return Entrance(
            server=str(self.address),
            authority=self.authority.pem,
            token=self.token,
            token_file="",
            listen=str(TlsAddress(HOST, 0)),
        )

    def link(self) -> tuple[BlockingLink, dict[str, Any]]:
        """Return the next control link, and its HELLO."""
        link, frame = self._links.get(timeout=PATIENCE_S)
        return link, json.loads(frame.body)

    def fetcher(self) -> tuple[BlockingLink, Frame]:
        """Return the next connection for files, and its first FETCH."""
        return self._fetches.get(timeout=PATIENCE_S)

    def certificate(self) -> Certificate:
        """Return a new certificate of the replica."""
        return self.authority.issue(replica_name(self.record.id), epoch=self.epoch)

    def dial(self, name: str = GATEWAY_NAME, epoch: int | None = None) -> TlsSocket:
        """Connect to the replica as the owner of `name`; the handshake is over."""
        credentials = self.authority.credentials(name, epoch=epoch or self.epoch)
        sock = credentials.dial(self.data._replace(name=replica_name(self.record.id)), PATIENCE_S)
        self._sockets.append(sock)
        return sock

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(cadata=self.authority.pem)
        own = self.authority.issue(SERVER_NAME, epoch=self.epoch)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "pem"
            path.write_text(own["certificate"] + own["key"])
            context.load_cert_chain(path)
        return context

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                sock, _ = listener.accept()
                self._sockets.append(sock)
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with suppress(OSError, EOFError):
            plain.settimeout(PATIENCE_S)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock = self._context().wrap_socket(plain, server_side=True)
            self._sockets.append(sock)
            link = BlockingLink(sock)
            sock.settimeout(PATIENCE_S)
            first = link.next()
            if first.kind is Kind.ENROL:
                self._enrol(link, json.loads(first.body))
                return
            names = [value for _, value in (sock.getpeercert() or {}).get("subjectAltName", ())]
            assert names == [replica_name(self.record.id)]
            (self._links if first.kind is Kind.HELLO else self._fetches).put((link, first))

    def _enrol(self, link: BlockingLink, asked: dict[str, Any]) -> None:
        self.asked.append(asked)
        if asked["token"] != self.token:
            link.send(Kind.FAILED, body=json.dumps({"reason": "an unknown token"}).encode())
            return
        self.data = TlsAddress(HOST, asked["port"])
        record = replace(self.record, data=str(self.data), control=str(self.address))
        answer = Enrolled(**self.certificate(), record=asdict(record))
        link.send(Kind.ENROLLED, body=json.dumps(answer).encode())
        link.next(Kind.ENROLLED)
        greeting = BlockingLink(self.dial()).next(Kind.WELCOME)
        assert greeting.body == record.greeting.encode()
        if self.refuse:
            link.send(Kind.FAILED, body=json.dumps({"reason": self.refuse}).encode())
        else:
            link.send(Kind.WELCOME)
