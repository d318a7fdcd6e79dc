"""How many TLS handshakes unknown peers may begin, by where they come from. Pure."""

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

NETWORK_BITS: Final = 64
"""Bits of an IPv6 address that make a source."""
_MAPPED: Final = bytes(10) + b"\xff\xff"
"""Beginning of an IPv6 address that stands for an IPv4 one (RFC 4291, section 2.5.5.2)."""


def source_of(host: str) -> str:
    """Return the source that an address belongs to: an IPv4 address, or 64 bits of an IPv6 one,
    since whoever has one address there has that many. Raises OSError for anything else."""
    if ":" not in host:
        return socket.inet_ntop(socket.AF_INET, socket.inet_pton(socket.AF_INET, host))
    packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    if packed.startswith(_MAPPED):
        return socket.inet_ntop(socket.AF_INET, packed[len(_MAPPED) :])
    network = packed[: NETWORK_BITS // 8].ljust(len(packed), b"\0")
    return f"{socket.inet_ntop(socket.AF_INET6, network)}/{NETWORK_BITS}"


@dataclass(slots=True)
class Bucket:
    """Token bucket of connections that begin, `burst` at once and `rate_s` in a second, with the
    number of those that are not over."""

    rate_s: float
    burst: float
    credit: float
    seen_s: float
    unfinished: int = 0

    def has_one(self, now_s: float) -> bool:
        """Fill up until now; return whether there is room for one more."""
        # A clock that went back fills nothing, and takes nothing away.
        self.credit += self.rate_s * max(0.0, now_s - self.seen_s)
        self.credit = min(self.credit, self.burst)
        self.seen_s = now_s
        return self.credit >= 1

    def begin(self) -> None:
        """Count one that begins."""
        self.credit -= 1
        self.unfinished += 1

    def finish(self, *, is_free: bool = False) -> None:
        """Count one no more; with `is_free` it has not counted in the rate either."""
        self.unfinished -= 1
        self.credit += is_free


class HandshakeLimits:
    """Counts handshakes by source. One that succeeds is given back, so peers with a certificate are
    not limited in their rate. `now` is seconds of any steady clock."""

    def __init__(self, now: float) -> None:
        self._all = Bucket(RATE, RATE, RATE, now)
        self._sources: dict[str, Bucket] = {}

    def begin(self, source: str, now: float) -> bool:
        """Whether `source` may begin a handshake; if so, `end` must follow."""
        if not self._all.has_one(now) or self._all.unfinished >= UNFINISHED_MAX:
            return False
        bucket = self._sources.get(source)
        if bucket is None:
            self._forget_rested(now)
            bucket = self._sources[source] = Bucket(SOURCE_RATE, SOURCE_BURST, SOURCE_BURST, now)
        if not bucket.has_one(now) or bucket.unfinished >= UNFINISHED_SOURCE_MAX:
            return False
        for one in (self._all, bucket):
            one.begin()
        return True

    def end(self, source: str, *, is_good: bool) -> None:
        """Handle the end of a handshake; `is_good`: it succeeded."""
        for one in (self._all, self._sources[source]):
            one.finish(is_free=is_good)

    def _forget_rested(self, now: float) -> None:
        """Forget sources whose tokens are all there again; those of the last seconds are left."""
        rest_s = SOURCE_BURST / SOURCE_RATE
        for source, one in list(self._sources.items()):
            if not one.unfinished and now - one.seen_s >= rest_s:
                del self._sources[source]
