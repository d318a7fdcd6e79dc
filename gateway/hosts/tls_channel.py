"""A channel that is a TLS connection of its own, as an asyncio transport.

The transports of asyncio and of uvloop over TLS have three properties that a channel must not have.
They report the bare end of TCP, which a dying replica, or anybody on the way, causes, like the end
that the other side has declared (close_notify, RFC 8446 section 6.1). They close both directions
when the other side has ended one. They cannot end one direction themselves. So this transport is
between TCP's and OpenSSL; it is the same over both event loops.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final, cast

from hosts.errors import ConnectionLost

PIECE: Final = 64 * 1024
"""Max bytes that are encrypted in one turn of the loop."""
RECORD: Final = 16 * 1024
"""Max bytes in a record of TLS (RFC 8446 section 5.1)."""
LAST_MAX: Final = 256 * 1024
"""Max bytes that are read from a connection that has failed."""
ANSWERS_MAX: Final = 16 * 1024
"""Max bytes of answers to messages of TLS itself (KeyUpdate), in one turn or while the peer reads
nothing. An answer has 27 bytes, and takes some 30 us."""
CLOSING_S: Final = 10.0
"""Max seconds in which a peer reads what was written before `close`."""
Buffer = bytes | bytearray | memoryview

_received: Final = memoryview(bytearray(64 * 1024))
_plain: Final = memoryview(bytearray(64 * 1024))
"""All channels use these: each is empty again before the loop's next callback."""


class State(Enum):
    """State of a channel."""

    SHAKING = "the handshake is not over"
    OPEN = "open"
    CLOSING = "what was written is still being sent; nothing more is delivered"
    OVER = "over"


