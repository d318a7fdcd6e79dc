"""Who listens at an address of this machine, by Linux's tables of TCP sockets (proc(5)).

Any user may listen on a free port. What has rights must not be sent there before it is known that
the listener is one who has them anyway.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Collection, Iterable, Iterator
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Final, NamedTuple

from hosts.errors import Unreachable

ROOT: Final = 0
TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
LISTENS: Final = "0A"
_LINE: Final = re.compile(
    r" *[0-9]+: ([0-9A-F]+):([0-9A-F]{4}) ([0-9A-F]+):([0-9A-F]{4}) ([0-9A-F]{2})"
    r" [0-9A-F:]+ [0-9A-F:]+ [0-9A-F]+ +([0-9]+)"
)

Address = tuple[IPv6Address, int]
"""An IP address, with IPv4 mapped into IPv6 (RFC 4291, section 2.5.5.2), and a port."""


class Socket(NamedTuple):
    """A TCP socket of a table. `uid`: the user who made it; 0 for a connection that its listener
    has not accepted yet."""

    local: Address
    remote: Address
    is_listening: bool
    uid: int


def read_sockets(lines: Iterable[str], port: int | None = None) -> Iterator[Socket]:
    """Yield the sockets of a table, in its order: those that listen first.

    With `port` only those whose own port it is: a table may have tens of thousands of others.
    """
    own = None if port is None else f"{port:04X}"
    for line in lines:
        found = _LINE.match(line)
        if found is not None and own in (None, found[2]):
            local, remote = (found[1], found[2]), (found[3], found[4])
            yield Socket(_address(*local), _address(*remote), found[5] == LISTENS, int(found[6]))


def check_peer(
    sockets: Iterable[Socket],
    server: Address,
    client: Address | None,
    allowed: Collection[int],
) -> str:
    """Return why the server of a connection from `client` must not be trusted, "" if it may be.

    The users of all sockets that listen at the address must be `allowed`, and so must the user of
    the accepted socket: a program that listened when the connection began has accepted it by now,
    still listens, or has reset it. Without a `client` only listening sockets are looked at.
    """
    is_seen = False
    for one in sockets:
        listens = (
            one.is_listening and one.local[1] == server[1] and _covers(one.local[0], server[0])
        )
        if not listens and (one.local, one.remote) != (server, client):
            continue
        is_seen = True
        if one.uid not in allowed:
            return f"user {one.uid} listens there"
    return "" if is_seen else "nobody of this machine is seen to listen there"


def check_server(connection: socket.socket, owner: int) -> None:
    """Raise Unreachable unless a connection to this machine's loopback interface leads to this
    user, to root, or to user `owner`, who has what is to be sent."""
    server, client = (
        _mapped(*name()[:2]) for name in (connection.getpeername, connection.getsockname)
    )
    shown = f"{server[0].ipv4_mapped or server[0]} port {server[1]}"
    try:
        why = check_peer(_read(TABLES, server[1]), server, client, {os.getuid(), ROOT, owner})
    except OSError as error:
        why = f"who listens there cannot be read ({error})"
    if why:
        refused = Unreachable(f"the admin token was not sent to {shown}: {why}")
        refused.add_note(
            "start your server, or set --url; to send a key anyway, give --key or FN_KEY"
        )
        raise refused


def _read(tables: Iterable[Path], port: int) -> Iterator[Socket]:
    """Yield the sockets of this network namespace whose own port is `port`. Raises OSError; IPv6
    may be missing."""
    for number, path in enumerate(tables):
        if number and not path.exists():
            continue
        with path.open(encoding="ascii") as lines:
            yield from read_sockets(lines, port)


def _covers(listening: IPv6Address, address: IPv6Address) -> bool:
    """Return whether a listener at an address gets connections to another one."""
    mapped = listening.ipv4_mapped
    is_any = int(listening) == 0 or (mapped is not None and int(mapped) == 0)
    return is_any or listening == address


def _address(hexadecimal: str, port: str) -> Address:
    """Return an address of a table, which has words of 32 bits in the machine's byte order."""
    words = [hexadecimal[at : at + 8] for at in range(0, len(hexadecimal), 8)]
    packed = b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in words)
    return _mapped(str(ip_address(packed)), int(port, 16))


def loopback_address(host: str, port: int) -> Address:
    """Return an address of the loopback interface; of a name that of IPv4."""
    return _mapped("127.0.0.1" if host == "localhost" else host, port)


def _mapped(text: str, port: int) -> Address:
    address = ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address):
        return address, port
    return IPv6Address(f"::ffff:{address}"), port
