"""Who is connected to a server function: its open exchanges, bounded."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from registry.model.revisions import pool_key

if TYPE_CHECKING:
    from gateway.proxy.exchange import Exchange
    from gateway.proxy.plan import ExchangePlan
    from gateway.proxy.response_head import ResponseHead

SHOWN_MAX: Final = 50
"""Max exchanges of one list; the others are only counted."""
PATH_MAX: Final = 200
POOLS_MAX: Final = 10_000
"""Max pools whose last exchange is remembered."""
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
    because their replica stopped, the newest first; `last`: the one that ended last of those that
    kept it awake, None if none is known. `since_s` of these is the time of the end."""

    items: list[Connected]
    counting: int
    free: int
    closed: list[Connected] = []
    last: Connected | None = None


class LastExchanges:
    """The exchange of each pool that ended last, of those that kept it awake.

    Each exchange passes here, so only what tells of it is kept; `get` makes it readable.
    """

    def __init__(self) -> None:
        self._by_pool: dict[str, tuple[float, str, bool, bytes, bytes]] = {}
        """Unix seconds of the end, id of the key, whether it was a WebSocket, the answer's type and
        the path, by pool; the one that ended last comes last."""

    def put(self, plan: ExchangePlan, answer: ResponseHead, at_s: float) -> None:
        """Note that an exchange ended at `at_s` Unix seconds. Beyond POOLS_MAX pools, the one whose
        last exchange is the longest ago is forgotten."""
        found, pool = self._by_pool, plan.pool
        found.pop(pool, None)
        if len(found) >= POOLS_MAX:
            del found[next(iter(found))]
        kind = answer.fields.get(b"content-type")
        path = (plan.target.path or b"/")[:PATH_MAX]
        found[pool] = at_s, plan.key_id, plan.websocket_key is not None, kind, path

    def get(self, namespace: str, name: str) -> Connected | None:
        """Return the last exchange of a function, of all its revisions; None if it is not known."""
        prefix = pool_key(namespace, name, 0)[:-1]
        of_function = [one for pool, one in self._by_pool.items() if pool.startswith(prefix)]
        if not of_function:
            return None
        at_s, key_id, is_websocket, kind, path = max(of_function)
        shown: Kind = "websocket" if is_websocket else _kind_of(kind)
        return Connected(key_id, shown, at_s, path.decode("latin-1"), counts=True)


def connections_of(
    exchanges: Iterable[Exchange],
    namespace: str,
    name: str,
    epoch_s: float,
    closed: Iterable[tuple[str, Connected]] = (),
    last: Connected | None = None,
) -> Connections:
    """Return the open exchanges of a function, of all its revisions.

    `epoch_s`: Unix seconds at 0 of the monotonic clock. `closed`: WebSockets that were closed, with
    their pools. `last`: the exchange that ended last.
    """
    prefix = pool_key(namespace, name, 0)[:-1]
    found = [_connected(one, epoch_s) for one in exchanges if one.facts[0].pool.startswith(prefix)]
    ended = [one for pool, one in closed if pool.startswith(prefix)]
    counting = sum(item.counts for item in found)
    return joined([Connections(found, counting, len(found) - counting, ended, last)])


def joined(several: Iterable[Connections]) -> Connections:
    """Return the lists of several gateway processes as one."""
    lists = list(several)
    items = (item for one in lists for item in one.items)
    shown = nsmallest(SHOWN_MAX, items, key=lambda one: (not one.counts, one.since_s))
    ended = (item for one in lists for item in one.closed)
    closed = nsmallest(SHOWN_MAX, ended, key=lambda one: -one.since_s)
    counting, free = sum(one.counting for one in lists), sum(one.free for one in lists)
    last = [one.last for one in lists if one.last is not None]
    latest = max(last, key=lambda one: one.since_s, default=None)
    return Connections(shown, counting, free, closed, latest)


def _connected(exchange: Exchange, epoch_s: float) -> Connected:
    plan, answer, call = exchange.facts
    since_s = epoch_s + call.arrived_s if call is not None else 0.0
    is_free = plan.is_free if call is None else call.is_free
    kind: Kind = "websocket"
    if plan.websocket_key is None:
        kind = _kind_of(b"" if answer is None else answer.fields.get(b"content-type"))
    return Connected(plan.key_id, kind, since_s, _path_of(plan), not is_free)


def _kind_of(content_type: bytes) -> Kind:
    return "events" if content_type.lower().startswith(EVENTS) else "request"


def closed_websocket(plan: ExchangePlan, at_s: float, *, is_quiet: bool) -> tuple[str, Connected]:
    """Return the pool of a WebSocket that was closed at `at_s` Unix seconds, and who it was."""
    return plan.pool, Connected(plan.key_id, "websocket", at_s, _path_of(plan), not is_quiet)


def _path_of(plan: ExchangePlan) -> str:
    return (plan.target.path or b"/")[:PATH_MAX].decode("latin-1")
