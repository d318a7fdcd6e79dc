"""The replica's end of a link: a non-blocking socket without asyncio."""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from itertools import groupby, islice

from runtime_image.link.descriptors import ONE, descriptors_of
from runtime_image.link.frames import LARGE, Frame, FrameReader, LinkError, Piece

IOV_MAX = 64
"""Max pieces per write; far below the kernel's limit of 1,024."""


class SocketEnd:
    """Frames over a connected non-blocking socket; the owner calls `receive` and `flush`.

    `send` and `flush` may be called from any thread: queueing a frame is atomic in the interpreter,
    so frames are written whole.
    """

    def __init__(
        self,
        sock: socket.socket,
        reader: FrameReader | None = None,
        *,
        takes_descriptor: bool = False,
    ) -> None:
        """`takes_descriptor`: a descriptor may arrive with the first bytes (SCM_RIGHTS)."""
        sock.setblocking(False)
        self.sock = sock
        self._takes_descriptor = takes_descriptor
        self._descriptor: int | None = None
        self._reader = reader or FrameReader()
        # Pieces queued by `send`, and the views still to be written.
        self._sent: deque[Piece] = deque()
        self._out: deque[memoryview] = deque()
        self._flushing = threading.Lock()

    def receive(self) -> list[Frame] | None:
        """Return the frames that one read completes; None at the end of the stream.

        Raises LinkError when the other side breaks the protocol.
        """
        try:
            if self._takes_descriptor:
                count = self._receive_first()
            else:
                count = self.sock.recv_into(self._reader.buffer())
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            return None
        return self._reader.received(count) if count else None

    def _receive_first(self) -> int:
        count, ancillary, _, _ = self.sock.recvmsg_into(
            [self._reader.buffer()], ONE, socket.MSG_CMSG_CLOEXEC
        )
        self._takes_descriptor = False
        for descriptor in descriptors_of(ancillary):
            self._descriptor = descriptor
        return count

    def take_descriptor(self) -> int | None:
        """Return the descriptor received with the first bytes; the caller closes it."""
        descriptor, self._descriptor = self._descriptor, None
        return descriptor

    @property
    def waiting_bytes(self) -> int:
        """Bytes that are queued or not yet accepted by the socket."""
        return sum(map(len, self._sent)) + sum(map(len, self._out))

    def send(self, pieces: list[Piece]) -> None:
        """Queue a packed frame for the next flush."""
        self._sent.extend(pieces)

    def flush(self) -> bool:
        """Write as much as the socket accepts; return True if nothing is left.

        Raises LinkError if the other side is gone.
        """
        with self._flushing:
            if self._sent:
                self._join()
            return self._write()

    def _join(self) -> None:
        """Join small pieces, because each piece costs kernel time."""
        pieces = [self._sent.popleft() for _ in range(len(self._sent))]
        if max(map(len, pieces)) < LARGE:
            self._out.append(memoryview(b"".join(pieces)))
            return
        for is_small, some in groupby(pieces, lambda piece: len(piece) < LARGE):
            for piece in [b"".join(some)] if is_small else some:
                self._out.append(memoryview(piece))

    def _write(self) -> bool:
        while self._out:
            try:
                sent = self.sock.sendmsg(list(islice(self._out, IOV_MAX)))
            except (BlockingIOError, InterruptedError):
                return False
            except OSError as error:
                self._out.clear()
                raise LinkError(f"cannot write: {error}") from error
            self._drop(sent)
        return True

    def _drop(self, sent: int) -> None:
        while sent:
            piece = self._out[0]
            if len(piece) > sent:
                self._out[0] = piece[sent:]
                return
            sent -= len(piece)
            self._out.popleft()

    def close(self) -> None:
        """Close the socket; frames that were not flushed are lost."""
        with self._flushing:
            self._sent.clear()
            self._out.clear()
            descriptor = self.take_descriptor()
            if descriptor is not None:
                os.close(descriptor)
            self.sock.close()
