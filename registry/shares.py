"""Places of one kind, shared by the parties that want them. Pure.

A party is a key, or the address of a client without one. It may take a place as long as it has
fewer than are free: a lone party gets half of all places, the next one half of the rest, and so on.
No party can take the last places, so that a party without any finds one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from registry.errors import QueueFull

RETRY_S: Final = 1.0


class Shares:
    """Places, at most `places`. `what`: what takes them, in the plural, for errors."""

    def __init__(self, what: str, places: int) -> None:
        self._what = what
        self.places = places
        """Max places; a lower one takes none back."""
        self._taken: dict[str, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def taken(self, party: str) -> int:
        """Return how many places the party has."""
        return self._taken.get(party, 0)

    @property
    def free(self) -> int:
        """Places that nobody has; negative if more are held than there are."""
        return self.places - self._count

    def has_room(self, party: str) -> bool:
        """Return whether the party may take a place."""
        return self.taken(party) < self.free

    def take(self, party: str) -> None:
        """Take a place, until `give_back`. Raises QueueFull if the party may have no more."""
        self.check(party)
        self.hold(party)

    def check(self, party: str) -> None:
        """Raise QueueFull if the party may have no more places."""
        if not self.has_room(party):
            own = self.taken(party)
            text = f"{self._count} {self._what}, {own} of them of this caller"
            raise QueueFull(
                f"{text}: at most {self.places} are possible, and a caller may have no more than"
                " are free",
                retry_after_s=RETRY_S,
            )

    def hold(self, party: str) -> None:
        """Take a place that is due to the party, as before a restart or for one it gave back."""
        self._taken[party] = self.taken(party) + 1
        self._count += 1

    @contextmanager
    def place(self, party: str) -> Iterator[None]:
        """Have a place within the block. Raises QueueFull."""
        self.take(party)
        try:
            yield
        finally:
            self.give_back(party)

    def give_back(self, party: str) -> None:
        """Give back a place of the party."""
        left = self._taken[party] - 1
        if left:
            self._taken[party] = left
        else:
            del self._taken[party]
        self._count -= 1
