"""Compression of answers: gzip and deflate (RFC 9110 section 8.4.1), where a client asks for it.

HTTP libraries accept several codings in every request, unasked: their users would pay for
compression with time on both sides. So only a request that names one coding is taken to ask for it,
as that of `tritonclient` with `response_compression_algorithm` does.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from gateway import statuses
from gateway.http.decompression import ACCEPTED, Inflation
from gateway.replies import Body, Reply

if TYPE_CHECKING:
    from collections.abc import Iterable

SIZE_MIN: Final = 1024
"""Bytes. The headers of a shorter answer are longer than what compression would save."""
IN_LOOP_MAX: Final = 16 * 1024
"""Bytes. A longer body is compressed in a thread: it would delay other calls."""
LEVEL: Final = 1
"""The fastest: higher levels take several times as long and save a few percent of a tensor."""
STEP: Final = 1024 * 1024
"""Bytes that one step compresses; other bodies take turns between steps."""
_GZIP: Final = 16 + zlib.MAX_WBITS
_VARY: Final = ("Vary", "Accept-Encoding")


def requested_coding(values: Iterable[str]) -> str:
    """Return the only coding that the values of Accept-Encoding name, "" for none or several.

    `identity` is no coding, and neither is one with a quality of zero.
    """
    named = {
        coding
        for item in ",".join(values).lower().split(",")
        if (coding := _accepted(item)) not in ("", "identity")
    }
    only = named.pop() if len(named) == 1 else ""
    return only if only in ACCEPTED else ""


def _accepted(item: str) -> str:
    coding, _, parameter = item.partition(";")
    key, _, quality = parameter.partition("=")
    is_refused = key.strip() == "q" and not quality.strip(" \t0.")
    return "" if is_refused else coding.strip()


class Deflater:
    """Encoder of one body. `step` may be called from any thread, by one caller at a time."""

    def __init__(self, body: Body, encoding: str) -> None:
        """Create the encoder; `encoding` is one of ACCEPTED, where deflate has zlib's wrapper."""
        wbits = _GZIP if encoding == "gzip" else zlib.MAX_WBITS
        self._stream = zlib.compressobj(LEVEL, wbits=wbits)
        self._body = memoryview(body)
        self.is_done = False

    def step(self) -> bytes:
        """Return the next bytes, from at most STEP bytes of the body."""
        piece = self._stream.compress(self._body[:STEP])
        self._body = self._body[STEP:]
        if self._body:
            return piece
        self.is_done = True
        return piece + self._stream.flush()


async def compressed(reply: Reply, encoding: str, inflation: Inflation) -> Reply:
    """Return an answer in a coding that its client asked for, if it is worth it.

    Errors and short answers stay as they are, as do bodies that would become longer.
    """
    packed = body = reply.body
    if reply.status != statuses.OK:
        return reply
    if len(body) >= SIZE_MIN:
        deflater = Deflater(body, encoding)
        packed = await inflation.deflate(deflater, in_loop=len(body) <= IN_LOOP_MAX)
    if len(packed) >= len(body):
        return reply._replace(headers=(*reply.headers, _VARY))
    headers = (*reply.headers, ("Content-Encoding", encoding), _VARY)
    return reply._replace(headers=headers, body=packed)
