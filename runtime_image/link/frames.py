"""Encoding and decoding of frames. No I/O, no clock.

The owner receives bytes into `FrameReader.buffer()`. Small frames are copied out of one scratch
buffer; a large body is received straight into its final buffer, so it is copied at most once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from runtime_image.contract.link import BODY_MAX, HEADER, Flag, Kind

SCRATCH_SIZE = 256 * 1024
COPIED_MAX = 32 * 1024
"""Received bytes up to this count are copied to one bytes object before frames are cut from it."""
LARGE = 64 * 1024
"""Min bytes of a body that gets a buffer for itself."""
GROWTH = 1024 * 1024
"""Bytes by which that buffer grows while data arrives: a header alone must not reserve memory."""
SKIPPED_MAX = 1000
"""Max unknown optional frames on one stream."""

_HEADER_SIZE = HEADER.size
_ZEROS = bytes(GROWTH)
_KINDS = {int(kind): kind for kind in Kind}
_OPTIONAL = int(Flag.OPTIONAL)

Piece = bytes | bytearray | memoryview


class LinkError(Exception):
    """The other side broke the protocol, or the connection is lost. The text is the reason."""


class Frame(NamedTuple):
    """One frame. `meta` and `body` are the receiver's own copies."""

    kind: Kind
    flags: int
    id: int
    aux: int
    meta: bytes
    body: bytes | bytearray


# Skips the named tuple's constructor, which is a slower Python function.
_frame: Callable[[tuple[Any, ...]], Frame] = partial(tuple.__new__, Frame)


def pack(
    kind: Kind,
    id: int = 0,
    body: Piece = b"",
    *,
    meta: bytes = b"",
    flags: int = 0,
    aux: int = 0,
) -> list[Piece]:
    """Encode one frame as pieces to write in order; a large body is a separate piece."""
    head = HEADER.pack(len(body), id, kind, flags, len(meta), aux) + meta
    if len(body) < LARGE:
        return [head + body]
    return [head, body]


class FrameReader:
    """Splits a byte stream into frames.

    Skips unknown kinds with the OPTIONAL flag. Raises LinkError for unknown kinds without it and
    for a body over `body_max`; the stream cannot be read further after an error. A large body uses
    the memory of its received bytes and at most GROWTH more.
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
        """Return the buffer for the next bytes; never empty, and valid until the next call."""
        if self._large is not None:
            if self._filled == len(self._large):
                self._room.release()  # a bytearray with a view cannot grow
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
        """Process `count` bytes written to `buffer()`; return the frames that are now complete."""
        frames: list[Frame] = []
        if self._large is not None:
            self._filled += count
            if self._filled < self._large_size:
                return frames
            frames.append(self._large_head._replace(body=self._large))
            self._large, self._room = None, self._view[:0]  # the receiver owns the body now
            return frames
        self._end += count
        self._cut(frames)
        return frames

    def _cut(self, frames: list[Frame]) -> None:
        """Take all whole frames from the scratch buffer, and the start of a large one."""
        data = self._view[self._start : self._end]
        # Slicing bytes is twice as fast as slicing a view; copying pays for short data only.
        source: bytes | memoryview = bytes(data) if len(data) <= COPIED_MAX else data
        at, end = 0, len(data)
        while end - at >= _HEADER_SIZE:
            body_len, id, kind, flags, meta_len, aux = HEADER.unpack_from(source, at)
            body_at = at + _HEADER_SIZE + meta_len
            stop = body_at + body_len
            known = _KINDS.get(kind)
            if body_len > self._body_max or known is None:
                self._check(kind, flags, body_len)
            if stop > end:
                if body_len >= LARGE and body_at <= end:
                    begun = bytes(source[at + _HEADER_SIZE : body_at])
                    head = Frame(_KINDS[kind], flags, id, aux, begun, b"")
                    self._begin_large(head, data[body_at:], body_len)
                    return
                break
            if known is not None:
                meta, body = source[at + _HEADER_SIZE : body_at], source[body_at:stop]
                if not isinstance(source, bytes):
                    meta, body = bytes(meta), bytes(body)
                frames.append(_frame((known, flags, id, aux, meta, body)))
            else:
                self._skip()
            at = stop
        self._start += at

    def _check(self, kind: int, flags: int, body_len: int) -> None:
        """Raise LinkError for a body over the limit, and for an unknown kind that is not both
        optional and small."""
        if body_len > self._body_max:
            raise LinkError(f"a body of {body_len} bytes is over the limit of {self._body_max}")
        if kind not in _KINDS and not (flags & _OPTIONAL and body_len < LARGE):
            raise LinkError(f"unknown frame kind {kind}")

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
