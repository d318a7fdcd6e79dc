"""The replica's end of a link: a non-blocking socket without an event loop's machinery."""

from __future__ import annotations

import socket
from collections import deque
from itertools import islice

from runtime_image.link.frames import Frame, FrameReader, LinkError

IOV_MAX = 64
"""Pieces per write; far below the kernel's limit of 1,024."""


class SocketEnd:
    """Frames over a connected non-blocking socket. The owner says when to receive and to flush."""

    def __init__(self, sock: socket.socket, reader: FrameReader | None = None) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._reader = reader or FrameReader()
        self._out: deque[memoryview] = deque()

    def receive(self) -> list[Frame] | None:
        """The frames one read completes; None at the end of the stream.

        Raises LinkError when the other side breaks the protocol.
        """
        try:
            count = self.sock.recv_into(self._reader.buffer())
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            return None
        return self._reader.received(count) if count else None

    def send(self, pieces: list[bytes | bytearray | memoryview]) -> None:
        """Queue a packed frame for the next flush."""
        self._out.extend(memoryview(piece) for piece in pieces if len(piece))

    def flush(self) -> bool:
        """Write as much as the socket takes; True when nothing is left.

        Raises LinkError when the other side is gone.
        """
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
        """Close the socket; what was not flushed is lost."""
        self._out.clear()
        self.sock.close()
