"""All that the manager counts, for whoever shows it."""

from __future__ import annotations

from collections.abc import Sized

from pool_manager.core.host import Host
from pool_manager.counters.supplied import Supplied, supplied
from pool_manager.counters.tally import Counts, Tally


class Counters:
    """Of one manager: its machine's `host`, and the `line` of starts that wait for their turn."""

    def __init__(self, host: Host, line: Sized) -> None:
        self._host = host
        self._line = line
        self._tally = Tally()
        self.note = self._tally.note
        self.failed = self._tally.failed

    def counts(self) -> Counts:
        """What became of replicas since the start."""
        return self._tally.counts.copy()

    def supplied(self) -> list[Supplied]:
        """Every pool that has replicas or wants some."""
        return supplied(self._host)

    @property
    def waiting_starts(self) -> int:
        """Starts that stand in line."""
        return len(self._line)
