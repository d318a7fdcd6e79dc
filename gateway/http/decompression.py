"""Decompression of request bodies: gzip and deflate (RFC 9110 section 8.4.1).

A body of a few kilobytes may inflate to gigabytes. So it is inflated in threads, in steps of
bounded size, and no further than the limit of the body.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from gateway.body_memory import GrowingBody
from gateway.replies import Body
from registry.errors import BadRequest, BodyTooLarge, UnsupportedEncoding

if TYPE_CHECKING:
    from gateway.http.compression import Deflater

ACCEPTED: Final = ("gzip", "deflate")
STEP: Final = 256 * 1024
"""Max bytes that one step produces; other bodies take turns between steps."""
WINDOW: Final = 64 * 1024
"""Bytes of input passed to zlib at once: zlib copies the part that it has not consumed."""
MEMBERS_MAX: Final = 1000
"""Max concatenated streams in one body; each needs its own decoder."""
AT_ONCE: Final = 2
"""Bodies that are inflated concurrently; others wait in memory."""
_GZIP: Final = 16 + zlib.MAX_WBITS
_CM_DEFLATE: Final = 8
"""Compression method in the first byte of a zlib stream (RFC 1950)."""


def encoding_of(values: list[str]) -> str:
    """Return the coding that the values of Content-Encoding name, "" for none.

    Raises UnsupportedEncoding.
    """
    named = ",".join(values).strip()
    found = named.lower()
    if found in ("", "identity"):
        return ""
    if found not in ACCEPTED:
        text = f"Content-Encoding: expected {' or '.join(ACCEPTED)}, got {named[:100]!r}"
        raise UnsupportedEncoding(text, detail={"accepted": list(ACCEPTED)})
    return found


class Inflater:
    """Decoder of one body. `step` may be called from any thread, by one caller at a time."""

    def __init__(self, body: Body, encoding: str) -> None:
        """Create the decoder; `encoding` is one of ACCEPTED.

        Many clients send deflate without the zlib wrapper, so both forms are detected.
        """
        bare = encoding == "deflate" and body[:1] and body[0] & 0xF != _CM_DEFLATE
        self._wbits = _GZIP if encoding == "gzip" else -zlib.MAX_WBITS if bare else zlib.MAX_WBITS
        self._encoding = encoding
        self._body = memoryview(body)
        self._at = 0
        self._rest = b""
        self._members = 1
        self._stream = zlib.decompressobj(self._wbits)

    @property
    def is_done(self) -> bool:
        """Whether everything has been inflated."""
        return not self._rest and self._at == len(self._body) and self._stream.eof

    def step(self, most: int = STEP) -> bytes:
        """Return the next bytes, at most `most`. Raises BadRequest if the body is malformed."""
        pieces: list[bytes] = []
        while most > 0 and not self.is_done:
            try:
                piece = self._next(most)
            except zlib.error:
                raise _unreadable(f"it is not {self._encoding}") from None
            pieces.append(piece)
            most -= len(piece)
        return b"".join(pieces)

    def _next(self, most: int) -> bytes:
        if self._stream.eof:
            self._members += 1
            if self._members > MEMBERS_MAX:
                raise _unreadable(f"it has more than {MEMBERS_MAX} compressed streams")
            self._stream = zlib.decompressobj(self._wbits)
        data: bytes | memoryview = self._rest
        if not data:
            data = self._body[self._at : self._at + WINDOW]
            self._at += len(data)
        piece = self._stream.decompress(data, most)
        self._rest = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
        if not piece and not self._rest and not self._stream.eof and self._at == len(self._body):
            raise _unreadable("its compressed data ends too early")
        return piece


class Inflation:
    """Inflates bodies of requests, and deflates those of answers, in `executor`, which it owns."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._deflating = asyncio.Semaphore(AT_ONCE)

    async def inflate(
        self,
        body: Body,
        encoding: str,
        most: int,
        grow: Callable[[int], None],
        room: Callable[[int], memoryview | None],
    ) -> bytearray | memoryview:
        """Return the inflated body. `grow(count)` is called before `count` more bytes are kept,
        `room(most)` returns memory for a large body, None if there is none.

        Raises BodyTooLarge as soon as `most` bytes are exceeded, BadRequest, and any error of
        `grow`.
        """
        loop = asyncio.get_running_loop()
        inflated = GrowingBody(lambda: room(most))
        try:
            async with self._turns:
                inflater = Inflater(body, encoding)
                while not inflater.is_done:
                    step = min(STEP, most + 1 - inflated.size)
                    piece = await loop.run_in_executor(self._executor, inflater.step, step)
                    if inflated.size + len(piece) > most:
                        text = f"expected at most {most} bytes after {encoding} decoding, got more"
                        raise BodyTooLarge(text)
                    grow(len(piece))
                    inflated.add(piece)
            return inflated.whole()
        finally:
            inflated.clear()  # an error that is kept for a while references this frame

    async def deflate(self, encoder: Deflater, *, in_loop: bool) -> bytes:
        """Return the encoded body; `in_loop`: it is short enough for the event loop."""
        pieces: list[bytes] = []
        if in_loop:
            while not encoder.is_done:
                pieces.append(encoder.step())
            return b"".join(pieces)
        loop = asyncio.get_running_loop()
        async with self._deflating:
            while not encoder.is_done:
                pieces.append(await loop.run_in_executor(self._executor, encoder.step))
        return b"".join(pieces)

    def close(self) -> None:
        """Cancel all further steps without waiting for running ones."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def inflating_threads() -> ThreadPoolExecutor:
    """Return threads for half of the processors: with two, the event loop keeps one for itself."""
    threads = max(1, (os.cpu_count() or 1) // 2)
    return ThreadPoolExecutor(threads, thread_name_prefix="inflate")


def _unreadable(reason: str) -> BadRequest:
    return BadRequest(f"the body cannot be read: {reason}")
