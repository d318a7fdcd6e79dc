"""Connections with a peer of the door, accepted or dialled, and the frames on them.

Kind and size of a frame are checked before a byte of its body is read, so that an unknown peer
takes no memory. `runtime_image.link.frames` reads long streams of frames fast, with 256 KiB for
each connection.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from hosts.tls.limits import Refusal
from runtime_image.contract.enrolment import ENROL_MAX, FETCH_MAX, Enrol, Fetch
from runtime_image.contract.link import HEADER, SPOKEN, Kind
from runtime_image.link.frames import LinkError, Piece, pack
from runtime_image.link.tls_context import name_of

TLS_SINCE: Final = 11
"""First link version that has links over TLS."""
SHA256_CHARS: Final = 64
HANDSHAKE_S: Final = 5.0
"""Seconds that a TLS handshake may take, with the connection before it."""
CLOSING_S: Final = 2.0
"""Seconds for what was sent, and for close_notify, at the end of a connection."""
READ_AHEAD: Final = 32 * 1024
"""Bytes of a peer that wait to be read; beyond twice this nothing more is received."""


class PeerRefused(Exception):
    """The door ends a connection. The text says what was expected and what came."""

    def __init__(self, reason: Refusal, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Peer:
    """The other end of a connection whose handshake is over."""

    def __init__(
        self, transport: asyncio.Transport, reader: asyncio.StreamReader, host: str
    ) -> None:
        protocol = transport.get_protocol()
        assert isinstance(protocol, asyncio.StreamReaderProtocol)
        self.host = host
        """Its address, without port."""
        self.reader = reader
        self.transport = transport
        self._protocol = protocol
        self.writer = asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
        self.name = name_of(transport.get_extra_info("ssl_object").getpeercert() or {})
        """The name in its certificate, "" if it has none."""

    async def send(self, *frame: Piece) -> None:
        """Send pieces of a frame, and wait while too much waits to be sent. Raises OSError."""
        self.writer.writelines(frame)
        await self.writer.drain()

    async def send_json(self, kind: Kind, body: Any, id: int = 0) -> None:
        """Send a frame with a JSON body. Raises OSError."""
        await self.send(*pack(kind, id, json.dumps(body).encode()))

    async def hand_over(self, protocol: asyncio.Protocol) -> bytes:
        """Give the connection to another protocol; return what was received and not read."""
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        self._protocol.connection_lost(None)
        return await self.reader.read()

    async def close(self) -> None:
        """Close after all that was sent, within CLOSING_S."""
        self.writer.close()
        try:
            async with asyncio.timeout(CLOSING_S):
                await self.writer.wait_closed()
        except (OSError, ssl.SSLError):
            pass
        finally:
            self.transport.abort()


async def accept(sock: socket.socket, host: str, context: ssl.SSLContext) -> Peer:
    """Return the peer of a connection that has come. Takes over `sock`. Raises PeerRefused."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(READ_AHEAD, loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    try:
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol,
            sock,
            ssl=context,
            ssl_handshake_timeout=HANDSHAKE_S,
            ssl_shutdown_timeout=CLOSING_S,
        )
    except asyncio.CancelledError:
        # uvloop closes the descriptor in its next turn. The socket object must not do so, too: the
        # number may be that of another socket by then.
        sock.detach()
        raise
    except OSError as error:  # SSLError among them
        raise PeerRefused(Refusal.HANDSHAKE, explain(error)) from error
    return Peer(transport, reader, host)


async def dial(host: str, port: int, context: ssl.SSLContext, name: str) -> Peer:
    """Return the peer that listens at an address, whose certificate has `name`. Raises OSError."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(READ_AHEAD, loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    async with asyncio.timeout(HANDSHAKE_S):
        transport, _ = await loop.create_connection(
            lambda: protocol,
            host,
            port,
            ssl=context,
            server_hostname=name,
            ssl_handshake_timeout=HANDSHAKE_S,
            ssl_shutdown_timeout=CLOSING_S,
        )
    return Peer(transport, reader, host)


def explain(error: OSError) -> str:
    """Return what an error of a connection says, in one line."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate is refused: {error.verify_message}"
        case ssl.SSLError():
            return (error.reason or "broken TLS").replace("_", " ").lower()
        case TimeoutError() if error.errno is None:
            return f"no TLS handshake within {HANDSHAKE_S:g} s"
        case _:
            return error.strerror or str(error) or "the peer has closed it"


