"""Which connections a door of links over TLS lets in. Pure: events and `now_s` in, verdicts out.

A source is an IPv4 address, or the first 64 bits of an IPv6 address: whoever has such a network has
all of its addresses. A connection is unfinished until its peer is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

UNFINISHED_MAX: Final = 256
"""Unfinished connections at the same time."""
UNKNOWN_UNFINISHED_MAX: Final = 192
"""Those of unknown sources: no admitted replica has come from there. What is left is for known
sources, so that no flood keeps them out: a replica that cannot dial in ends by its lease."""
SOURCE_UNFINISHED_MAX: Final = 16
"""Those of one source."""
RATE_S: Final = 200.0
"""Connections that may begin in a second."""
BURST: Final = 200
"""Those that may begin at once after a pause."""
UNKNOWN_RATE_S: Final = 150.0
"""Connections of unknown sources that may begin in a second."""
UNKNOWN_BURST: Final = 150
"""Those of unknown sources that may begin at once after a pause."""
SOURCE_RATE_S: Final = 20.0
"""Connections of one source that may begin in a second."""
SOURCE_BURST: Final = 40
"""Those of one source that may begin at once after a pause."""
SOURCES_MAX: Final = 1024
"""Sources that are remembered. Each of the UNFINISHED_MAX connections needs one; beyond these, the
source that was seen longest ago is forgotten, and may then begin another burst."""
NETWORK_BITS: Final = 64
"""Bits of an IPv6 address that make a source."""


class Refusal(StrEnum):
    """Why the door has ended a connection: the label of `fngate_link_refusals_total`."""

    FULL = "full"
    """There were UNFINISHED_MAX unfinished connections, or too many of unknown sources."""
    SOURCE_FULL = "source_full"
    """There were SOURCE_UNFINISHED_MAX of its source."""
    RATE = "rate"
    """Too many had begun in a short time."""
    SOURCE_RATE = "source_rate"
    """Too many of its source had begun in a short time."""
    HANDSHAKE = "handshake"
    """The TLS handshake failed or took too long, also for a certificate of another authority or
    one that has expired."""
    FIRST_FRAME = "first_frame"
    """There was none in time, or it was none that a replica begins with."""
    CERTIFICATE = "certificate"
    """Its certificate is of no replica that may dial in, or it has none."""
    PROTOCOL = "protocol"
    """A replica with a certificate sent a frame that was not expected after its first one."""
    CREDENTIAL = "credential"
    """Its token is unknown or used up."""
    UNREACHABLE = "unreachable"
    """It enrolled, but the server cannot dial it."""
    ENROLMENT = "enrolment"
    """It could not be enrolled for another reason, which the log has."""


def source_of(host: str) -> str:
    """Return the source of a peer by the text of its address. Raises ValueError for other text."""
    address: IPv4Address | IPv6Address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            return f"{IPv6Address(int(address) >> NETWORK_BITS << NETWORK_BITS)}/{NETWORK_BITS}"
        address = address.ipv4_mapped
    return str(address)


@dataclass(slots=True)
class Bucket:
    """Token bucket: `burst` at once, and `rate_s` in a second."""

    rate_s: float
    burst: int
    credit: float
    seen_s: float

    def has_one(self, now_s: float) -> bool:
        """Fill up until now; return whether there is room for one more."""
        # A clock that went back fills nothing, and takes nothing away.
        self.credit += self.rate_s * max(0.0, now_s - self.seen_s)
        self.credit = min(self.credit, self.burst)
        self.seen_s = now_s
        return self.credit >= 1

    def take(self) -> None:
        """Take one."""
        self.credit -= 1


@dataclass(slots=True)
class _Source:
    """What is known of one source."""

    bucket: Bucket
    unfinished: int = 0


class Limits:
    """Counts unfinished connections and their rate, in all and by source."""

    def __init__(self, now_s: float) -> None:
        """`now_s` of this and all methods are seconds of a monotonic clock."""
        self.unfinished = 0
        self._unfinished_unknown = 0
        self._all = Bucket(RATE_S, BURST, BURST, now_s)
        self._unknown = Bucket(UNKNOWN_RATE_S, UNKNOWN_BURST, UNKNOWN_BURST, now_s)
        self._sources: dict[str, _Source] = {}
        """In the order in which they were seen last."""

    def begin(self, source: str, now_s: float, *, is_known: bool) -> Refusal | None:
        """Return why a connection of this source is refused; None counts it as unfinished.
        `is_known`: a replica that may dial in has come from there before."""
        found = self._sources.pop(source, None)
        if found is None:
            found = _Source(Bucket(SOURCE_RATE_S, SOURCE_BURST, SOURCE_BURST, now_s))
            self._make_room()
        self._sources[source] = found
        if found.unfinished >= SOURCE_UNFINISHED_MAX:
            return Refusal.SOURCE_FULL
        # The source's own bucket first: what it refuses must take nothing of all others.
        if not found.bucket.has_one(now_s):
            return Refusal.SOURCE_RATE
        if self.unfinished >= UNFINISHED_MAX:
            return Refusal.FULL
        if not self._all.has_one(now_s):
            return Refusal.RATE
        if not is_known:
            if self._unfinished_unknown >= UNKNOWN_UNFINISHED_MAX:
                return Refusal.FULL
            if not self._unknown.has_one(now_s):
                return Refusal.RATE
            self._unknown.take()
            self._unfinished_unknown += 1
        found.bucket.take()
        self._all.take()
        found.unfinished += 1
        self.unfinished += 1
        return None

    def finish(self, source: str, *, is_known: bool) -> None:
        """Count a connection no more: its peer is known, or it has ended. `is_known` as it
        began."""
        self.unfinished -= 1
        self._unfinished_unknown -= not is_known
        self._sources[source].unfinished -= 1

    def _make_room(self) -> None:
        if len(self._sources) >= SOURCES_MAX:
            # At most UNFINISHED_MAX sources have an unfinished connection.
            idle = next(name for name, one in self._sources.items() if not one.unfinished)
            del self._sources[idle]


class Tally:
    """Counts refusals by reason, and says which are worth a line in the log."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(Refusal, 0)

    def add(self, reason: Refusal) -> bool:
        """Count one; True at powers of two, as a flood must not fill the log."""
        self.counts[reason] += 1
        return self.counts[reason].bit_count() == 1
