"""What a replica proves itself with over TLS, and whom it trusts."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from typing import Any, Final

from runtime_image.contract.addresses import TlsAddress
from runtime_image.contract.enrolment import GATEWAY_NAME, SERVER_NAME, Certificate, epoch_of
from runtime_image.link.frames import LinkError
from runtime_image.link.tls_context import name_of, tls_context
from runtime_image.link.tls_socket import TlsSocket

CLIENTS: Final = (GATEWAY_NAME, SERVER_NAME)
"""Names of the peers that may connect to a replica."""


class Credentials:
    """The authority's certificate, and the certificate and key of this replica once it has them.

    `epoch` is the highest epoch of a peer that was accepted; peers of a lower one are refused.
    Links that are open stay when the certificate is replaced. Thread-safe.
    """

    def __init__(self, authority: str) -> None:
        """`authority` is PEM. Raises LinkError if it is not a certificate."""
        self._authority = authority
        self.epoch = 0
        self._lock = threading.Lock()
        self._client = self._context(None)
        self._server: ssl.SSLContext | None = None

    def replace(self, identity: Certificate) -> None:
        """Use another certificate and key from the next handshake on. Raises LinkError if they are
        not a pair in PEM."""
        server = self._context(identity, is_server=True)
        self._client = self._context(identity)
        self._server = server

    def client(self, sock: socket.socket, name: str = SERVER_NAME) -> TlsSocket:
        """Return the client's end of a connection to the owner of `name`."""
        return TlsSocket(sock, self._client, self._check_epoch, name)

    def server(self, sock: socket.socket) -> TlsSocket:
        """Return the server's end of a connection of the server or a gateway. Raises LinkError
        before the first `replace`."""
        if self._server is None:
            raise LinkError("there is no certificate to listen with")
        return TlsSocket(sock, self._server, self._check_client)

    def dial(self, address: TlsAddress, timeout_s: float) -> TlsSocket:
        """Connect to the server's door, blocking; the handshake is over. The timeout is for all
        of it, and stays that of each later call. Raises OSError with the reason."""
        until_s = time.monotonic() + timeout_s
        sock = socket.create_connection((address.host, address.port), timeout_s)
        try:
            sock.settimeout(max(0.001, until_s - time.monotonic()))
            tls = self.client(sock, address.name or SERVER_NAME)
        except BaseException:
            sock.close()
            raise
        try:
            tls.complete()
            tls.settimeout(timeout_s)
        except BaseException:
            tls.close()
            raise
        return tls

    def _check_client(self, peer: dict[str, Any]) -> None:
        if (name := name_of(peer)) not in CLIENTS:
            got = name[:100]
            raise ConnectionAbortedError(f"expected a peer {' or '.join(CLIENTS)}, got {got!r}")
        self._check_epoch(peer)

    def _check_epoch(self, peer: dict[str, Any]) -> None:
        epoch = epoch_of(int(peer["serialNumber"], 16))
        with self._lock:
            if epoch < self.epoch:
                raise ConnectionAbortedError(
                    f"expected a peer of epoch {self.epoch} or later, got one of {epoch}:"
                    " it is an earlier server, or a copy of one"
                )
            self.epoch = epoch

    def _context(self, identity: Certificate | None, *, is_server: bool = False) -> ssl.SSLContext:
        try:
            return tls_context(self._authority, identity, is_server=is_server)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise LinkError(f"expected certificates and their key as PEM: {error}") from error
