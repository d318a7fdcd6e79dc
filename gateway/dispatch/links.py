"""What one gateway process has in flight at one replica."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.dispatch.call import Call
from runtime_image.contract.link import ID_MAX


@dataclass(slots=True, eq=False)
class Link:
    """A replica that can be sent to. `full`: it had no room for us and will say when it has.

    `closing`: it takes nothing new. `pardoned`: ids it may still hand back although they are
    settled. `given_up`: its end was asked for.
    """

    id: str
    pool: str
    limit: int
    marks_started: bool
    in_flight: dict[int, Call] = field(default_factory=dict)
    last_id: int = 0
    full: bool = False
    closing: bool = False
    pardoned: set[int] = field(default_factory=set)
    given_up: bool = False

    @property
    def has_room(self) -> bool:
        """Whether one more request may be sent."""
        return len(self.in_flight) < self.limit and not (self.full or self.closing)

    def next_id(self) -> int:
        """An id that is not in use; ids wrap, those still in use are skipped."""
        while True:
            self.last_id = self.last_id % ID_MAX + 1
            if self.last_id not in self.in_flight:
                return self.last_id

    def sent_after(self, id: int) -> list[Call]:
        """Calls in flight sent after `id`, in that order; ids are compared modulo wrap."""
        half = (ID_MAX + 1) // 2
        return [
            call for sent, call in self.in_flight.items() if 0 < (sent - id) % (ID_MAX + 1) < half
        ]
