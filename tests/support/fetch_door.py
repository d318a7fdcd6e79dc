"""A server of files by digest, over real TLS, that breaks, lies or refuses as a test says."""

from __future__ import annotations

import hashlib
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from runtime_image.contract.enrolment import FETCH_MAX, SERVER_NAME, Fetch, FetchedFile
from runtime_image.contract.link import Kind
from runtime_image.contract.model import PART_MAX
from runtime_image.link.frames import FrameReader, pack

Ending = Literal["notify", "fin", "reset"]
"""How a connection ends: with TLS's close_notify, without it, or by a reset."""
Answer = Callable[[int, Fetch], Iterator[bytes]]
"""Returns the bytes that answer a FETCH, by its id."""
_LINGER: bytes = struct.pack("ii", 1, 0)
DIAL_S = 10.0


class FetchDoor:
    """The server, from `open` to `close`. `answer` may be replaced; `cuts` are the bytes after
    which connections end, by their number from 0."""

    def __init__(self, folder: Path) -> None:
        """`folder` is an empty one for its certificate."""
        self.files: dict[str, bytes] = {}
        self.fetches: list[Fetch] = []
        self.cuts: dict[int, int] = {}
        self.ending: Ending = "fin"
        self.answer: Answer = self.parts_and_end
        self.dials = 0
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._server, self._client = _contexts(folder)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def add(self, path: str, content: bytes) -> FetchedFile:
        """Have a file, and return it as BIND names it."""
        sha256 = hashlib.sha256(content).hexdigest()
        self.files[sha256] = content
        return {"path": path, "size": len(content), "sha256": sha256}

    def dial(self) -> ssl.SSLSocket:
        """Return a connection, as a replica's credentials make it."""
        sock = socket.create_connection(self._listener.getsockname(), DIAL_S)
        try:
            return self._client.wrap_socket(sock, server_hostname=SERVER_NAME)
        except BaseException:
            sock.close()
            raise

    def parts_and_end(self, id: int, fetch: Fetch) -> Iterator[bytes]:
        """Answer as the real door does."""
        content = self.files[fetch["sha256"]]
        end = fetch["offset"] + fetch["length"]
        for at in range(fetch["offset"], end, PART_MAX):
            yield b"".join(pack(Kind.PART, id, content[at : min(at + PART_MAX, end)]))
        yield b"".join(pack(Kind.END, id))

    def close(self) -> None:
        """End everything."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        with self._lock:
            for sock in self._sockets:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                number, self.dials = self.dials, self.dials + 1
                self._sockets.append(sock)
                thread = threading.Thread(target=self._serve, args=(number, sock))
                self._threads.append(thread)
            thread.start()

    def _serve(self, number: int, sock: socket.socket) -> None:
        with sock, suppress(OSError):
            self._converse(number, sock)

    def _converse(self, number: int, sock: socket.socket) -> None:
        left = self.cuts.get(number)
        if left is not None and left < 0:  # before the handshake
            return
        with self._server.wrap_socket(sock, server_side=True) as secure:
            reader = FrameReader()
            while count := secure.recv_into(reader.buffer()):
                for frame in reader.received(count):
                    assert frame.kind is Kind.FETCH
                    fetch: Fetch = json.loads(frame.body)
                    assert 0 < fetch["length"] <= FETCH_MAX
                    with self._lock:
                        self.fetches.append(fetch)
                    for piece in self.answer(frame.id, fetch):
                        if left is None:
                            secure.sendall(piece)
                            continue
                        secure.sendall(piece[:left])
                        left -= min(left, len(piece))
                        if not left:
                            self._end(secure)
                            return

    def _end(self, secure: ssl.SSLSocket) -> None:
        secure.settimeout(DIAL_S)
        if self.ending == "notify":
            secure.unwrap().close()
        elif self.ending == "fin":
            secure.shutdown(socket.SHUT_WR)
            while secure.recv(1024):  # a socket that is closed with unread bytes sends a reset
                pass
        else:
            secure.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)


def _contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the contexts of server and client; the certificate is the server's own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    file = folder / "door.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file.write_bytes(secret + pem)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.minimum_version = ssl.TLSVersion.TLSv1_3
    server.load_cert_chain(file)
    client = ssl.create_default_context(cadata=pem.decode())
    client.minimum_version = ssl.TLSVersion.TLSv1_3
    return server, client
