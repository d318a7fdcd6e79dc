"""The park of a trial: a server is put to sleep and woken once, before its report is passed on.

The machine sees a trial that is not over yet, charged in full. What the trial has measured counts
in any case: whatever goes wrong from here on, also the end of the server or of its sidecar, makes
a revision whose replicas are stopped instead of parked, with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from pool_manager.core import events
from pool_manager.core.state import Replica
from pool_manager.driver import MEMORY_KILL
from pool_manager.parks import ParkProofs
from pool_manager.ports import Binding
from pool_manager.replicas.control import Control
from pool_manager.replicas.messages import text
from pool_manager.replicas.relay import EXIT_S, Emit
from registry.errors import DriverError
from registry.model.parks import ParkProfile
from registry.tasks import Tasks
from runtime_image.contract.server import OVER_MEMORY, ServerSpec

log = structlog.get_logger()

PARK: Final = "park"
"""Key added to the report of a trial whose function has a table [park]: a `ParkProfile`."""
PARK_TRIAL_S: Final = 900.0
"""Most seconds of a trial's park."""
CALL_LEAST_S: Final = 60.0
"""A call to an engine may take as long as its start has taken, and at least this long: a wake that
takes longer than a start gains nothing."""
HOST_POLL_S: Final = 0.5
"""Seconds between two readings of the memory of a container."""
REASON_MAX: Final = 1000
"""Max characters of why a park does not work."""
CAP_ADVICE: Final = "; [device] memory_mib in function.toml is that cap"

Answer = events.ParkAnswered | events.UnparkAnswered | events.Verified
UsedMib = Callable[[str], Awaitable[float | None]]


class _ParkFailed(Exception):
    """The park does not work; the text says why."""


@dataclass(slots=True)
class _Trial:
    """A trial whose report is held back."""

    loaded: events.Loaded
    """Its report."""
    has_container: bool
    """Whether its server is apart, so that the driver measures its memory."""
    doing: str = "before its sleep"
    """What its engine is asked for, for the reason of its end."""
    send: Callable[[Control], None] = field(default=lambda _control: None)
    """Sends the last command: again, if the sidecar has connected anew."""
    answer: asyncio.Future[Answer] | None = None
    """The sidecar's answer to that command."""
    work: asyncio.Task[None] | None = None

    @property
    def limit_s(self) -> float:
        """Seconds that one call to its engine may take."""
        return max(CALL_LEAST_S, self.loaded.phases.get("load", 0.0) / 1e3)


