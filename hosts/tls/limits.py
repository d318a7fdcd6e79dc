"""Which connections a door of links over TLS lets in. Pure: events and `now_s` in, verdicts out.

A source is an address as of `source_of` in `runtime_image.link.handshake_limits`, which has the
limits of a replica's own listener. A connection is unfinished until its peer is known.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from runtime_image.link.handshake_limits import Bucket

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


class Limits:
    """Counts unfinished connections and their rate, in all and by source."""

    def __init__(self, now_s: float) -> None:
        """`now_s` of this and all methods are seconds of a monotonic clock."""
        self._all = Bucket(RATE_S, BURST, BURST, now_s)
        self._unknown = Bucket(UNKNOWN_RATE_S, UNKNOWN_BURST, UNKNOWN_BURST, now_s)
        self._sources: dict[str, Bucket] = {}
        """In the order in which they were seen last."""

    @property
    def unfinished(self) -> int:
        """Unfinished connections of all sources."""
        return self._all.unfinished

    def begin(self, source: str, now_s: float, *, is_known: bool) -> Refusal | None:
        """Return why a connection of this source is refused; None counts it as unfinished.
        `is_known`: a replica that may dial in has come from there before."""
        found = self._sources.pop(source, None)
        if found is None:
            found = Bucket(SOURCE_RATE_S, SOURCE_BURST, SOURCE_BURST, now_s)
            self._make_room()
        self._sources[source] = found
        if found.unfinished >= SOURCE_UNFINISHED_MAX:
            return Refusal.SOURCE_FULL
        # The source's own bucket first: what it refuses must take nothing of all others.
        if not found.has_one(now_s):
            return Refusal.SOURCE_RATE
        if self.unfinished >= UNFINISHED_MAX:
            return Refusal.FULL
        if not self._all.has_one(now_s):
            return Refusal.RATE
        if not is_known:
            if self._unknown.unfinished >= UNKNOWN_UNFINISHED_MAX:
                return Refusal.FULL
            if not self._unknown.has_one(now_s):
                return Refusal.RATE
        for bucket in self._buckets(source, is_known=is_known):
            bucket.begin()
        return None

    def finish(self, source: str, *, is_known: bool) -> None:
        """Count a connection no more: its peer is known, or it has ended. `is_known` as it
        began."""
        for bucket in self._buckets(source, is_known=is_known):
            bucket.finish()

    def _buckets(self, source: str, *, is_known: bool) -> list[Bucket]:
        """Return the buckets in which a connection counts."""
        counted = [self._all, self._sources[source]]
        return counted if is_known else [*counted, self._unknown]

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
