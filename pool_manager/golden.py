"""Golden samples of replicas: asked through their sidecars, at intervals while they are idle."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import structlog

from pool_manager.core import events
from pool_manager.core.health.sampling import Checked, Idle, SampleSchedule
from pool_manager.core.machine import Machine
from pool_manager.core.state import Replica
from pool_manager.ports import Binding
from pool_manager.replicas.launcher import Launcher
from registry.tasks import Tasks
from runtime_image.contract.samples import GoldenSample, Sampled, SampleVerdict
from runtime_image.contract.server import ServerSpec

log = structlog.get_logger()

MARGIN_S: Final = 10.0
"""Seconds beyond the sidecar's own limit, after which its answer is not awaited any more."""


class SampleCount(NamedTuple):
    """Checks of a function's golden samples with one verdict since the server's start."""

    namespace: str
    function: str
    verdict: SampleVerdict
    checks: int


class GoldenSamples:
    """Golden samples of one manager's replicas. Event loop thread only.

    It decides nothing about replicas: the machine gets what their samples show. A wrong answer is
    shown, logged and counted.
    """

    def __init__(  # noqa: PLR0913 - the ports of the manager
        self,
        machine: Machine,
        launcher: Launcher,
        bindings: Mapping[str, Binding],
        tasks: Tasks,
        clock: Callable[[], float],
        note: Callable[[str, str], None],
        submit: Callable[[events.Event], None],
    ) -> None:
        """`note(key, text)` records a decision about a pool. `submit` gets SampleAnswered."""
        self._machine = machine
        self._launcher = launcher
        self._bindings = bindings
        self._tasks = tasks
        self._clock = clock
        self._note = note
        self._submit = submit
        self._schedule = SampleSchedule()
        self._counts: Counter[tuple[str, str, SampleVerdict]] = Counter()
        self._reasons: dict[str, str] = {}
        """What was wrong, by the replica that answered wrong last."""

    def tick(self) -> None:
        """Begin the checks that are due."""
        replicas = self._machine.replicas()
        idle = [found for one in replicas if (found := self._idle(one)) is not None]
        for id in self._schedule.due(idle, {one.id for one in replicas}, self._clock()):
            self._tasks.spawn(f"golden sample {id}", self._check(id))
        there = {self._function(one.key) for one in self._machine.pools.values()}
        gone = [key for key in self._counts if key[:2] not in there]
        for key in gone:
            del self._counts[key]

    def ask_silent(self, id: str) -> None:
        """Begin to ask a server whose exchanges stand still; SampleAnswered follows, always."""
        self._tasks.spawn(f"golden sample of silent {id}", self._ask_silent(id))

    async def ask(self, id: str) -> Sampled:
        """Have a replica asked its golden sample once; return what that showed: NONE if it has
        none, or if it ends meanwhile."""
        replica, control = self._machine.replica(id), self._launcher.control(id)
        sample = self._sample(replica) if replica is not None else None
        if sample is None or control is None:
            return _nothing("it has no golden sample")
        try:
            async with asyncio.timeout(2 * sample.limit_s + MARGIN_S):
                return await control.sample()
        except TimeoutError:
            return _nothing("its sidecar did not answer")
        except OSError as error:
            return _nothing(str(error))

    def verdict(self, key: str) -> tuple[SampleVerdict, str]:
        """Return the worst verdict of the last checks of a pool's replicas, and what was wrong."""
        pool = self._machine.pools.get(key)
        found = {id: self._schedule.verdict(id) for id in pool.replicas} if pool else {}
        for verdict in (SampleVerdict.WRONG, SampleVerdict.NO_ANSWER, SampleVerdict.RIGHT):
            for id, one in found.items():
                if one is verdict:
                    return verdict, self._reasons.get(id, "")
        return SampleVerdict.NONE, ""

    def counts(self) -> list[SampleCount]:
        """Return the checks by function and verdict. Functions with a replica that has a sample
        have all verdicts from 0 on: Prometheus sees no increase in a series that begins with 1."""
        counts = Counter(self._counts)
        for replica in self._machine.replicas():
            is_there = replica.pool in self._machine.pools
            if is_there and replica.role == "serve" and self._sample(replica) is not None:
                for verdict in SampleVerdict:
                    counts.setdefault((*self._function(replica.pool), verdict), 0)
        return [SampleCount(*key, checks) for key, checks in sorted(counts.items())]

    def _idle(self, replica: Replica) -> Idle | None:
        pool = self._machine.pools.get(replica.pool)
        every_s = pool.spec.sample_every_s if pool is not None else 0.0
        if not every_s or replica.role != "serve" or not replica.is_ready:
            return None
        is_called = self._machine.cluster.demand.is_busy(replica.pool)
        if is_called or self._sample(replica) is None:
            return None
        return Idle(replica.id, replica.ready_s, every_s)

    def _sample(self, replica: Replica) -> GoldenSample | None:
        binding = self._bindings.get(replica.pool)
        device = self._machine.first_device(replica.devices)
        spec = binding.on(device).spec if binding is not None else None
        return spec.golden if isinstance(spec, ServerSpec) else None

    async def _ask_silent(self, id: str) -> None:
        found = _nothing("it could not be asked")
        try:
            found = await self.ask(id)
            if found["verdict"] == SampleVerdict.WRONG:
                found = await self.ask(id)
        finally:
            verdict, replica = SampleVerdict(found["verdict"]), self._machine.replica(id)
            if replica is not None and verdict is not SampleVerdict.NONE:
                self._counts[(*self._function(replica.pool), verdict)] += 1
            self._submit(events.SampleAnswered(id, verdict, found["reason"], in_silence=True))

    async def _check(self, id: str) -> None:
        found = await self.ask(id)
        verdict, replica = SampleVerdict(found["verdict"]), self._machine.replica(id)
        checked = self._schedule.answered(id, verdict, self._clock())
        if checked is None or replica is None:
            return
        self._counts[(*self._function(replica.pool), verdict)] += 1
        if verdict is not SampleVerdict.NONE:
            self._reasons = {
                one: text for one, text in self._reasons.items() if self._machine.replica(one)
            }
            self._reasons[id] = found["reason"]
            self._tell(replica, checked, found["reason"])
            self._submit(events.SampleAnswered(id, verdict, found["reason"], in_silence=False))

    def _tell(self, replica: Replica, checked: Checked, reason: str) -> None:
        """Say in the journal what has changed, and in the log what is not right."""
        texts = {
            SampleVerdict.WRONG: f"{replica.id} answers its golden sample wrong: {reason}",
            SampleVerdict.NO_ANSWER: f"{replica.id} does not answer its golden sample: {reason}",
            SampleVerdict.RIGHT: f"{replica.id} answers its golden sample right again",
        }
        is_first = checked == (SampleVerdict.RIGHT, SampleVerdict.NONE)
        if checked.verdict is not checked.before and not is_first:
            self._note(replica.pool, texts[checked.verdict])
        if checked.verdict is SampleVerdict.WRONG:
            log.warning(
                "a golden sample is answered wrong",
                replica=replica.id,
                pool=replica.pool,
                reason=reason,
            )
        elif checked.verdict is SampleVerdict.NO_ANSWER:
            log.warning(
                "a golden sample is not answered",
                replica=replica.id,
                pool=replica.pool,
                reason=reason,
            )

    @staticmethod
    def _function(key: str) -> tuple[str, str]:
        """Return namespace and name of the function of a pool."""
        namespace, _, ref = key.partition("/")
        return namespace, ref.partition("@")[0]


def _nothing(reason: str) -> Sampled:
    return {"verdict": SampleVerdict.NONE, "ms": 0.0, "reason": reason}
