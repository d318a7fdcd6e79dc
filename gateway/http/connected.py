"""Who is connected to a server function: its open exchanges, bounded."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from registry.model import pool_key

if TYPE_CHECKING:
    from gateway.proxy.exchange import Exchange
    from gateway.proxy.plan import ExchangePlan

SHOWN_MAX: Final = 50
"""Max exchanges of one list; the others are only counted."""
PATH_MAX: Final = 200
EVENTS: Final = b"text/event-stream"
Kind = Literal["websocket", "events", "request"]


class Connected(msgspec.Struct, array_like=True, frozen=True):
    """One open exchange.

    `key_id`: "" where no key is needed. `since_s`: Unix seconds. `path`: without its query, which
    may hold secrets. `counts`: it keeps the function awake, as a WebSocket does until it is quiet.
    """

    key_id: str
    kind: Kind
    since_s: float
    path: str
    counts: bool


class Connections(msgspec.Struct, frozen=True):
    """Open exchanges of a function: the oldest that keep it awake first. `counting` and `free`:
    the numbers of all that keep it awake and of all others. `closed`: WebSockets that were closed
    when the function went to sleep, the newest first; `since_s` of these is the time of the end."""

    items: list[Connected]
    counting: int
    free: int
    closed: list[Connected] = []


def connections_of(
    exchanges: Iterable[Exchange],
    namespace: str,
    name: str,
    epoch_s: float,
    closed: Iterable[tuple[str, Connected]] = (),
) -> Connections:
    """Return the open exchanges of a function, of all its revisions.

    `epoch_s`: Unix seconds at 0 of the monotonic clock. `closed`: WebSockets that were closed, with
    their pools.
    """
    prefix = pool_key(namespace, name, 0)[:-1]
    found = [_connected(one, epoch_s) for one in exchanges if one.facts[0].pool.startswith(prefix)]
    ended = [one for pool, one in closed if pool.startswith(prefix)]
    return joined([Connections(found, *_counts(found), ended)])


def joined(several: Iterable[Connections]) -> Connections:
    """Return the lists of several gateway processes as one."""
    lists = list(several)
    items = (item for one in lists for item in one.items)
    shown = nsmallest(SHOWN_MAX, items, key=lambda one: (not one.counts, one.since_s))
    ended = (item for one in lists for item in one.closed)
    closed = nsmallest(SHOWN_MAX, ended, key=lambda one: -one.since_s)
    counting, free = sum(one.counting for one in lists), sum(one.free for one in lists)
    return Connections(shown, counting, free, closed)


def _counts(items: list[Connected]) -> tuple[int, int]:
    counting = sum(item.counts for item in items)
    return counting, len(items) - counting


def _connected(exchange: Exchange, epoch_s: float) -> Connected:
    plan, answer, call = exchange.facts
    kind: Kind = "request"
    if plan.websocket_key is not None:
        kind = "websocket"
    elif answer is not None and answer.fields.get(b"content-type").lower().startswith(EVENTS):
        kind = "events"
    since_s = epoch_s + call.arrived_s if call is not None else 0.0
    is_free = plan.is_free if call is None else call.is_free
    return Connected(plan.key_id, kind, since_s, _path_of(plan), not is_free)


def closed_websocket(plan: ExchangePlan, at_s: float) -> tuple[str, Connected]:
    """Return the pool of a WebSocket that was closed at `at_s` Unix seconds, and who it was."""
    return plan.pool, Connected(plan.key_id, "websocket", at_s, _path_of(plan), counts=False)


def _path_of(plan: ExchangePlan) -> str:
    return (plan.target.path or b"/")[:PATH_MAX].decode("latin-1")
