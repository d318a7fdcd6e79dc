"""Places of requests to the admin API: no key can take those of the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.admission.callers import Caller
from registry.shares import Shares


class Places:
    """Places of one kind, at most `most` for administrators and as many for all other callers.

    A caller may take one as long as it has fewer than are free (`registry.shares`). However many
    other keys there are, they take none of the administrators' places. `what`: what takes places,
    in the plural, for errors.
    """

    def __init__(self, what: str, most: int) -> None:
        self._shares = tuple(Shares(what, most) for _ in range(2))

    @contextmanager
    def taken(self, caller: Caller) -> Iterator[None]:
        """Take a place within the block. Raises QueueFull if the caller may have no more."""
        with self._shares["admin" in caller.scopes].place(caller.id):
            yield