class TrialParks:
    """Event stage that tries the parks of trials. Event loop thread only."""

    def __init__(  # noqa: PLR0913 - the ports of the manager
        self,
        emit: Emit,
        find: Callable[[str], Replica | None],
        bindings: Mapping[str, Binding],
        control: Callable[[str], Control | None],
        proofs: Callable[[], ParkProofs],
        used_mib: UsedMib,
        tasks: Tasks,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`find` and `control` are by id, `bindings` by pool key. `proofs` is called when there is
        a trial. `used_mib` is that of its host."""
        self._emit = emit
        self._find = find
        self._bindings = bindings
        self._control = control
        self._proofs = proofs
        self._used_mib = used_mib
        self._tasks = tasks
        self._clock = clock
        self.most_s = PARK_TRIAL_S
        """Most seconds of one park."""
        self.exit_s = EXIT_S
        """Seconds in which a replica whose engine has failed may turn out to have ended: that says
        more than the connection that broke."""
        self.pause: Callable[[float], Awaitable[None]] = asyncio.sleep
        """Awaited between two readings of a container's memory, and for `exit_s`."""
        self._held: dict[str, _Trial] = {}

    def emit(self, event: events.Event) -> None:
        """Emit `event`; the report of a trial with a park is emitted once that is over."""
        match event:
            case events.Loaded() if (binding := self._trial_of(event.id)) is not None:
                self._on_report(event, binding)
                return
            case events.ParkAnswered() | events.UnparkAnswered() | events.Verified():
                if (trial := self._held.get(event.id)) is not None:
                    if trial.answer is not None and not trial.answer.done():
                        trial.answer.set_result(event)
                    return
            case events.Greeted() if event.id in self._held:
                self._send(event.id, self._held[event.id])
            case events.Lost() | events.Released() if event.id in self._held:
                self._on_end(event)
        self._emit(event)

    def _trial_of(self, id: str) -> Binding | None:
        """Return the binding of a trial whose function has a table [park], else None."""
        replica = self._find(id)
        if replica is None or replica.role != "trial":
            return None
        binding = self._bindings.get(replica.pool)
        if binding is None or not isinstance(binding.spec, ServerSpec) or binding.spec.park is None:
            return None
        return binding

    def _on_report(self, event: events.Loaded, binding: Binding) -> None:
        trial = self._held[event.id] = _Trial(event, binding.container is not None)
        if why_not := event.report.get("no_park"):
            self._report(event.id, _failed(why_not))
        else:
            work = self._try(event.id, trial)
            trial.work = self._tasks.spawn(f"park of trial {event.id}", work)

    def _on_end(self, event: events.Lost | events.Released) -> None:
        """Report a trial whose replica has ended before its park was over."""
        trial = self._held[event.id]
        if trial.work is not None:
            trial.work.cancel()
        reason = event.reason if isinstance(event, events.Lost) else "it was stopped"
        is_over = reason.startswith(MEMORY_KILL) or OVER_MEMORY in reason
        advice = CAP_ADVICE if is_over else ""
        self._report(event.id, _failed(f"it ended {trial.doing}: {reason}{advice}"))

    def _report(self, id: str, park: ParkProfile) -> None:
        """Emit a held report, with what its park has shown."""
        if (trial := self._held.pop(id, None)) is not None:
            log.info("a trial's park", replica=id, works=park.works, reason=park.reason)
            self._emit(replace(trial.loaded, report={**trial.loaded.report, PARK: park}))

    async def _try(self, id: str, trial: _Trial) -> None:
        try:
            async with asyncio.timeout(self.most_s):
                park = await self._park(id, trial)
        except _ParkFailed as failed:
            park = _failed(str(failed))
        except TimeoutError:
            park = _failed(f"expected its end within {self.most_s:g} s, got none {trial.doing}")
        except Exception as error:
            # Without its report the deploy would wait for ever.
            log.exception("a trial's park failed", replica=id)
            park = _failed(f"it could not be tried: {error!r}")
        self._report(id, park)

    async def _park(self, id: str, trial: _Trial) -> ParkProfile:
        """Park and wake the server of a trial. Raises _ParkFailed."""
        proofs, limit_s = self._proofs(), trial.limit_s
        awake = await proofs.awake_mib(id)
        if isinstance(awake, str):
            raise _ParkFailed(awake)
        async with self._host_peak(id, trial) as peak:
            slept = await self._ask(id, trial, lambda link: link.park(0.0, limit_s), "as it slept")
            residue = await proofs.residue_mib(id, awake)
            if isinstance(residue, str):
                raise _ParkFailed(residue)
            woke = await self._ask(id, trial, lambda link: link.unpark(limit_s), "as it woke")
            assert isinstance(slept, events.ParkAnswered)
            assert isinstance(woke, events.UnparkAnswered)
        began_s = self._clock()
        await self._ask(id, trial, lambda link: link.verify(limit_s), "after its wake")
        return ParkProfile(
            works=True,
            sleep_s=slept.took_s,
            wake_s=woke.took_s,
            verify_s=self._clock() - began_s,
            host_mib=max(woke.host_mib, peak()),
            residue_mib=max(residue.values()),
        )

    async def _ask(
        self, id: str, trial: _Trial, send: Callable[[Control], None], doing: str
    ) -> Answer:
        """Send a command and return the sidecar's answer. Raises _ParkFailed for a problem."""
        trial.answer = asyncio.get_running_loop().create_future()
        trial.send, trial.doing = send, doing
        self._send(id, trial)
        found = await trial.answer
        if found.problem:
            await self.pause(self.exit_s)  # `_on_end` cancels it
            raise _ParkFailed(found.problem)
        return found

    def _send(self, id: str, trial: _Trial) -> None:
        """Send the last command. Without a control link the end of the replica follows."""
        control = self._control(id)
        if control is not None:
            trial.send(control)

    @asynccontextmanager
    async def _host_peak(self, id: str, trial: _Trial) -> AsyncIterator[Callable[[], float]]:
        """Read the memory of a container within the block; yield what returns the most MiB beyond
        those at the beginning, 0 for a server that is not apart: its sidecar measures it."""
        if not trial.has_container:
            yield lambda: 0.0
            return
        before_mib = await self._container_mib(id)
        most_mib = before_mib

        async def watch() -> None:
            nonlocal most_mib
            while True:
                await self.pause(HOST_POLL_S)
                most_mib = max(most_mib, await self._container_mib(id))

        work = self._tasks.spawn(f"host memory of trial {id}", watch())
        try:
            yield lambda: most_mib - before_mib
            most_mib = max(most_mib, await self._container_mib(id))
        finally:
            work.cancel()

    async def _container_mib(self, id: str) -> float:
        with contextlib.suppress(DriverError):
            return await self._used_mib(id) or 0.0
        return 0.0


def _failed(reason: str) -> ParkProfile:
    return ParkProfile(works=False, reason=text(reason, REASON_MAX))
