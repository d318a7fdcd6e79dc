"""The gateway's ports in a process of its own: what it tells and asks goes to the supervisor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from admin.workers.messages import Arrived, Beat, Wants, Woken, encode
from gateway.metrics.exemplars import Labels
from gateway.metrics.pulse import Answered
from gateway.observing.failures import Failure
from registry.exchange import Expected

UNHEARD_OF = Expected(0.0, 0.0, 0.0, 0)
"""Of a revision that is gone."""


class Upward:
    """Pools and Past of one gateway process (`gateway.ports`). Nothing here waits."""

    def __init__(self, send: Callable[[bytes], None], expected: Mapping[str, Expected]) -> None:
        """`send` takes encoded messages, `expected` is kept up to date by its owner."""
        self._send = send
        self._expected = expected
        self._arrived: dict[tuple[str, str], int] = {}
        self.take_answered: Callable[[], list[Answered]] = list
        """What was answered since it was asked last."""
        self.take_failures: Callable[[], list[Failure]] = list
        """What went wrong since it was asked last."""

    def receive_demand(self, data: bytes) -> None:
        """To the pool manager."""
        self._send(encode(Wants(data)))

    def worker_lost(self, worker: str) -> None:
        """The end of the connection says so."""

    def expected(self, pool: str) -> Expected:
        """What the next cold start of a revision takes."""
        return self._expected.get(pool, UNHEARD_OF)

    def arrived(self, namespace: str, name: str) -> None:
        """One more request came for this function; told with the next beat."""
        key = (namespace, name)
        self._arrived[key] = self._arrived.get(key, 0) + 1

    def woken(
        self,
        namespace: str,
        function: str,
        replica: str,
        phases: Mapping[str, float],
        request: Labels | None = None,
    ) -> None:
        """A request waited for that replica; the supervisor counts each of them once."""
        self._send(encode(Woken(namespace, function, replica, dict(phases), request)))

    def beat(self) -> None:
        """Once a second: this process lives, what came and what was answered meanwhile."""
        arrived, self._arrived = self._arrived, {}
        counts = [Arrived(*key, count) for key, count in arrived.items()]
        told = counts, self.take_answered(), self.take_failures()
        self._send(encode(Beat(len(asyncio.all_tasks()), *told)))
