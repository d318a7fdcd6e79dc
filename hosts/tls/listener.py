"""The listener of a door: each connection from its acceptance to its end. In the door's thread
alone."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from typing import Final

import structlog

from hosts.keepalive import KEEPALIVE
from hosts.splice import End, attach
from hosts.tls.admission import ReplicaEntry, ReplicaTable
from hosts.tls.authority import Contexts
from hosts.tls.enrolling import Enrolments
from hosts.tls.limits import Limits, Refusal, Tally
from hosts.tls.peers import (
    Head,
    Peer,
    PeerRefused,
    accept,
    dial,
    explain,
    read_body,
    read_head,
)
from hosts.tls.serving import REQUEST_MAX, FileServing
from registry.files import is_exhausted
from registry.tasks import Tasks
from runtime_image.contract.addresses import TlsAddress
from runtime_image.contract.enrolment import ENROL_MAX, replica_of
from runtime_image.contract.link import Kind
from runtime_image.link.frames import LinkError
from runtime_image.link.handshake_limits import source_of
from runtime_image.link.reception import GREETING_MAX

log = structlog.get_logger()

BACKLOG: Final = 1024
"""Connections that wait in the kernel: as many as are refused in about half a second."""
FIRST_FRAME_S: Final = 5.0
"""Seconds from the handshake to the first frame."""
CONNECTIONS_MAX: Final = 8192
"""Connections at the same time, those of enrolled replicas among them."""
ACCEPTED_MAX: Final = 32
"""Connections that are accepted in one turn of the loop."""
PAUSE_S: Final = 0.02
"""Seconds without accepting after a turn in which one was refused: a flood is refused at 1,600
connections a second at most, which takes a twentieth of a core, and waits in the kernel."""
EXHAUSTED_S: Final = 0.5
"""The same while there are no file descriptors."""
FIRST: Final = {Kind.ENROL: ENROL_MAX, Kind.HELLO: GREETING_MAX, Kind.FETCH: REQUEST_MAX}
"""Max bytes of the body of the first frame, which says what a connection is for."""
_RESET: Final = struct.pack("ii", 1, 0)


class LinkListener:
    """Accepts connections, finds out whose they are, and serves them."""

    def __init__(
        self,
        listener: socket.socket,
        table: ReplicaTable,
        tally: Tally,
        contexts: Contexts,
        enrolments: Enrolments,
        owner: asyncio.AbstractEventLoop,
    ) -> None:
        """`listener` is non-blocking; `owner` is the loop in which admissions are asked."""
        self._listener, self._owner = listener, owner
        self._table, self._contexts, self._enrolments = table, contexts, enrolments
        self._files = FileServing()
        self._loop = asyncio.get_running_loop()
        self._limits = Limits(self._loop.time())
        self._tasks = Tasks("link door", CONNECTIONS_MAX)
        self._tally = tally
        self._links: set[TlsEnd] = set()

    def open(self) -> None:
        """Accept connections from now on."""
        self._loop.add_reader(self._listener.fileno(), self._accept)

    async def close(self, grace_s: float) -> None:
        """Accept no more, and end all connections. Links that the manager has closed are given
        `grace_s` seconds to send what it wrote last."""
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                for end in list(self._links):
                    await end.lost.wait()
        await self._tasks.close()

    def _accept(self) -> None:
        refused = False
        for _ in range(ACCEPTED_MAX):
            try:
                sock, (host, *_) = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                break
            except OSError as error:
                if not is_exhausted(error):
                    log.warning("the door for replicas cannot accept", reason=str(error))
                self._pause(EXHAUSTED_S)
                return
            refused |= not self._begin(sock, host)
        if refused:
            self._pause(PAUSE_S)

    def _begin(self, sock: socket.socket, host: str) -> bool:
        """Begin a connection, or refuse it; return whether it began."""
        source = source_of(host)
        is_known = self._table.has_source(source)
        refusal: Refusal | None = Refusal.FULL
        if len(self._tasks) < CONNECTIONS_MAX:
            refusal = self._limits.begin(source, self._loop.time(), is_known=is_known)
        if refusal is None:
            serving = self._serve_connection(sock, host, source, is_known=is_known)
            self._tasks.spawn(f"connection from {source}", serving)
            return True
        self._count(refusal, "too many connections", host)
        # A reset leaves nothing of the connection in the kernel.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        sock.close()
        return False

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        if self._listener.fileno() >= 0:
            self.open()

    def _count(self, reason: Refusal, text: str, host: str) -> None:
        if self._tally.add(reason):
            count = self._tally.counts[reason]
            log.info("a replica was refused", reason=reason, why=text, peer=host, count=count)

    async def _serve_connection(
        self, sock: socket.socket, host: str, source: str, *, is_known: bool
    ) -> None:
        """Serve one connection until it ends."""
        peer: Peer | None = None
        try:
            try:
                peer = await self._handshake(sock, host)
                first, body = await self._first_frame(peer)
                if first.kind is Kind.ENROL:
                    await self._enrolments.serve(peer, body)
                    return
                entry = self._entry_of(peer)
            finally:
                self._limits.finish(source, is_known=is_known)
            self._table.set_source(entry, source)
            await self._serve(peer, entry, first, body)
        except PeerRefused as error:
            self._count(error.reason, str(error), host)
        except LinkError as error:
            self._count(Refusal.PROTOCOL, str(error), host)
        except OSError:
            pass  # the peer is gone, or too slow
        finally:
            if peer is not None:
                await peer.close()

    async def _handshake(self, sock: socket.socket, host: str) -> Peer:
        try:
            sock.setblocking(False)
            for option in KEEPALIVE:
                sock.setsockopt(*option)
            context = self._contexts.server()
        except BaseException:
            sock.close()
            raise
        return await accept(sock, host, context)

    async def _first_frame(self, peer: Peer) -> tuple[Head, bytes]:
        """Return the first frame; of HELLO the head alone, since the rest is the manager's. Raises
        PeerRefused."""
        try:
            async with asyncio.timeout(FIRST_FRAME_S):
                head = await read_head(peer.reader, FIRST)
                if head is not None:
                    body = b"" if head.kind is Kind.HELLO else await read_body(peer.reader, head)
                    return head, body
        except TimeoutError as error:
            text = f"expected a frame within {FIRST_FRAME_S:g} s"
            raise PeerRefused(Refusal.FIRST_FRAME, text) from error
        except LinkError as error:
            raise PeerRefused(Refusal.FIRST_FRAME, str(error)) from error
        raise PeerRefused(Refusal.FIRST_FRAME, "the peer closed before its first frame")

    def _entry_of(self, peer: Peer) -> ReplicaEntry:
        """Return the replica that a peer has a certificate of. Raises PeerRefused."""
        found = self._table.find(replica_of(peer.name))
        if found is None:
            # Regular after a break: the replica was released meanwhile, and ends.
            got = f"one of {peer.name}" if peer.name else "none"
            text = f"expected a certificate of a replica that may dial in, got {got}"
            raise PeerRefused(Refusal.CERTIFICATE, text)
        return found

    async def _serve(self, peer: Peer, entry: ReplicaEntry, first: Head, body: bytes) -> None:
        entry.add(first.kind, peer, peer.transport.abort)
        try:
            if first.kind is Kind.FETCH:
                await self._files.serve(peer, entry, first, body)
            else:
                await self._splice(peer, entry, first)
        finally:
            entry.remove(first.kind, peer)

    async def _splice(self, peer: Peer, entry: ReplicaEntry, first: Head) -> None:
        """Join a control link with a socket of the manager's until one of both ends."""
        end = TlsEnd(first.data)
        ours = await end.attach(peer)
        self._owner.call_soon_threadsafe(hand_over, entry.admission.connected, ours)
        await self._hold(end)

    async def _hold(self, end: TlsEnd) -> None:
        """Wait for the end of a spliced link."""
        self._links.add(end)
        try:
            await end.lost.wait()
        finally:
            self._links.discard(end)
            end.abort()

    def connect(self, address: TlsAddress, answer: asyncio.Future[socket.socket]) -> None:
        """Dial a replica as the server; `answer`, a future of the owner's loop, gets a socket that
        is joined with the connection, or an OSError."""
        if len(self._tasks) >= CONNECTIONS_MAX:
            error = ConnectionError(f"expected at most {CONNECTIONS_MAX} connections of replicas")
            self._owner.call_soon_threadsafe(_fail, answer, error)
            return
        self._tasks.spawn(f"link to {address.name}", self._connect(address, answer))

    async def _connect(self, address: TlsAddress, answer: asyncio.Future[socket.socket]) -> None:
        end = TlsEnd()
        try:
            peer = await dial(*address[:2], self._contexts.gateway(), address.name)
            ours = await end.attach(peer)
        except OSError as error:
            end.abort()
            text = f"replica at {address}: {explain(error)}"
            self._owner.call_soon_threadsafe(_fail, answer, ConnectionError(text))
            return
        self._owner.call_soon_threadsafe(_succeed, answer, ours)
        await self._hold(end)


