"""The server as the parts of a gateway see it: the pool manager, the history, models, statistics.

What a gateway reports is counted once. It waits while the gateway is apart, and stays until the
server has answered that it is counted; a stream that breaks between loses and doubles nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from admin.workers.link import ServerLink
from admin.workers.messages import (
    Activity,
    Arrived,
    LoadModel,
    ReadStatistics,
    UnloadModel,
    Wants,
    Woken,
)
from gateway.metrics.counters import Labels
from gateway.metrics.samples import RateSample
from gateway.observing.errors import Failure
from gateway.oip.statistics import RevisionStatistics
from gateway.ports import CallHistory, ModelControl, ModelStatistics
from registry.catalog import Deployed
from registry.errors import FnError, ServerAway
from registry.exchange import Expected
from registry.usage import UsageCounts, UsageRow

UNKNOWN_REVISION: Final = Expected(0.0, 0.0, 0.0, 0)
"""Estimate for a removed revision."""
WOKEN_MAX: Final = 1000
"""Max replicas whose cold starts wait to be reported: the newest."""
LAST_S: Final = 5.0
"""Max seconds for a gateway's last report."""


class Seen(NamedTuple):
    """What the gateway itself has for a report; each field as in `Activity`."""

    tasks: int = 0
    answered: Sequence[RateSample] = ()
    failures: Sequence[Failure] = ()
    reasons: Sequence[str] = ()


class ServerClient(CallHistory, ModelStatistics, ModelControl):
    """The server as the gateway's ports. Plain methods do not block. Event loop thread only."""

    def __init__(self, link: ServerLink, expected: Mapping[str, Expected]) -> None:
        """`expected` is kept up to date by its owner."""
        self._link = link
        self._expected = expected
        self._arrived: dict[tuple[str, str], int] = {}
        self._used = UsageCounts()
        self._woken: dict[str, Woken] = {}
        self.look: Callable[[], Seen] = Seen
        """Returns what the gateway has seen since the last call, after it has counted all arrivals
        and usage here."""
        self._number = 0
        self._unsettled: Activity | None = None
        """The last activity, until the server has answered that it is counted."""
        self._reporting = asyncio.Lock()

    def receive_demand(self, data: bytes) -> None:
        """Send a Demand to the pool manager."""
        self._link.send(Wants(data))

    def worker_lost(self, worker: str) -> None:
        """Do nothing: the server sees the end of the stream."""

    def expected(self, pool: str) -> Expected:
        """Return the expected duration of a revision's next cold start."""
        return self._expected.get(pool, UNKNOWN_REVISION)

    def arrived(self, namespace: str, name: str, count: int = 1) -> None:
        """Count requests for this function, for the next report."""
        key = (namespace, name)
        self._arrived[key] = self._arrived.get(key, 0) + count

    def used(self, row: UsageRow) -> None:
        """Add the usage of a call, for the next report."""
        self._used.add(row)

    def on_cold_start(
        self,
        namespace: str,
        function: str,
        replica: str,
        phases: Mapping[str, float],
        request: Labels | None = None,
    ) -> None:
        """Note that a request waited for this replica, for the next report. The server counts each
        start once."""
        if replica not in self._woken:
            self._woken[replica] = Woken(namespace, function, replica, dict(phases), request)
            if len(self._woken) > WOKEN_MAX:
                del self._woken[next(iter(self._woken))]

    async def statistics(self, pools: Sequence[str]) -> list[RevisionStatistics]:
        """Implement `ModelStatistics.statistics`."""
        return await self._link.ask(ReadStatistics(list(pools)))

    async def load(self, deployed: Deployed, wait_s: float) -> None:
        """Implement `ModelControl.load`."""
        revision = deployed.revision
        await self._link.ask(LoadModel(revision.namespace, revision.ref, wait_s))

    async def unload(self, deployed: Deployed) -> None:
        """Implement `ModelControl.unload`."""
        function = deployed.function
        await self._link.ask(UnloadModel(function.namespace, function.name))

    async def report(self) -> None:
        """Report what happened since the last report; return once it is counted, or the server does
        not answer. Nothing is sent while this gateway is apart."""
        async with self._reporting:
            if self._unsettled is None or await self._settle():
                self._unsettled = self._take()
                await self._settle()

    async def report_last(self) -> None:
        """Report all that is left, after coming back if this gateway is apart, for LAST_S."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_S):
                await self.report()
                while self._unsettled is not None and not self._link.is_gone:
                    await self._link.whole()
                    await self.report()

    def _take(self) -> Activity:
        tasks, answered, failures, reasons = self.look()
        arrived, self._arrived = self._arrived, {}
        woken, self._woken = self._woken, {}
        self._number += 1
        return Activity(
            self._number,
            tasks,
            list(answered),
            list(failures),
            list(reasons),
            [Arrived(*key, count) for key, count in arrived.items()],
            self._used.take(),
            list(woken.values()),
        )

    async def _settle(self) -> bool:
        """Send the unsettled activity; return whether it is counted."""
        if self._unsettled is None or not self._link.is_whole:
            return False
        try:
            await self._link.ask(self._unsettled)
        except ServerAway:
            return False
        except FnError:  # logged by the server, which would fail again
            pass
        self._unsettled = None
        return True