class Head(NamedTuple):
    """Head of a frame whose body is still to be read."""

    kind: Kind
    id: int
    size: int
    """Bytes of the body."""
    data: bytes
    """The head itself."""


def check_head(data: bytes, sizes: Mapping[Kind, int]) -> Head:
    """Return the head of a frame. `sizes` are the kinds that may come, and the max bytes of their
    bodies. Raises LinkError."""
    size, id, kind, _flags, meta, _aux = HEADER.unpack(data)
    if kind not in sizes:
        expected = ", ".join(one.name for one in sizes)
        got = Kind(kind).name if kind in Kind.__members__.values() else f"kind {kind}"
        raise LinkError(f"expected {expected}, got {got}")
    found = Kind(kind)
    if size > sizes[found] or meta:
        raise LinkError(
            f"{found.name}: expected a body of at most {sizes[found]} bytes without meta, got"
            f" {size} bytes with {meta} of meta"
        )
    return Head(found, id, size, data)


async def read_head(reader: asyncio.StreamReader, sizes: Mapping[Kind, int]) -> Head | None:
    """Return the next head, None at the end of the stream. Raises LinkError as `check_head`, and
    for an end within a head."""
    try:
        return check_head(await reader.readexactly(HEADER.size), sizes)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise LinkError("the connection ended within a frame") from error
        return None


async def read_body(reader: asyncio.StreamReader, head: Head) -> bytes:
    """Return the body of a frame. Raises LinkError at the end of the stream."""
    try:
        return await reader.readexactly(head.size)
    except asyncio.IncompleteReadError as error:
        raise LinkError("the connection ended within a frame") from error


def parse_enrol(body: bytes) -> Enrol:
    """Return the content of ENROL. Raises LinkError with expected and actual value."""
    data = _object("ENROL", body)
    version, token, port = data.get("version"), data.get("token"), data.get("port")
    if type(version) is not int or version not in SPOKEN or version < TLS_SINCE:
        raise LinkError(
            f"ENROL: expected link version {TLS_SINCE} to {SPOKEN[-1]}, got {str(version)[:20]}:"
            " run the replica from the same release as the server"
        )
    if not isinstance(token, str) or len(token) > ENROL_MAX:
        raise LinkError("ENROL: expected text as token")
    if type(port) is not int or not 0 < port < 65536:
        raise LinkError(f"ENROL: expected a port of 1 to 65535, got {str(port)[:20]}")
    return Enrol(version=version, token=token, port=port)


def parse_fetch(body: bytes) -> Fetch:
    """Return the content of FETCH. Raises LinkError with expected and actual value."""
    data = _object("FETCH", body)
    sha256, offset, length = data.get("sha256"), data.get("offset"), data.get("length")
    if not (isinstance(sha256, str) and len(sha256) == SHA256_CHARS and sha256.isascii()):
        raise LinkError("FETCH: expected 64 hexadecimal digits as sha256")
    if type(offset) is not int or not 0 <= offset < 2**63:
        raise LinkError(f"FETCH: expected an offset of 0 or more, got {str(offset)[:20]}")
    if type(length) is not int or not 0 < length <= FETCH_MAX:
        raise LinkError(f"FETCH: expected a length of 1 to {FETCH_MAX}, got {str(length)[:20]}")
    return Fetch(sha256=sha256, offset=offset, length=length)


def _object(kind: str, body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise LinkError(f"{kind}: expected JSON: {str(error)[:100]}") from error
    if not isinstance(data, dict):
        raise LinkError(f"{kind}: expected an object")
    return data
