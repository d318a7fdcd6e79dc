"""A socket whose bytes travel over TLS 1.3 (RFC 8446), as `SocketEnd` and its like use sockets.

OpenSSL works on memory here and this class moves the records, because Python's `ssl.SSLSocket` can
neither be read and written by two threads nor end one direction alone.
"""

from __future__ import annotations

import contextlib
import errno
import select
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

RECEIVE_SIZE: Final = 64 * 1024
"""Max bytes of records read from the kernel at once."""
PULLS_MAX: Final = 16
"""Max reads from the kernel in one call: a peer that sends nothing but messages of TLS itself does
not hold up a loop."""
WRITE_MAX: Final = 128 * 1024
"""Max bytes that one write takes. Their records are kept until the kernel has them."""
ANSWERS_MAX: Final = 16 * 1024
"""Max bytes of answers to messages of TLS itself (KeyUpdate) that the peer does not read."""
SILENCE_S: Final = 10
PROBE_S: Final = 10
PROBES: Final = 4
"""A peer that has been silent for SILENCE_S, and owes nothing, is asked every PROBE_S for a sign of
life (tcp(7), keepalive); after PROBES without one the connection is broken. Of one that owes an
acknowledgement `tcp_state.is_silent` tells."""

Result = TypeVar("Result")
PeerCheck = Callable[[dict[str, Any]], None]
"""Receives the peer's certificate, as `ssl.SSLSocket.getpeercert` returns it, after its chain was
verified. Raises OSError if this peer is refused."""


class _WantsWriteError(BlockingIOError):
    """The kernel takes no more bytes for now."""


