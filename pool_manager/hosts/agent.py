"""A host's agent on the manager's side: its reports, and the GPUs as it reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from pool_manager.calls import Unanswered
from pool_manager.core import events
from pool_manager.ports import ControlConnections
from pool_manager.replicas.control import Control
from registry.tasks import Tasks
from runtime_image.contract.agent import REPORT_S, HostReport
from runtime_image.contract.gpus import NoDriver, Reading, Snapshot, XidEvent
from runtime_image.link.run_counts import RunCount

AGENT_ID: Final = "agent"
"""Id of the agent among the containers and folders of its host."""
STALE_S: Final = 3 * REPORT_S
"""Age of a report from which the agent counts as silent."""
FRESH_S: Final = 1.5
"""Time limit of a report that was asked for; less than a driver call's."""


class AgentReports:
    """The reports of one agent over its control link, also of its successors."""

    def __init__(
        self,
        host: str,
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._host = host
        self._clock = clock
        self._wall = wall
        self._control: Control | None = None
        self._came = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._at_s = 0.0
        self.last: HostReport | None = None
        self.clock_offset_s: float | None = None

    def open(
        self, token: str, connections: ControlConnections, tasks: Tasks, ping_s: float
    ) -> None:
        """Receive the reports of an agent from now on, in place of an earlier one."""
        self.close()
        self._control = Control(
            AGENT_ID, token, connections, None, _Receiver(), on_report=self._receive
        )
        self._control.open(tasks, ping_s)

    def close(self) -> None:
        """Receive no more reports."""
        if self._control is not None:
            self._control.close()
            self._control = None

    def _receive(self, report: HostReport) -> None:
        self.last, self._at_s = report, self._clock()
        self.clock_offset_s = report.wall_s - self._wall()
        came, self._came = self._came, asyncio.Event()
        came.set()

    @property
    def is_fresh(self) -> bool:
        """Whether the last report is recent enough to be used."""
        return self.last is not None and self._clock() - self._at_s < STALE_S

    async def next(self, timeout_s: float) -> HostReport:
        """Ask for a report and return it. Raises TimeoutError."""
        came = self._came
        if self._control is not None and self._control.is_greeted:
            self._control.ask()
        async with asyncio.timeout(timeout_s):
            await came.wait()
        assert self.last is not None
        return self.last

    def next_blocking(self) -> HostReport:
        """As `next`, from another thread. Raises Unanswered."""
        asked = asyncio.run_coroutine_threadsafe(self.next(FRESH_S), self._loop)
        try:
            return asked.result(2 * FRESH_S)
        except TimeoutError:
            asked.cancel()
            raise Unanswered(f"the agent of host {self._host} did not answer") from None


class _Receiver:
    """Receiver of an agent's control link, which ignores everything but reports."""

    def on_event(self, event: events.Event) -> None:
        """LinkReceiver: an agent has no events."""

    def on_pong(self, id: str, busy_ms: int, runs: Sequence[RunCount]) -> None:
        """LinkReceiver: the report comes with it."""

    def on_link_lost(self, id: str, reason: str, *, is_its_fault: bool) -> None:
        """LinkReceiver: reports become stale; the driver reports the end of its container."""


class RemoteNvml:
    """The GPUs of a host as its agent reads them; stands in for a session of NVML.

    Its methods run in a thread that may block. The agent keeps its own session.
    """

    def __init__(self, host: str, reports: AgentReports) -> None:
        self._host = host
        self._reports = reports
        self._seen_xid = 0
        self._number = 0

    def read(self) -> Snapshot:
        """Return the GPUs of the last report. Raises NoDriver, or Unanswered if it is stale."""
        report = self._reports.last
        if report is None or not self._reports.is_fresh:
            raise Unanswered(f"the agent of host {self._host} does not report")
        return gpus_of(report)

    def read_one(self, uuid: str) -> Reading | None:
        """Return one GPU or slice of a new report; None if it cannot be used. Raises NoDriver or
        Unanswered."""
        return gpus_of(self._reports.next_blocking()).find(uuid)

    def xids(self) -> list[XidEvent]:
        """Return the errors reported since the last call, oldest first."""
        report = self._reports.last
        if report is None:
            return []
        if report.number < self._number:  # another agent counts from 1 again
            self._seen_xid = 0
        self._number = report.number
        found = [event for number, event in report.xids if number > self._seen_xid]
        self._seen_xid = max((number for number, _ in report.xids), default=self._seen_xid)
        return found

    def renew(self) -> None:
        """Do nothing: the agent renews its session itself."""

    def close(self) -> None:
        """Do nothing: the session is the agent's."""


def gpus_of(report: HostReport) -> Snapshot:
    """Return the GPUs of a report. Raises NoDriver."""
    if report.gpus is None:
        raise NoDriver(report.no_driver, is_absent=report.is_absent)
    return report.gpus
