"""Frames to bytes and bytes to frames. No I/O, no clock.

Received bytes land where `FrameReader.buffer()` says: small frames are cut from one scratch
buffer, a large body is received straight into its final place, so that it is copied once at most.
"""

from __future__ import annotations

from typing import NamedTuple

from runtime_image.contract.link import BODY_MAX, HEADER, Flag, Kind

SCRATCH_SIZE = 256 * 1024
LARGE = 64 * 1024
"""Bytes from which a frame gets a buffer of its own."""
GROWTH = 1024 * 1024
"""Bytes by which that buffer grows as they come: a header alone must not reserve memory."""
SKIPPED_MAX = 1000
"""Unknown optional frames that one stream may hold."""

_HEADER_SIZE = HEADER.size
_ZEROS = bytes(GROWTH)
_KINDS = {int(kind): kind for kind in Kind}


class LinkError(Exception):
    """The other side broke the protocol, or the connection is gone. The text says how."""


class Frame(NamedTuple):
    """One frame. `meta` and `body` are the receiver's own copies."""

    kind: Kind
    flags: int
    id: int
    aux: int
    meta: bytes
    body: bytes | bytearray


def pack(
    kind: Kind,
    id: int = 0,
    body: bytes | bytearray | memoryview = b"",
    *,
    meta: bytes = b"",
    flags: int = 0,
    aux: int = 0,
) -> list[bytes | bytearray | memoryview]:
    """One frame as pieces to write in order; a large body stays a piece of its own."""
    head = HEADER.pack(len(body), id, kind, flags, len(meta), aux) + meta
    if len(body) < LARGE:
        return [head + body]
    return [head, body]


class FrameReader:
    """Cuts a byte stream into frames.

    Unknown kinds with the OPTIONAL flag are skipped, without it they raise LinkError, as does a
    body over `body_max`. After an error the stream cannot be read further. What a large body takes
    is what has come of it and at most GROWTH more.
    """

    def __init__(self, body_max: int = BODY_MAX) -> None:
        self._body_max = body_max
        self._scratch = bytearray(SCRATCH_SIZE)
        self._view = memoryview(self._scratch)
        self._start = 0
        self._end = 0
        self._large: bytearray | None = None
        self._large_head = Frame(Kind.PING, 0, 0, 0, b"", b"")
        self._large_size = 0
        self._room = self._view[:0]
        self._filled = 0
        self._skipped = 0

    def buffer(self) -> memoryview:
        """Where the next bytes are to be received; never empty, and valid until the next call."""
        if self._large is not None:
            if self._filled == len(self._large):
                self._room.release()  # what somebody has a view of cannot grow
                self._large += _ZEROS[: self._large_size - self._filled]
            self._room = memoryview(self._large)[self._filled :]
            return self._room
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end > SCRATCH_SIZE - _HEADER_SIZE or self._start > SCRATCH_SIZE // 2:
            rest = self._end - self._start
            self._scratch[:rest] = bytes(self._view[self._start : self._end])
            self._start, self._end = 0, rest
        return self._view[self._end :]

    def received(self, count: int) -> list[Frame]:
        """`count` bytes were written to `buffer()`; the frames that are whole now."""
        frames: list[Frame] = []
        if self._large is not None:
            self._filled += count
            if self._filled < self._large_size:
                return frames
            frames.append(self._large_head._replace(body=self._large))
            self._large = None
        else:
            self._end += count
        while self._large is None and self._cut(frames):
            pass
        return frames

    def _cut(self, frames: list[Frame]) -> bool:
        """Take one frame from the scratch buffer; False when the rest is not whole."""
        have = self._end - self._start
        if have < _HEADER_SIZE:
            return False
        body_len, id, kind, flags, meta_len, aux = HEADER.unpack_from(self._scratch, self._start)
        if body_len > self._body_max:
            raise LinkError(f"a body of {body_len} bytes is over the limit of {self._body_max}")
        body_at = _HEADER_SIZE + meta_len
        size = body_at + body_len
        known = _KINDS.get(kind)
        if known is None and not (flags & Flag.OPTIONAL and body_len < LARGE):
            raise LinkError(f"unknown frame kind {kind}")
        if have < size and (body_len < LARGE or have < body_at):
            return False
        start = self._start
        meta = bytes(self._view[start + _HEADER_SIZE : start + body_at])
        body = self._view[start + body_at : start + min(size, have)]
        if have < size:
            self._begin_large(Frame(_KINDS[kind], flags, id, aux, meta, b""), body, body_len)
            return False
        self._start += size
        if known is not None:
            frames.append(Frame(known, flags, id, aux, meta, bytes(body)))
        else:
            self._skip()
        return True

    def _skip(self) -> None:
        self._skipped += 1
        if self._skipped > SKIPPED_MAX:
            raise LinkError(f"more than {SKIPPED_MAX} frames of unknown kinds")

    def _begin_large(self, head: Frame, begun: memoryview, body_len: int) -> None:
        self._large = bytearray(begun)
        self._large_size = body_len
        self._large_head = head
        self._filled = len(begun)
        self._start = self._end = 0
