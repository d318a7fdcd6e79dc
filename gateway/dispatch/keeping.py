"""Connections to a server between two exchanges, and what its sidecar is told about them. Pure.

END with KEPT, and OPEN with REUSE a moment later, say nothing that a sidecar needs while nobody
waits for a slot. So an end is told LATE_S later, and not at all if the link reuses the connection
before: the sidecar then sees one longer exchange, under the *known id* of the connection. While
links wait, ends are told at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Generic, Protocol, TypeVar

from runtime_image.contract.link import Flag, Kind

LATE_S: Final = 0.005
"""Seconds after which the sidecar knows at the latest that a connection is idle."""
SPAN_S: Final = 2.0
"""Seconds from an OPEN during which exchanges may continue it. Less than the sidecar adds to the
longest exchange (MAX_GRACE_S), whose time counts from that OPEN."""
_KEPT, _REUSE, _FREE = int(Flag.KEPT), int(Flag.REUSE), int(Flag.FREE)
_FAILED: Final = int(Flag.FAILED)

Tell = Callable[[Kind, int, int, int], None]
"""Sends a frame: kind, id, flags, aux."""


class Kept(Protocol):
    """What is noted at a connection.

    `id`: its exchange. `known_id`: the id under which the sidecar knows it; `opened_s`: when that
    was told. `idle_since_s`: end of its last exchange; `is_told`: the sidecar knows of that end.
    `has_failed`: the server gave no whole answer in time.
    """

    id: int
    known_id: int
    opened_s: float
    idle_since_s: float
    is_told: bool
    has_failed: bool


C = TypeVar("C", bound=Kept)


class KeptConnections(Generic[C]):
    """The idle connections of one link, and those whose known id is not that of their exchange.

    Times are monotonic seconds.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._idle: dict[int, C] = {}
        """By known id, the oldest first. Those whose end was told come before the others."""
        self._continued: dict[int, C] = {}
        """Connections in use, by a known id that is not the id of their exchange."""
        self.is_prompt = False
        """Whether ends are told at once."""

    def __len__(self) -> int:
        return len(self._idle)

    def __iter__(self) -> Iterator[C]:
        return iter(self._idle.values())

    def newest(self) -> C | None:
        """Return the connection that became idle last."""
        return next(reversed(self._idle.values()), None)

    def oldest(self) -> C | None:
        """Return the connection that has been idle for the longest time."""
        return next(iter(self._idle.values()), None)

    def request(self, id: int, *, is_free: bool) -> None:
        """Request a connection for exchange `id`."""
        self._vacate(id)
        self._tell(Kind.OPEN, id, _FREE if is_free else 0, 0)

    def opened(self, connection: C, now: float) -> None:
        """Note a connection that has arrived for its exchange."""
        connection.known_id, connection.opened_s = connection.id, now

    def keep(self, connection: C, now: float) -> None:
        """Note that the exchange of a connection is over, which becomes idle."""
        known = connection.known_id
        self._continued.pop(known, None)
        connection.idle_since_s, connection.is_told = now, self.is_prompt
        self._idle[known] = connection
        if self.is_prompt:
            self._tell(Kind.END, known, _KEPT, 0)

    def drop(self, connection: C) -> None:
        """Note that the exchange of a connection is over, which is closed."""
        self._continued.pop(connection.known_id, None)
        self._tell(Kind.END, connection.known_id, _FAILED if connection.has_failed else 0, 0)

    def reuse(self, connection: C, id: int, now: float) -> None:
        """Use an idle connection for exchange `id`."""
        known = connection.known_id
        del self._idle[known]
        connection.id = id
        if not connection.is_told:
            if now - connection.opened_s < SPAN_S:
                self._continued[known] = connection
                return
            self._tell(Kind.END, known, _KEPT, 0)
        self._vacate(id)
        self._rename(connection, now)

    def take(self, known_id: int) -> C | None:
        """Give back the idle connection with this known id, which the caller closes.

        None if it is not idle any more.
        """
        connection = self._idle.pop(known_id, None)
        if connection is not None:
            self._tell(Kind.END, known_id, 0, 0)
        return connection

    def clear(self) -> list[C]:
        """Forget everything; return the idle connections. Nothing is told: the link is lost."""
        idle = list(self._idle.values())
        self._idle.clear()
        self._continued.clear()
        return idle

    def hasten(self, now: float) -> None:
        """Tell ends at once, until `relax`: links wait for slots, or the server is to stop."""
        self.is_prompt = True
        self._tell_ends(self._untold(), now)

    def relax(self) -> None:
        """Tell ends late again."""
        self.is_prompt = False

    def tell_due(self, now: float) -> float:
        """Tell the ends that are due; return when the next one is, infinity if there is none."""
        untold = self._untold()
        due = [each for each in untold if each.idle_since_s + LATE_S <= now]
        self._tell_ends(due, now)
        return untold[len(due)].idle_since_s + LATE_S if len(due) < len(untold) else float("inf")

    def _untold(self) -> list[C]:
        """Return the connections of whose end the sidecar does not know, the oldest first."""
        found = []
        for connection in reversed(self._idle.values()):
            if connection.is_told:
                break
            found.append(connection)
        return found[::-1]

    def _tell_ends(self, connections: list[C], now: float) -> None:
        """Tell ends, each with the milliseconds since it."""
        for connection in connections:
            connection.is_told = True
            ago_ms = round(max(0.0, now - connection.idle_since_s) * 1e3)
            self._tell(Kind.END, connection.known_id, _KEPT, ago_ms)

    def _vacate(self, id: int) -> None:
        """Make an id free that the dispatcher has given to a new exchange.

        Ids wrap around, and a connection may be known by the id of an exchange that is over.
        """
        connection = self._continued.pop(id, None)
        if connection is not None:
            self._tell(Kind.END, id, _KEPT, 0)
            self._vacate(connection.id)
            self._rename(connection, connection.opened_s)

    def _rename(self, connection: C, now: float) -> None:
        """Tell that a connection, known to be idle, carries its exchange."""
        self._tell(Kind.OPEN, connection.id, _REUSE, connection.known_id)
        connection.known_id, connection.opened_s = connection.id, now
