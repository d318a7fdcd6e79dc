"""asyncio transport over one SSH channel.

asyncssh's channel differs from a transport: it calls the session while it runs `resume_reading`, it
drops what was buffered when the SSH connection breaks and can report that like a clean end, and it
passes a large write to the cipher in one turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

import asyncssh

from hosts.errors import ConnectionLost

PIECE: Final = 32 * 1024
"""Max bytes written in one turn of the loop: OpenSSH's largest packet."""
HIGH: Final = 64 * 1024
LOW: Final = 16 * 1024
"""Marks in bytes of the write buffer, asyncio's defaults."""
Channel = asyncssh.SSHUNIXChannel[bytes] | asyncssh.SSHTCPChannel[bytes]
Buffer = bytes | bytearray | memoryview


class ChannelSession(asyncssh.SSHUNIXSession[bytes]):
    """Callbacks of an asyncssh channel, passed to `transport`.

    An abandoned session closes its channel as soon as the other side has opened it: asyncssh
    forgets a channel whose opening was cancelled, and the other side keeps it.
    """

    def __init__(self, transport: ChannelTransport) -> None:
        self.transport = transport
        self.is_abandoned = False
        self._channel: Channel | None = None

    def abandon(self) -> None:
        """Close the channel now, or when it opens."""
        self.is_abandoned = True
        if self._channel is not None:
            self._channel.abort()

    def connection_made(self, chan: Channel) -> None:
        """Attach the transport, or close the channel (asyncssh callback)."""
        self._channel = chan
        if self.is_abandoned:
            chan.abort()
        else:
            self.transport.attach(chan)

    def data_received(self, data: bytes, datatype: int | None = None) -> None:  # noqa: ARG002
        """Pass on received bytes (asyncssh callback)."""
        self.transport.received(data)

    def eof_received(self) -> bool:
        """Pass on the end of the stream; the channel stays open for writing (asyncssh callback)."""
        self.transport.ended()
        return True

    def pause_writing(self) -> None:
        """Stop writing: SSH's window is full (asyncssh callback)."""
        self.transport.block()

    def resume_writing(self) -> None:
        """Continue to write: SSH's window has room (asyncssh callback)."""
        self.transport.unblock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on the end of the channel (asyncssh callback)."""
        self.transport.lost(exc)


class ChannelTransport(asyncio.Transport):
    """Transport of a Protocol or BufferedProtocol over a channel of `connection`.

    `connection_lost(None)` means that this side closed the transport, or that the other end closed
    it and all its bytes were delivered. Where the SSH connection broke, the exception is a
    ConnectionLost. All callbacks come from the loop, none from within a method, except
    `pause_writing`.
    """

    def __init__(
        self,
        connection: asyncssh.SSHClientConnection,
        protocol: asyncio.BaseProtocol,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(dict(extra or {}))
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._channel: Channel | None = None
        self._is_closing = False
        self._is_over = False
        self.set_protocol(protocol)
        self._queue: deque[memoryview] = deque()
        self._queued = 0
        self._turn_left = PIECE
        self._is_turn_set = False
        self._is_blocked = False
        self._is_writer_paused = False
        self._has_written_eof = False
        self._high, self._low = HIGH, LOW
        self._rest = b""
        self._is_paused = False
        self._has_ended = False
        self._is_end_given = False
        self._is_closed_there = False

    # Channel to transport

    def attach(self, channel: Channel) -> None:
        """Start with an open channel."""
        self._channel = channel
        # Its buffer holds only what the window has no room for, so that its callbacks say exactly
        # when a piece has gone.
        channel.set_write_buffer_limits(0)
        self._call(self._protocol.connection_made, self)

    def received(self, data: bytes) -> None:
        """Deliver bytes, or keep the part after which the protocol paused."""
        if self._is_closing:
            return
        if self._rest or self._is_paused:
            self._rest += data
            if self._channel is not None:  # asyncssh resumes a channel that it has accepted
                self._channel.pause_reading()
        elif self._buffered is None:
            self._call(self._data_received, data)
        else:
            self._call(self._fill, self._buffered, data)

    def ended(self) -> None:
        """Deliver the end of the stream when everything before it is delivered."""
        self._has_ended = True
        self._deliver_end()

    def block(self) -> None:
        """Stop writing to the channel."""
        self._is_blocked = True

    def unblock(self) -> None:
        """Write on in the next turn."""
        self._is_blocked = False
        self._set_turn()

    def lost(self, error: Exception | None) -> None:
        """Report the end of the channel in the next turn.

        Only then it is certain whether the whole connection has ended: asyncssh ends the channels
        first, and without an error if the other side sent a disconnect message.
        """
        self._loop.call_soon(self._lost, error)

    # Reading

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Deliver to `protocol` from now on."""
        self._protocol = protocol
        self._buffered = protocol if isinstance(protocol, asyncio.BufferedProtocol) else None
        self._data_received = getattr(protocol, "data_received", None)
        self._eof_received = getattr(protocol, "eof_received", None)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        return self._protocol

    def is_reading(self) -> bool:
        """Whether received bytes are delivered."""
        return not self._is_paused and not self._is_closing

    def pause_reading(self) -> None:
        """Deliver nothing; the other end can send what the window has room for."""
        if self._is_paused or self._is_closing:
            return
        self._is_paused = True
        if self._channel is not None:
            self._channel.pause_reading()

    def resume_reading(self) -> None:
        """Deliver again, from the next turn on."""
        if self._is_paused and not self._is_closing:
            self._is_paused = False
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._is_paused or self._is_closing:
            return
        rest, self._rest = self._rest, b""
        if rest:
            self.received(rest)
        # The protocol may have paused or closed again in each of these calls.
        if self._channel is not None and self.is_reading():
            self._channel.resume_reading()
        self._deliver_end()
        if self._is_closed_there and self.is_reading():
            self._finish(None)

    def _fill(self, protocol: asyncio.BufferedProtocol, data: bytes) -> None:
        view = memoryview(data)
        while view and not self._is_closing:
            if self._is_paused:
                self._rest = bytes(view)
                return
            # A view that is still held would keep the protocol from growing its buffer.
            with memoryview(protocol.get_buffer(len(view))) as buffer:
                size = min(len(buffer), len(view))
                if not size:
                    raise RuntimeError("get_buffer() returned an empty buffer")
                buffer[:size] = view[:size]
            protocol.buffer_updated(size)
            view = view[size:]

    def _deliver_end(self) -> None:
        if not self._has_ended or self._is_end_given or self._rest or not self.is_reading():
            return
        self._is_end_given = True
        if self._eof_received is None or not self._call(self._eof_received):
            self.close()

    # Writing

    def write(self, data: Buffer) -> None:
        """Send bytes, at most PIECE in one turn of the loop."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"expected bytes, got {type(data).__name__}")
        if self._has_written_eof:
            raise RuntimeError("cannot call write() after write_eof()")
        if self._is_closing or self._is_closed_there or not data:
            return
        if not self._queue and not self._is_blocked and len(data) <= self._turn_left:
            self._turn_left -= len(data)
            self._send(data)
        else:
            view = memoryview(data if isinstance(data, bytes) else bytes(data))
            self._queue.append(view)
            self._queued += len(view)
            self._set_turn()
        self._mark()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Send several pieces of bytes as one."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """Return True."""
        return True

    def write_eof(self) -> None:
        """Send the end of the stream after all that was written."""
        if not self._has_written_eof and not self._is_closing:
            self._has_written_eof = True
            self._wrote()

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that wait here and in the channel."""
        waiting = 0 if self._channel is None else self._channel.get_write_buffer_size()
        return self._queued + waiting

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return the low and the high mark."""
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the marks between which the protocol is paused. Raises ValueError."""
        if high is None:
            high = HIGH if low is None else 4 * low
        if low is None:
            low = high // 4
        if not 0 <= low <= high:
            raise ValueError(f"expected 0 <= low <= high, got low={low} and high={high}")
        self._high, self._low = high, low
        self._mark()

    def _set_turn(self) -> None:
        if not self._is_turn_set:
            self._is_turn_set = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Write a piece; the loop serves the others before the next one."""
        self._is_turn_set = False
        self._turn_left = PIECE
        if self._channel is None:
            return
        if self._queue and not self._is_blocked:
            piece = self._next_piece()
            self._turn_left -= len(piece)
            self._send(piece)
            if self._queue and not self._is_blocked:
                self._set_turn()
        self._mark()
        self._wrote()

    def _next_piece(self) -> Buffer:
        first = self._queue.popleft()
        if len(first) > PIECE:
            self._queue.appendleft(first[PIECE:])
            first = first[:PIECE]
        parts, size = [first], len(first)
        while self._queue and size + len(self._queue[0]) <= PIECE:
            parts.append(self._queue.popleft())
            size += len(parts[-1])
        self._queued -= size
        return first if len(parts) == 1 else b"".join(parts)

    def _send(self, data: Buffer) -> None:
        if self._channel is not None:
            try:
                self._channel.write(data)
            except OSError:  # the channel is closing and reports it in a moment
                self._is_blocked = True

    def _mark(self) -> None:
        """Pause or resume the protocol that writes."""
        size = self.get_write_buffer_size()
        if not self._is_writer_paused and size > self._high:
            self._is_writer_paused = True
            self._call(self._protocol.pause_writing)
        elif self._is_writer_paused and size <= self._low:
            self._is_writer_paused = False
            self._call(self._protocol.resume_writing)

    def _wrote(self) -> None:
        """Send the end of the stream, or close, if everything before it has gone."""
        if self._queue or self._channel is None:
            return
        if self._is_closing:
            if not self._is_blocked:
                self._channel.close()
                self._finish(None)
        elif self._has_written_eof:
            self._channel.write_eof()

    # End

    def is_closing(self) -> bool:
        """Whether the transport is closing or closed."""
        return self._is_closing

    def close(self) -> None:
        """Close after all that was written; nothing more is delivered."""
        if self._is_closing:
            return
        self._is_closing = True
        self._rest = b""
        if self._channel is None:
            self._finish(None)
            return
        # What still arrives is dropped, so that the other end is not stuck in writing.
        self._channel.resume_reading()
        self._set_turn()

    def abort(self) -> None:
        """Close at once; what was not sent is lost."""
        self._end(None)

    def _lost(self, error: Exception | None) -> None:
        if self._is_over:
            return
        if error is not None or self._connection.is_closed():
            self._end(ConnectionLost(f"the SSH connection broke: {error or 'it was closed'}"))
        elif self._is_closing:
            self._end(None)
        else:
            # asyncssh reports no end of the stream if the close came while reading was paused.
            self._channel = None
            self._is_closed_there = self._has_ended = True
            self._drop_queue()
            self._read_on()

    def _end(self, error: Exception | None) -> None:
        self._is_closing = True
        self._rest = b""
        self._drop_queue()
        if self._channel is not None:
            self._channel.abort()
        self._finish(error)

    def _drop_queue(self) -> None:
        self._queue.clear()
        self._queued = 0

    def _finish(self, error: Exception | None) -> None:
        if not self._is_over:
            self._is_over = self._is_closing = True
            self._channel = None
            self._loop.call_soon(self._call, self._protocol.connection_lost, error)

    def _call(self, callback: Any, *arguments: Any) -> Any:
        """Call the protocol. Its error ends the transport, not the SSH connection."""
        try:
            return callback(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever a protocol raises
            self._loop.call_exception_handler(
                {
                    "message": "an asyncio protocol over an SSH channel raised an error",
                    "exception": error,
                    "transport": self,
                    "protocol": self._protocol,
                }
            )
            self._end(error)
            return True
