"""Tickets: single-use words with which a browser enters a function's own host.

A ticket is in the fragment of an address, which no browser sends, and is exchanged for a cookie
once. Only its hash is kept, in memory.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from hashlib import sha256
from typing import Final, NamedTuple

from registry.errors import QueueFull

LIFETIME_S: Final = 60.0
PER_KEY_MAX: Final = 16
"""Max unused tickets of a key; a further one replaces its oldest."""
TICKETS_MAX: Final = 4096
WORD_MAX: Final = 64
"""Max characters of a ticket."""


class Ticket(NamedTuple):
    """What a ticket grants: the function, as the key, first at `path`. `due_s`: its end."""

    key_id: str
    function: str
    path: str
    due_s: float


class Tickets:
    """The unused tickets of a server. `clock` returns monotonic seconds. Event loop thread only."""

    def __init__(
        self,
        clock: Callable[[], float],
        word: Callable[[], str] = lambda: secrets.token_urlsafe(32),
    ) -> None:
        self._clock = clock
        self._word = word
        self._tickets: dict[bytes, Ticket] = {}

    def __len__(self) -> int:
        return len(self._tickets)

    def issue(self, key_id: str, function: str, path: str = "/") -> str:
        """Return a new ticket. Raises QueueFull if there are TICKETS_MAX."""
        now = self._clock()
        self._drop_expired(now)
        own = [digest for digest, one in self._tickets.items() if one.key_id == key_id]
        if len(own) >= PER_KEY_MAX:
            del self._tickets[own[0]]
        elif len(self._tickets) >= TICKETS_MAX:
            text = f"expected at most {TICKETS_MAX} unused tickets"
            raise QueueFull(text, retry_after_s=LIFETIME_S)
        word = self._word()
        self._tickets[_digest(word)] = Ticket(key_id, function, path, now + LIFETIME_S)
        return word

    def redeem(self, word: str, function: str) -> Ticket | None:
        """Return the ticket, which is spent; None if there is no valid one for this function.

        A ticket that came to the wrong function is spent, too: somebody has misled it.
        """
        if len(word) > WORD_MAX:
            return None
        ticket = self._tickets.pop(_digest(word), None)
        if ticket is None or ticket.function != function or ticket.due_s <= self._clock():
            return None
        return ticket

    def _drop_expired(self, now: float) -> None:
        """Drop expired tickets: all last equally long, so they are the first ones."""
        for digest, ticket in list(self._tickets.items()):
            if ticket.due_s > now:
                return
            del self._tickets[digest]


def _digest(word: str) -> bytes:
    return sha256(word.encode(errors="replace")).digest()