class TlsSocket(socket.socket):
    """One end of a connection over TLS.

    A read returns 0 bytes only after the peer's close_notify; a stream that ends without it raises
    ConnectionResetError. Reads, writes and `shutdown` do what is left of the handshake first.
    Non-blocking, a call that cannot go on raises BlockingIOError, and a write is then repeated with
    the same bytes first. One thread may read while others write, which take turns.

    A selector does not see bytes that were decrypted and not yet read: ask `pending`.
    """

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext, check: PeerCheck, name: str = ""
    ) -> None:
        """Take over a connected socket, as it is blocking or has a timeout.

        `name` is the DNS name that a server's certificate must have; "" for the server's end.
        """
        self._timeout_s = sock.gettimeout()
        super().__init__(fileno=sock.detach())
        super().settimeout(0)
        self._set_options()
        self._check = check
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=not name, server_hostname=name or None
        )
        self._lock = threading.Lock()
        self._is_open = False
        """Whether the handshake is over and the peer accepted."""
        self._is_ended = False
        """Whether this end has sent close_notify."""
        self._records = memoryview(b"")
        """Records taken from `_outgoing` that the kernel has not taken."""
        self._taken = 0
        """Bytes of the last write whose records are not all with the kernel; to be repeated."""
        self._early = bytearray()
        """Bytes decrypted before they were asked for."""
        self._may_have_more = False
        """Whether the kernel may have more bytes than the last read from it returned."""
        self._is_end_due = False
        """Whether the next read ends or fails at once: what came before the end was read first."""
        self._pending = 0

    def _set_options(self) -> None:
        if self.family == socket.AF_UNIX:
            return
        options = (
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE_S),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_S),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES),
        )
        with contextlib.suppress(OSError):  # the peer is gone: the handshake says so
            for level, option, value in options:
                self.setsockopt(level, option, value)

    # Waiting

    def settimeout(self, value: float | None, /) -> None:
        """As of any socket; the socket of the kernel stays non-blocking."""
        self._timeout_s = value

    def setblocking(self, flag: bool, /) -> None:
        """As of any socket."""
        self._timeout_s = None if flag else 0.0

    def gettimeout(self) -> float | None:
        """As of any socket."""
        return self._timeout_s

    def getblocking(self) -> bool:
        """As of any socket."""
        return self._timeout_s != 0

    def _attempt(self, step: Callable[[], Result], until_s: float | None = None) -> Result:
        """Repeat `step` under the lock until it does not block, or the time is over."""
        if until_s is None and self._timeout_s:
            until_s = time.monotonic() + self._timeout_s
        while True:
            try:
                with self._lock:
                    return step()
            except BlockingIOError as error:
                if self._timeout_s == 0:
                    raise
                poll = select.poll()
                is_write = isinstance(error, _WantsWriteError)
                poll.register(self.fileno(), select.POLLOUT if is_write else select.POLLIN)
            left_ms = None if until_s is None else max(0.0, until_s - time.monotonic()) * 1e3
            if not poll.poll(left_ms):
                raise TimeoutError("timed out")

    # Records

    def _pull(self) -> None:
        """Read records from the kernel. Raises BlockingIOError if there are none."""
        data = super().recv(RECEIVE_SIZE)
        self._may_have_more = len(data) == RECEIVE_SIZE
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def _push(self) -> None:
        """Write all records. Raises `_WantsWriteError` when the kernel takes no more."""
        while self._records or self._outgoing.pending:
            if not self._records:
                self._records = memoryview(self._outgoing.read())
            try:
                self._records = self._records[super().send(self._records) :]
            except BlockingIOError as error:
                raise _WantsWriteError(*error.args) from None

    def _answer(self) -> None:
        """Write what TLS itself has to say, as far as that is possible now."""
        with contextlib.suppress(BlockingIOError):
            self._push()
        if self._outgoing.pending > ANSWERS_MAX:
            raise ConnectionAbortedError("the peer reads no answers")

    # The handshake

    def handshake(self) -> int:
        """Go on with the handshake, non-blocking. Return 0 if it is over, else the event of
        `selectors` after which to call again. Raises OSError with the reason if it failed."""
        try:
            with self._lock:
                self._shake()
        except _WantsWriteError:
            return selectors.EVENT_WRITE
        except BlockingIOError:
            return selectors.EVENT_READ
        return 0

    def complete(self) -> None:
        """Do what is left of the handshake, as blocking as the socket is. Raises OSError."""
        self._attempt(self._shake)

    def _shake(self) -> None:
        if self._is_open:
            return
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._push()
                self._pull()
            except OSError:
                with contextlib.suppress(OSError):
                    self._push()  # the alert, which tells the peer why
                raise
            else:
                break
        self._push()
        self._check(self._tls.getpeercert() or {})
        self._is_open = True
        self._pending = self._incoming.pending  # what came with the peer's last message

    def peer(self) -> dict[str, Any]:
        """Return the peer's certificate as `ssl.SSLSocket.getpeercert` does; empty without one."""
        return self._tls.getpeercert() or {}

    # Reading

    def pending(self) -> int:
        """Return how many bytes, as records or decrypted, a read may find without the kernel. The
        end of the stream, or the error in its place, counts as one until a read has told it."""
        return self._pending

    def _read(self, view: memoryview) -> int:
        """Fill a view as far as possible; return the bytes, 0 after close_notify."""
        self._shake()
        filled = 0
        if self._early:
            filled = min(len(view), len(self._early))
            view[:filled] = self._early[:filled]
            del self._early[:filled]
        self._is_end_due = False
        try:
            filled += self._decrypt(view[filled:], is_begun=filled > 0)
        finally:
            self._count_pending()
        return filled

    def _count_pending(self) -> None:
        records = self._tls.pending() + self._incoming.pending
        self._pending = len(self._early) + records + self._is_end_due

    def _decrypt(self, view: memoryview, *, is_begun: bool) -> int:
        """Decrypt into a view what there is; `is_begun`: something was read before it, so that
        nothing more is not an error."""
        filled = pulls = 0
        while filled < len(view):
            is_begun = is_begun or filled > 0
            try:
                count = self._take(view[filled:])
                if not count:
                    self._is_end_due = is_begun
                    break
                filled += count
            except ssl.SSLWantReadError:
                self._answer()
                # A short read has emptied the kernel's buffer; a selector tells of what follows.
                if is_begun and not self._may_have_more:
                    break
                try:
                    self._pull_again(pulls)
                    pulls += 1
                except BlockingIOError:
                    if not is_begun:
                        raise
                    break
            except OSError:
                if not is_begun:
                    raise
                self._is_end_due = True  # what came is whole; the next read raises again
                break
        return filled

    def _pull_again(self, pulls: int) -> None:
        """Read records from the kernel, unless this was done PULLS_MAX times in the same call."""
        if pulls >= PULLS_MAX:
            raise BlockingIOError(errno.EAGAIN, "others have their turn")
        self._pull()

    def _take(self, view: memoryview) -> int:
        """Decrypt one record, or a part of it; return its bytes, 0 after close_notify."""
        try:
            return cast("int", self._tls.read(len(view), view))
        except ssl.SSLZeroReturnError:
            return 0
        except ssl.SSLEOFError as error:
            raise ConnectionResetError("the stream ended without close_notify") from error

    def recv_into(self, buffer: WriteableBuffer, nbytes: int = 0, flags: int = 0, /) -> int:
        """As of any socket, without flags."""
        _refuse(flags)
        view = memoryview(buffer).cast("B")
        return self._attempt(lambda: self._read(view[:nbytes] if nbytes else view))

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        """As of any socket, without flags."""
        buffer = bytearray(bufsize)
        return bytes(memoryview(buffer)[: self.recv_into(buffer, 0, flags)])

    # The signatures are those of any socket.
    # ruff: noqa: ARG002

    def recvmsg(
        self, bufsize: int, ancbufsize: int = 0, flags: int = 0, /
    ) -> tuple[bytes, list[tuple[int, int, bytes]], int, Any]:
        """As of any socket; never brings descriptors."""
        return self.recv(bufsize), [], 0, None

    def recvmsg_into(
        self, buffers: Iterable[WriteableBuffer], ancbufsize: int = 0, flags: int = 0, /
    ) -> tuple[int, list[tuple[int, int, bytes]], int, Any]:
        """As of any socket, into the first buffer; never brings descriptors."""
        return self.recv_into(next(iter(buffers))), [], 0, None

    # Writing

    def _write(self, buffers: Iterable[ReadableBuffer]) -> int:
        """Encrypt up to WRITE_MAX bytes and write their records; return the bytes."""
        self._shake()
        if self._is_ended:
            raise BrokenPipeError("this direction has ended")
        self._push()
        if not self._taken:
            for buffer in buffers:
                view = memoryview(buffer).cast("B")[: WRITE_MAX - self._taken]
                if view:
                    self._taken += self._tls.write(view)
            self._push()
        taken, self._taken = self._taken, 0
        return taken

    def sendmsg(
        self,
        buffers: Iterable[ReadableBuffer],
        ancdata: Iterable[Any] = (),
        flags: int = 0,
        address: Any = None,
        /,
    ) -> int:
        """As of any socket; takes neither descriptors nor flags."""
        if ancdata or address:
            raise ValueError("descriptors and addresses cannot be sent over TLS")
        _refuse(flags)
        pieces = list(buffers)
        return self._attempt(lambda: self._write(pieces))

    def send(self, data: ReadableBuffer, flags: int = 0, /) -> int:
        """As of any socket, without flags."""
        return self.sendmsg([data], (), flags)

    def sendall(self, data: ReadableBuffer, flags: int = 0, /) -> None:
        """As of any socket, without flags."""
        _refuse(flags)
        until_s = time.monotonic() + self._timeout_s if self._timeout_s else None
        view = memoryview(data).cast("B")
        while view:
            view = view[self._attempt(partial(self._write, [view]), until_s) :]

    # The end

    def shutdown(self, how: int, /) -> None:
        """SHUT_WR: end this direction by close_notify; the other one goes on. Anything else breaks
        both off. Raises BlockingIOError if close_notify is to be sent later: call again."""
        if how == socket.SHUT_WR:
            self._attempt(self._end)
        else:
            super().shutdown(how)

    def _end(self) -> None:
        self._shake()
        self._push()
        if not self._is_ended:
            self._save_early()
            # It sends close_notify, and then finds no record of the peer.
            with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLSyscallError):
                self._tls.unwrap()
            self._is_ended = True
        self._push()
        super().shutdown(socket.SHUT_WR)

    def _save_early(self) -> None:
        """Decrypt what has been read: OpenSSL fails if it meets data when it ends a direction."""
        buffer = bytearray(RECEIVE_SIZE)
        with contextlib.suppress(ssl.SSLWantReadError, ConnectionResetError):
            while count := self._take(memoryview(buffer)):
                self._early += memoryview(buffer)[:count]
            self._is_end_due = bool(self._early)
        self._count_pending()


def _refuse(flags: int) -> None:
    if flags:
        raise ValueError(f"expected no flags, got {flags}")