class TlsChannel(asyncio.Transport, asyncio.BufferedProtocol):
    """Transport of a Protocol or BufferedProtocol, which is itself the protocol of a TCP transport.

    `connection_lost(None)` means that this side closed the channel, or that the other one has sent
    close_notify, and all that it sent before was delivered. Every other end has a ConnectionLost.
    After close_notify of one side the other one may still send. Backpressure is TCP's: the protocol
    is paused while TCP's buffer is over its limit, or while bytes wait to be encrypted.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        name: str,
        protocol: asyncio.BaseProtocol,
        on_over: Callable[[TlsChannel], None],
    ) -> None:
        """Create it for a peer whose certificate must have `name`. `on_over(self)` is called once,
        at its end."""
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        self._protocol: Any = protocol
        self._is_buffered = isinstance(protocol, asyncio.BufferedProtocol)
        self._on_over = on_over
        self._tcp: asyncio.Transport | None = None
        self._state = State.SHAKING
        self.shaken: asyncio.Future[None] = self._loop.create_future()
        """Done once `protocol` has its transport, or with the OSError why it has none."""
        self._queue: deque[memoryview] = deque()
        """Bytes to be encrypted."""
        self._queued = 0
        self._is_turn_set = False
        self._is_blocked = False
        """Whether TCP's buffer is full."""
        self._is_writer_paused = False
        self._has_written_eof = self._has_sent_end = False
        self._is_paused = False
        self._has_ended = self._is_end_given = False
        """Whether close_notify has arrived; whether the protocol knows it."""
        self._is_cut = False
        """Whether TCP's stream has ended."""
        self._early = b""
        """What was decrypted before this side sent its close_notify, and not delivered."""
        self._closing: asyncio.TimerHandle | None = None
        """Ends what takes longer than CLOSING_S."""

    # TCP's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """TCP is connected: begin the handshake."""
        self._tcp = cast("asyncio.Transport", transport)
        if self._state is State.OVER:
            self._tcp.abort()  # the dial was given up meanwhile
        else:
            self._shake()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the protocol's signature
        """Return the buffer for the next encrypted bytes."""
        return _received

    def buffer_updated(self, nbytes: int) -> None:
        """Decrypt bytes, and deliver them; nothing follows close_notify."""
        if self._state in (State.CLOSING, State.OVER) or self._has_ended:
            return
        self._incoming.write(_received[:nbytes])
        if self._state is State.SHAKING:
            self._shake()
        else:
            self._read()

    def eof_received(self) -> bool:
        """TCP's stream has ended, which alone is no end of the channel."""
        self._is_cut = True
        if self._state is State.SHAKING:
            self._end(ConnectionLost("the connection ended within the handshake"))
        else:
            self._read()
        return True

    def pause_writing(self) -> None:
        """TCP's buffer is full."""
        self._is_blocked = True

    def resume_writing(self) -> None:
        """TCP's buffer has room."""
        self._is_blocked = False
        self._write_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """TCP is closed."""
        if self._state is State.OVER:
            return
        if self._state is State.OPEN:
            self._read_last()
        if self._has_ended or (self._state is State.CLOSING and exc is None):
            self._end(None)
        else:
            self._end(ConnectionLost(f"the connection broke: {exc or 'it was closed'}"))

    # Reading

    def is_reading(self) -> bool:
        """Whether received bytes are delivered."""
        return self._state is State.OPEN and not self._is_paused

    def pause_reading(self) -> None:
        """Deliver nothing; the other end can send what TCP's buffers have room for."""
        if self._tcp is not None and self.is_reading():
            self._is_paused = True
            self._tcp.pause_reading()

    def resume_reading(self) -> None:
        """Deliver again, from the next turn on."""
        if self._is_paused and self._state is State.OPEN:
            self._is_paused = False
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self.is_reading() and self._tcp is not None:
            self._tcp.resume_reading()
            self._read()

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._flush()  # the alert, for the log of the other side
            self._end(error)
            return
        self._flush()
        self._state = State.OPEN
        self._call(self._protocol.connection_made, self)
        if not self.shaken.done():
            self.shaken.set_result(None)
        self._read()

    def _read(self) -> None:
        """Deliver what has arrived, until the protocol pauses, and then the end, if there is one.

        The end comes after the last byte: while reading is paused, a later call finds it.
        """
        error: ssl.SSLError | None = None
        is_more = True
        while is_more and error is None and not self._has_ended and self.is_reading():
            buffer = memoryview(self._protocol.get_buffer(-1)) if self._is_buffered else _plain
            filled, is_more, error = self._decrypt(buffer)
            if not filled:
                break
            if self._is_buffered:
                buffer.release()  # a view that is still held would keep its memory from growing
                self._call(self._protocol.buffer_updated, filled)
            else:
                self._call(self._protocol.data_received, bytes(buffer[:filled]))
        if self._outgoing.pending:
            self._answer()
        if not self.is_reading():
            return
        if error is not None:
            self._end(ConnectionLost(f"not as TLS demands it: {error}"))
        elif self._has_ended:
            self._deliver_end()
        elif self._is_cut:
            self._end(ConnectionLost("the connection ended without close_notify"))

    def _decrypt(self, buffer: memoryview) -> tuple[int, bool, ssl.SSLError | None]:
        """Decrypt into a buffer; return the number of bytes, whether there may be more, and an
        error that came after them."""
        tls, incoming, size, filled = self._tls, self._incoming, len(buffer), 0
        if self._early:
            filled = min(size, len(self._early))
            buffer[:filled], self._early = self._early[:filled], self._early[filled:]
        read: Any = tls.read  # typeshed does not know what it returns with a buffer
        try:
            while filled < size:
                count = read(size - filled, buffer[filled:])
                if not count:
                    raise ssl.SSLZeroReturnError
                filled += count
                # One more call would raise WantRead, which costs more than this question.
                if not incoming.pending and not tls.pending():
                    return filled, False, None
        except ssl.SSLWantReadError:
            return filled, False, None
        except ssl.SSLZeroReturnError:  # raised by `read` itself if this side has sent its own
            self._has_ended = True
            return filled, False, None
        except ssl.SSLError as error:
            return filled, False, error
        return filled, True, None

    def _answer(self) -> None:
        """Send what TLS itself answers to a KeyUpdate (RFC 8446, section 4.6.3)."""
        if self._has_sent_end:
            self._outgoing.read()  # nothing follows close_notify
        elif self._outgoing.pending > ANSWERS_MAX:
            self._end(ConnectionLost("the other side sends too many KeyUpdates"))
        elif not self._is_blocked:
            self._flush()
            self._tell_writer()

    def _deliver_end(self) -> None:
        if not self._is_end_given:
            self._is_end_given = True
            if not self._call(self._protocol.eof_received):
                self.close()

    def _read_last(self) -> None:
        """Read what arrived before a failed write: the event loops read no more after it. A server
        that answers early and closes resets the connection when more of the request arrives."""
        assert self._tcp is not None
        descriptor, left = self._tcp.get_extra_info("socket").fileno(), LAST_MAX
        try:
            while left > 0 and (count := os.readv(descriptor, [_received])):
                left -= count
                self._incoming.write(_received[:count])
        except OSError:
            pass  # there is no more
        self._is_paused = False
        self._read()

    # Writing

    def write(self, data: Buffer) -> None:
        """Send bytes."""
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Send bytes; small ones share a record."""
        if self._has_written_eof:
            raise RuntimeError("cannot write after write_eof()")
        if self._state is not State.OPEN:
            return
        pieces = list(list_of_data)
        size = sum(map(len, pieces))
        if len(pieces) > 1 and size <= RECORD:
            pieces = [b"".join(pieces)]
        self._queue.extend(map(memoryview, pieces))
        self._queued += size
        if not self._is_blocked and not self._is_turn_set:
            self._write_on()

    def write_eof(self) -> None:
        """Send close_notify after what was written; the other end may go on."""
        if self._state is State.OPEN and not self._has_written_eof:
            self._has_written_eof = True
            if not self._is_blocked and not self._is_turn_set:
                self._write_on()

    def can_write_eof(self) -> bool:
        """Whether one direction can be ended."""
        return True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the bytes in TCP's buffer above which the protocol is paused, and resumed."""
        if self._tcp is not None:
            self._tcp.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return the bytes that the kernel has not accepted."""
        return self._queued + (0 if self._tcp is None else self._tcp.get_write_buffer_size())

    def _write_on(self) -> None:
        """Encrypt a piece; the next one in the next turn, if TCP has room."""
        self._is_turn_set = False
        if self._state not in (State.OPEN, State.CLOSING):
            return
        try:
            self._encrypt()
        except ssl.SSLError as error:
            self._end(ConnectionLost(f"it cannot be written: {error}"))
            return
        self._flush()
        if self._queue and not self._is_blocked:
            self._is_turn_set = True
            self._loop.call_soon(self._write_on)
        if self._state is State.OPEN:
            self._tell_writer()
            if self._has_sent_end and self._tcp is not None:
                self._tcp.write_eof()  # what waits for the other side's socket sees the end, too
        elif not self._queue and self._tcp is not None:
            self._tcp.close()

    def _encrypt(self) -> None:
        """Encrypt up to PIECE bytes, and close_notify after the last one."""
        queue, left = self._queue, PIECE
        while queue and left:
            part = queue.popleft()
            if len(part) > left:
                queue.appendleft(part[left:])
                part = part[:left]
            if part:
                self._tls.write(part)
            left -= len(part)
            self._queued -= len(part)
        if not queue and (self._has_written_eof or self._state is State.CLOSING):
            self._send_end()

    def _tell_writer(self) -> None:
        is_full = self._is_blocked or bool(self._queue)
        if is_full is not self._is_writer_paused:
            self._is_writer_paused = is_full
            protocol = self._protocol
            self._call(protocol.pause_writing if is_full else protocol.resume_writing)

    def _send_end(self) -> None:
        """Send close_notify. What has arrived is hidden from OpenSSL meanwhile: `unwrap` also looks
        for the other side's, and takes data before that for an error, decrypted or not."""
        if self._has_sent_end:
            return
        self._has_sent_end = True
        hidden = self._incoming.read()
        if pending := self._tls.pending():
            self._early = self._tls.read(pending)
        try:
            self._tls.unwrap()
        except ssl.SSLWantReadError:
            pass  # the other side has not sent its own
        finally:
            self._incoming.write(hidden)

    def _flush(self) -> None:
        if self._tcp is not None and self._outgoing.pending:
            self._tcp.write(self._outgoing.read())

    # The end

    def is_closing(self) -> bool:
        """Whether the channel is closing or closed."""
        return self._state in (State.CLOSING, State.OVER)

    def close(self) -> None:
        """Close after all that was written; nothing more is delivered."""
        if self._state is State.SHAKING:
            self._end(None)
        elif self._state is State.OPEN:
            self._state = State.CLOSING
            late = ConnectionLost(f"not all was read within {CLOSING_S:g} s of its close")
            self._closing = self._loop.call_later(CLOSING_S, self.fail, late)
            if self._tcp is not None:
                self._tcp.resume_reading()  # dropped, so that the other end is not stuck in writing
            if not self._is_blocked and not self._is_turn_set:
                self._write_on()

    def abort(self) -> None:
        """Close at once; what was not sent is lost."""
        self._end(None)

    def fail(self, error: ConnectionLost) -> None:
        """End as broken."""
        self._end(error)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what TCP's transport knows."""
        return default if self._tcp is None else self._tcp.get_extra_info(name, default)

    def _end(self, error: Exception | None) -> None:
        if self._state is State.OVER:
            return
        is_made = self._state is not State.SHAKING
        self._state = State.OVER
        self._queue.clear()
        self._queued, self._early = 0, b""
        if self._closing is not None:
            self._closing.cancel()
        if self._tcp is not None:
            self._tcp.abort()
        self._on_over(self)
        if is_made:
            self._loop.call_soon(self._call, self._protocol.connection_lost, error)
        elif not self.shaken.done():
            self.shaken.set_exception(error or ConnectionLost("it was closed"))
            self.shaken.exception()  # retrieved: nobody may wait for it any more

    def _call(self, callback: Any, *arguments: Any) -> Any:
        """Call the protocol. Its error ends the channel."""
        try:
            return callback(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever a protocol raises
            context = {"message": "a protocol over TLS raised an error", "exception": error}
            self._loop.call_exception_handler({**context, "transport": self})
            self._end(error)
            return True
