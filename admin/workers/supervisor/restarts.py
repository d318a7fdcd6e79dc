"""How soon a gateway process that died is started again. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FIRST_S: Final = 0.1
MOST_S: Final = 5.0
SOUND_S: Final = 30.0
"""Who has lived so long did not die of its start."""


@dataclass(slots=True)
class Restarts:
    """The pauses before the restarts of one worker."""

    next_s: float = FIRST_S

    def pause_s(self, lived_s: float) -> float:
        """Seconds until the next start, after a life of so many: twice as long each time, up to
        MOST_S, and short again after a sound life."""
        if lived_s >= SOUND_S:
            self.next_s = FIRST_S
        pause_s, self.next_s = self.next_s, min(2 * self.next_s, MOST_S)
        return pause_s
