"""How a ready server fares: what its sidecar reads, and the messages about it. Plain data."""

from __future__ import annotations

from enum import StrEnum
from struct import Struct
from typing import Final, NamedTuple, TypedDict

READ_S: Final = 1.0
"""Seconds between two readings of a server with open exchanges."""
SAID_MAX: Final = 200
"""Max characters of a probe's answer in a message."""


class Ready(StrEnum):
    """What a probe of a server met that was ready before."""

    RIGHT = "right"
    """An HTTP answer with a status below 500."""
    REFUSED = "refused"
    """Nobody listens at the address."""
    FAILING = "failing"
    """A status of 500 or more, or the connection was closed without an answer."""
    SILENT = "silent"
    """Nothing within the time of a probe."""


class Learnt(NamedTuple):
    """What a manager has learnt from the silences of a server's revision. Its sidecars keep it for
    the next manager: `LEARNT` brings it, HELLO returns it."""

    known: int
    """Number of silences that it was learnt from."""
    usual_s: float
    """Their 99.9th percentile, seconds."""
    longest_s: float
    """The longest silence of all, seconds."""


LEARNT_SECONDS: Final = Struct("<2d")
"""Body of a LEARNT frame: `usual_s` and `longest_s` of a `Learnt`."""


class Health(TypedDict):
    """One reading of a ready server, body of HEALTH. Totals count from the server's start."""

    open: int
    """Exchanges that are open now, without WebSockets and those that take no slot."""
    moved: int
    """Total of bytes that the server has sent and taken, and of exchanges that it has ended."""
    given: int
    """Total of bytes that the server has sent. The first ones of an answer count once others
    follow, or at its end unless it has failed."""
    unread: bool
    """Whether bytes of the server wait for a gateway that does not read them."""
    counter: float | None
    """Value of the server's own counter, None if there is none or it was never read."""
    cpu: float | None
    """CPU seconds per second of the server's processes since the last reading; with a process that
    is runnable or waits for a disk, at least 1. None if unknown."""
    is_traced: bool
    """Whether a debugger traces one of its processes."""
    probes: int
    """Number of probes since the server was ready."""
    ready: str
    """Result of the last of them, a `Ready`; "" before the first."""
    said: str
    """The answer to the last probe, for people."""
