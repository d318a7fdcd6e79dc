"""A host whose Unix sockets are reached by TLS, through relays whose connections a test can break
in every way that a network and a dying peer do."""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from registry.exchange import TlsRoute
from runtime_image.contract.addresses import TlsAddress
from runtime_image.contract.enrolment import GATEWAY_NAME, replica_name
from runtime_image.link.tls_socket import TlsSocket
from tests.support.small_authority import SmallAuthority

NAME = replica_name("r1")
_SIZE = 64 * 1024
_DROP = struct.pack("HBBI", 0x06, 0, 0, 0)
"""A program of one instruction that accepts no byte of a packet (linux/filter.h)."""
_ATTACH_FILTER = 26


class TlsFront:
    """One address, with a certificate for NAME, for each Unix socket that `address` was asked for.

    `route`: with which gateways reach it. `accepted`: the number of connections so far.
    `open`: those that have not ended.
    """

    def __init__(self, authority: SmallAuthority | None = None, name: str = NAME) -> None:
        self.authority = authority or SmallAuthority()
        self._credentials = self.authority.credentials(name)
        self.route = route_of(self.authority)
        self.accepted = 0
        self._name = name
        self._listeners: dict[str, socket.socket] = {}
        self.open: set[TlsSocket] = set()
        self._threads: list[threading.Thread] = []

    def address(self, path: str) -> str:
        """Return the address that leads to the Unix socket at `path`."""
        if path not in self._listeners:
            listener = socket.create_server(("127.0.0.1", 0), backlog=128)
            self._listeners[path] = listener
            self._start(self._accept, listener, path)
        host, port = self._listeners[path].getsockname()
        return str(TlsAddress(host, port, self._name))

    def end_tcp(self) -> None:
        """End TCP's streams without close_notify, as the kernel does for a process that dies."""
        for tls in list(self.open):
            with contextlib.suppress(OSError):
                socket.socket.shutdown(tls, socket.SHUT_WR)

    def reset(self) -> None:
        """Reset the connections."""
        for tls in list(self.open):
            reset(tls)

    def fall_silent(self) -> None:
        """Drop every further packet of the other side."""
        for tls in list(self.open):
            drop_packets(tls)

    def close(self) -> None:
        """End everything."""
        for listener in self._listeners.values():
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.reset()
        for thread in self._threads:
            thread.join(20)

    def _start(self, run: object, *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket, path: str) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            self.accepted += 1
            self._start(self._serve, sock, path)

    def _serve(self, sock: socket.socket, path: str) -> None:
        tls = self._credentials.server(sock)
        self.open.add(tls)
        with tls, socket.socket(socket.AF_UNIX) as unix:
            try:
                tls.complete()
                unix.connect(path)
            except OSError:
                self.open.discard(tls)
                return
            back = threading.Thread(target=_relay, args=(unix, tls))
            back.start()
            _relay(tls, unix)
            back.join()
            self.open.discard(tls)


def _relay(source: socket.socket, target: socket.socket) -> None:
    """Pass on bytes and their end; a failure ends both sockets."""
    try:
        while data := source.recv(_SIZE):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def reset(sock: socket.socket) -> None:
    """Reset a TCP connection, at both ends."""
    # To connect a connected socket to nothing resets it (connect(2), AF_UNSPEC).
    ctypes.CDLL(None).connect(sock.fileno(), bytes(16), 16)


def drop_packets(sock: socket.socket) -> None:
    """Drop every packet that comes for a TCP socket from now on, as a cut cable does."""
    instruction = ctypes.create_string_buffer(_DROP)
    program = struct.pack("HxxxxxxP", 1, ctypes.addressof(instruction))
    sock.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)


def route_of(authority: SmallAuthority, epoch: int = 1) -> TlsRoute:
    """Return a gateway's route with a certificate of an authority."""
    identity = authority.issue(GATEWAY_NAME, epoch=epoch)
    return TlsRoute(authority.pem, identity["certificate"], identity["key"], epoch)


@contextmanager
def tls_front() -> Iterator[TlsFront]:
    """A front until the block ends."""
    front = TlsFront()
    try:
        yield front
    finally:
        front.close()
