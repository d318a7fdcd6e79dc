"""Addresses at which replicas and their server meet: paths of Unix sockets, or TLS over TCP.

Text that begins with `tls://` is an address of TLS; everything else is a path. Of TLS it is
`tls://HOST:PORT`, with brackets around an IPv6 address, and `tls://HOST:PORT/NAME` where the name
in the other end's certificate is not known otherwise.
"""

from __future__ import annotations

from typing import Final, NamedTuple

TLS: Final = "tls://"
PORT_MAX: Final = 65535


def is_tls(text: str) -> bool:
    """Whether an address is one of TLS, and not a path."""
    return text.startswith(TLS)


class TlsAddress(NamedTuple):
    """Where a peer listens for TLS."""

    host: str
    """Name or number, without brackets; "" for all interfaces, only to listen at."""
    port: int
    name: str = ""
    """Name that the certificate of the peer must have; "" if the caller knows it."""

    @classmethod
    def parse(cls, text: str) -> TlsAddress:
        """Return the address that a text states. Raises ValueError with what was expected."""
        where, _, name = text.removeprefix(TLS).partition("/")
        host, colon, port = where.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            colon = ""
        is_number = port.isascii() and port.isdecimal() and len(port) <= len(str(PORT_MAX))
        if not (is_tls(text) and colon and is_number and int(port) <= PORT_MAX):
            raise ValueError(f"expected {TLS}HOST:PORT, got {text[:100]!r}")
        return cls(host, int(port), name)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{TLS}{host}:{self.port}" + (f"/{self.name}" if self.name else "")
