"""Cuts what a key has open at the moment when the key is removed, and what callers without a key
have open when the server is closed to them.

New requests are refused by the key ring. What began before, and may go on for hours, is checked at
its beginning only: exchanges with their streams and WebSockets, requests of the admin API with
their followers and uploads, streams of gRPC. Each door has the set of what it has open; this walks
through those sets when a key is removed, so that nothing is paid per request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, Protocol

import structlog

from registry.errors import FnError, NoKey
from registry.model.keys import Key
from registry.openness import Openness
from registry.store.keys import KeyRing

log = structlog.get_logger()

AT_ONCE: Final = 100
"""Max that is cut in one turn of the event loop: an exchange takes 50 us (2026-11-28)."""


class OpenForKey(Protocol):
    """What stays open for a caller. Event loop thread only."""

    @property
    def key_id(self) -> str:
        """Id of the caller's key, "" without one."""

    def fail(self, error: FnError) -> None:
        """End it with an error; without effect if it has ended."""


def cut_revoked(ring: KeyRing, opened: Callable[[], Iterable[OpenForKey]]) -> Callable[[], None]:
    """Fail what is open for a key as soon as the key leaves the ring, and what is open without one
    as soon as the server is closed to callers without a key.

    `opened` returns what one door has open. Returns a function that ends this.
    """

    def cut_of(key_id: str, text: str) -> None:
        _cut(iter([one for one in opened() if one.key_id == key_id]), text)

    def on_change(key: Key, is_let_in: bool) -> None:
        if not is_let_in:
            cut_of(key.id, "the key was removed")

    def on_decision(openness: Openness) -> None:
        if openness is Openness.CLOSED:
            cut_of("", "the server was closed to callers without a key")

    ends = (ring.subscribe(on_change), ring.on_decision(on_decision))

    def end() -> None:
        for one in ends:
            one()

    return end


def _cut(rest: Iterator[OpenForKey], text: str) -> None:
    """Cut the next few now, and the others in the next turn of the loop."""
    some = list(islice(rest, AT_ONCE))
    for one in some:
        try:
            one.fail(NoKey(text))
        except Exception:  # error boundary: neither the others nor the removal may suffer
            log.exception("an open request of a revoked key could not be cut")
    if len(some) == AT_ONCE:
        asyncio.get_running_loop().call_soon(_cut, rest, text)
