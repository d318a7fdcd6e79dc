"""How many TLS handshakes strangers may begin. Pure."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Final

UNFINISHED_MAX: Final = 256
UNFINISHED_SOURCE_MAX: Final = 128
"""Max handshakes that are not over, of all sources and of one. All gateway processes of a server
have one address, and after its restart they dial at once: up to 64, with two connections each."""
RATE: Final = 200.0
"""Handshakes a second of all sources; as many may come at once."""
SOURCE_RATE: Final = 20.0
SOURCE_BURST: Final = 128.0
"""Handshakes a second of one source, and how many may come at once."""

Source = bytes


def source_of(host: str) -> Source:
    """Return the source that an address belongs to: an IPv4 address, or 64 bits of an IPv6 one,
    since whoever has one address there has that many. Raises OSError for anything else."""
    if ":" not in host:
        return socket.inet_pton(socket.AF_INET, host)
    packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    is_mapped = packed.startswith(bytes(10) + b"\xff\xff")
    return packed[12:] if is_mapped else packed[:8]


@dataclass(slots=True)
class _Bucket:
    """Tokens of one source, or of all of them."""

    tokens: float
    at_s: float
    unfinished: int = 0

    def fill(self, now: float, rate: float, burst: float) -> None:
        self.tokens = min(burst, self.tokens + (now - self.at_s) * rate)
        self.at_s = now


class HandshakeLimits:
    """Counts handshakes by source. One that succeeds is given back, so peers with a certificate are
    not limited in their rate. `now` is seconds of any steady clock."""

    def __init__(self, now: float) -> None:
        self._all = _Bucket(RATE, now)
        self._sources: dict[Source, _Bucket] = {}

    def begin(self, source: Source, now: float) -> bool:
        """Whether `source` may begin a handshake; if so, `end` must follow."""
        self._all.fill(now, RATE, RATE)
        if self._all.unfinished >= UNFINISHED_MAX or self._all.tokens < 1:
            return False
        bucket = self._sources.get(source)
        if bucket is None:
            self._forget_rested(now)
            bucket = self._sources[source] = _Bucket(SOURCE_BURST, now)
        bucket.fill(now, SOURCE_RATE, SOURCE_BURST)
        if bucket.unfinished >= UNFINISHED_SOURCE_MAX or bucket.tokens < 1:
            return False
        for one in (self._all, bucket):
            one.tokens -= 1
            one.unfinished += 1
        return True

    def end(self, source: Source, *, is_good: bool) -> None:
        """Handle the end of a handshake; `is_good`: it succeeded."""
        for one in (self._all, self._sources[source]):
            one.unfinished -= 1
            one.tokens += is_good

    def _forget_rested(self, now: float) -> None:
        """Forget sources whose tokens are all there again; those of the last seconds are left."""
        rest_s = SOURCE_BURST / SOURCE_RATE
        for source, one in list(self._sources.items()):
            if not one.unfinished and now - one.at_s >= rest_s:
                del self._sources[source]