def _succeed(answer: asyncio.Future[socket.socket], sock: socket.socket) -> None:
    if answer.done():  # the caller has left
        sock.close()
    else:
        answer.set_result(sock)


def _fail(answer: asyncio.Future[socket.socket], error: OSError) -> None:
    if not answer.done():
        answer.set_exception(error)


class TlsEnd(End):
    """Passes on what a peer sends, and ends with it."""

    def __init__(self, early: bytes = b"") -> None:
        super().__init__(early)
        self.lost = asyncio.Event()
        """Set at the end of the connection."""

    async def attach(self, peer: Peer) -> socket.socket:
        """Take a peer over, after what was received and not read; return the manager's socket,
        non-blocking. Raises OSError."""
        self._early += await peer.hand_over(self)
        return await attach(self)

    def write_eof(self) -> None:
        """End the connection: asyncio's TLS has no half-closes, and the manager, which sends
        nothing more, has closed its socket."""
        self.close()

    def eof_received(self) -> bool:
        """Pass on the end; the transport then closes itself (asyncio callback)."""
        super().eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on the end (asyncio callback)."""
        super().connection_lost(exc)
        self.lost.set()


def hand_over(take: Callable[[socket.socket], None], sock: socket.socket) -> None:
    """Give a socket to its owner, in the owner's loop; it is closed if that fails."""
    try:
        take(sock)
    except BaseException:
        sock.close()
        raise
