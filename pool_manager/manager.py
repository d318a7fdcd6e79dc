"""The pool manager: feeds events to the machine, carries out its commands, answers queries."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from pool_manager.builds import Built, RunningBuild
from pool_manager.compiled_models import COMMANDS, CompiledModels
from pool_manager.core import commands, events
from pool_manager.core.ledger import Charge
from pool_manager.core.machine import Machine
from pool_manager.core.pool import AT_REST, PoolForecast, forecast
from pool_manager.core.starts import Awaited
from pool_manager.core.state import Device, PoolSpec, Replica
from pool_manager.driver import Driver
from pool_manager.fleet import FleetImages
from pool_manager.golden import GoldenSamples
from pool_manager.gpus.occupancy import GpuOccupancy
from pool_manager.host import HostView
from pool_manager.hosts.hosts import EVENTS_OF_HOSTS, Hosts
from pool_manager.hosts.kinds import EngineFactory, engines_of
from pool_manager.hosts.local import LocalHost
from pool_manager.hosts.settings import HostSettings
from pool_manager.images import Images
from pool_manager.metrics import Counters, Step
from pool_manager.parked import PoolParks, park_memory_mib, parks_of
from pool_manager.parks import ParkProofs
from pool_manager.ports import Binding, Bundles, Gpus, NoSecrets, Recorder, Secrets
from pool_manager.replicas.actions import ReplicaActions
from pool_manager.replicas.adoption import adopt_all
from pool_manager.replicas.build_files import BuildFetcher
from pool_manager.replicas.launcher import Launcher
from pool_manager.replicas.logs import Follow
from pool_manager.replicas.prepared_models import PreparedFetcher
from pool_manager.replicas.relay import Emit, Wiring
from pool_manager.replicas.run_folders import RunFolders, new_ids
from pool_manager.replicas.trial_parks import TrialParks
from pool_manager.reports import Journal, Occupancy, Publisher, charges, occupancies
from pool_manager.runs import RunReports, RunTotals
from pool_manager.settings import PoolSettings
from pool_manager.subscribers import Subscribers
from pool_manager.usage import HeldTotal, UsageMonitor
from pool_manager.waiters import EngineWatch, PendingTrials, Warmed, WarmWaiters
from registry.builds import DeviceType
from registry.compilation import Compiled
from registry.exchange import Load, PoolEndpoints, decode_demand
from registry.model.history import Decision
from registry.model.hosts import Host
from registry.tasks import Alarm, Tasks, every
from runtime_image.contract.compiled import UpgradeResult
from runtime_image.contract.samples import SampleVerdict
from runtime_image.link.run_counts import RunCount

if TYPE_CHECKING:
    from hosts.tls.door import LinkDoor

log = structlog.get_logger()

WARM_S = 60.0
"""Default time limit of a request for a warm pool, in seconds."""
STOP_S = 45.0
"""Seconds that a shutdown waits for replicas: drain, TERM and KILL in total."""


class Manager:
    """Owner of the machine. Every method runs in the thread of one event loop.

    Gateways exchange only serialised messages with it: they call `receive_demand` and
    `worker_lost`, and receive endpoints through callbacks passed to `subscribe`.
    """

    def __init__(  # noqa: PLR0913 - settings and the ports
        self,
        settings: PoolSettings,
        driver: Driver,
        devices: Iterable[Device],
        bundles: Bundles,
        recorder: Recorder,
        gpus: Gpus | None = None,
        secrets: Secrets | None = None,
        remote: HostSettings | None = None,
        engine_of: EngineFactory | None = None,
        door: LinkDoor | None = None,
    ) -> None:
        """`devices` are those of this machine that replicas may use, of `gpus` as well. `remote` is
        None without other hosts, whose engines `engine_of` makes; `door` if none dials by TLS."""
        self._settings, self._clock = settings, time.monotonic
        self._wall = time.time  # noqa: TID251 - the shell passes the clock in
        self._tasks = Tasks("pool manager")
        folders = RunFolders(settings, for_others=driver.processes.has_other_users)
        local = LocalHost(settings, driver, bundles, folders, gpus)
        self._hosts = self._open_hosts(local, folders, bundles, remote, engine_of, door)
        self._fleet = fleet = self._hosts.fleet
        self._machine = Machine(
            devices,
            new_ids(settings.run_dir),
            settings.standbys,
            settings.gpu_standbys,
            host_lost_s=settings.host_lost_s,
            abilities=driver.abilities,
        )
        self._bindings: dict[str, Binding] = {}
        self._use = UsageMonitor(
            self._machine, self._bindings, recorder, (self._clock, self._wall), fleet.gpu_view
        )
        occupancy = GpuOccupancy(fleet.of, partial(charges, self._machine.cluster.ledger))
        wiring = Wiring(
            self._fetching(bundles),
            occupancy,
            self._on_pong,
            self._machine.cluster.start_priority,
            secrets or NoSecrets(),
        )
        self._launcher = Launcher(settings, fleet, folders, wiring, self._tasks, self._clock)
        self.counters = Counters(self._machine.cluster, self._launcher.starts)
        self._reports = RunReports(self._machine.replicas, self._launcher.control)
        self._journal = Journal(recorder, self._wall, settings.notes_kept)
        self._trials, self._warm = PendingTrials(), WarmWaiters(self.submit)
        self._engine = EngineWatch(fleet.list_of, self.submit, self._tasks)
        self._alarm = Alarm(self._clock, lambda: self.submit(events.Tick()))
        located, routes = self._launcher.located, self._hosts.routes
        self._publisher = Publisher(
            self._machine, self._journal, self._bindings, located, self._clock, routes
        )
        self._refuted = Subscribers[[str, str]]()
        self._compiled = CompiledModels(
            self._machine, self._launcher, self._bindings, self._tasks, self._wall
        )
        self.golden = self._sampling()
        self._proofs = ParkProofs(occupancy, self._tasks, self.submit, self._clock)
        self._none_left = asyncio.Event()
        self._events: deque[events.Event] = deque()
        self._actions = self._table()

    def _open_hosts(
        self,
        local: LocalHost,
        folders: RunFolders,
        bundles: Bundles,
        remote: HostSettings | None,
        engine_of: EngineFactory | None,
        door: LinkDoor | None,
    ) -> Hosts:
        return Hosts(
            local,
            remote.local_labels if remote is not None else {},
            engine_of or engines_of(remote, self._settings),
            {one.host for one in folders.read_records().values() if one is not None},
            self.submit,
            bundles.path,
            lambda record: self._launcher.rewrite(record),  # made later
            lambda name: self._launcher.is_answering(name),
            self._tasks,
            self._clock,
            self._wall,
            door,
        )

    def _sampling(self) -> GoldenSamples:
        """Return what asks replicas their golden samples."""
        return GoldenSamples(
            self._machine,
            self._launcher,
            self._bindings,
            self._tasks,
            self._clock,
            self.note,
            self.submit,
        )

    def _fetching(self, bundles: Bundles) -> Emit:
        """Return the receiver of replicas' events: the parks of trials are tried, and files of
        trials and builds are fetched first."""
        find = self._machine.cluster.find
        read = lambda id: self._launcher.reader(id)  # noqa: E731 - the launcher is made later
        trials = PreparedFetcher(self.submit, bundles, self._tasks, find, self._bindings, read)
        builds = BuildFetcher(trials.emit, bundles, self._tasks, find, self._bindings, read)
        parks = TrialParks(
            builds.emit,
            find,
            self._bindings,
            lambda id: self._launcher.control(id),
            lambda: self._proofs,
            lambda id: self._fleet.of(id).processes.used_mib(id),
            self._tasks,
            self._clock,
        )
        return parks.emit

    def _table(self) -> dict[type, Callable[[Any], None]]:
        """Return the action of each command type."""
        return {
            **ReplicaActions(self._machine, self._launcher, self._bindings).table(),
            commands.RecordRefutation: lambda c: self._refuted.notify(c.key, c.reason),
            commands.Publish: lambda c: self._publisher.publish(c.keys),
            commands.EndTrial: self._trials.end,
            commands.EndWarm: self._warm.end,
            commands.WatchEngine: lambda c: self._engine.begin(c.reason, c.host),
            commands.Note: lambda c: self._journal.note(c.key, c.text),
            commands.RecordColdStart: self._keep_cold_start,
            commands.ProvePark: self._proofs.prove,
            commands.RecordWake: self._note_wake,
            commands.AskSample: lambda c: self.golden.ask_silent(c.id),
            commands.RecordSilence: lambda c: log.warning(
                "a server is not answering", replica=c.id, pool=c.key, reason=c.reason
            ),
            commands.RecordReplacement: lambda c: log.warning(
                "a server was replaced",
                replica=c.id,
                pool=c.key,
                cause=str(c.cause),
                reason=c.reason,
            ),
            **dict.fromkeys(COMMANDS, self._compiled.execute),
        }

    async def start(self) -> None:
        """Adopt the replicas of an earlier manager, then begin to make decisions."""
        self._hosts.define_first()
        await adopt_all(self._fleet, self._launcher, self.submit)
        self.submit(events.ReplicasListed())
        self._hosts.start()
        self._tasks.root("tick", every(self._settings.tick_s, self._tick))
        trim = self._launcher.output.trim_for_ever(self._bindings, self._wall)
        self._tasks.root("trim logs", trim)

    @property
    def tasks(self) -> Tasks:
        """The owner of the background tasks."""
        return self._tasks

    async def close(self) -> None:
        """Drain and release every replica, then stop. Pending trials, builds and warm-ups fail."""
        self._trials.close()
        self._compiled.close()
        self._warm.close()
        self.submit(events.Shutdown())
        try:
            async with asyncio.timeout(STOP_S):
                await self._none_left.wait()
        except TimeoutError:
            log.error("replicas are left", ids=[r.id for r in self._machine.replicas()])
        self._alarm.clear()
        await self._hosts.close()
        await self._tasks.close()
        self._use.flush(is_last=True)
        await self._hosts.close_own()

    def define_host(self, host: Host) -> None:
        """Add a host, or change its settings; for LOCAL_HOST its labels and `is_draining` alone.
        Hosts that replicas of an earlier manager may be on are defined before `start`.

        Raises BadRequest for an address that cannot be one, DriverError if this server can have no
        other hosts.
        """
        self._hosts.define(host)

    def remove_host(self, name: str, *, force: bool = False) -> None:
        """Begin to remove a host: it drains, then it is forgotten (`subscribe_hosts`). With
        `force`, replicas of an unreachable host are given up. Raises Unknown."""
        self._hosts.remove(name, is_forced=force)

    def why_kept(self, host: str) -> str:
        """Return why the admin API cannot change or remove a host, "" if it can."""
        return self._hosts.why_kept(host)

    def hosts(self) -> list[HostView]:
        """Return every host: this machine first, then by name."""
        return self._hosts.views(self._machine)

    def host(self, name: str) -> HostView | None:
        """Return a host, None if there is none of this name."""
        return self._hosts.view(name, self._machine)

    def hosts_of(self, name: str) -> list[HostView]:
        """Return the hosts of a definition by name: none for one whose hosts are not known yet."""
        return self._hosts.views_of(name, self._machine)

    def complaint_of(self, name: str) -> str:
        """Return what is wrong with all hosts of a definition, "" for nothing."""
        return self._hosts.complaint_of(name)

    def subscribe_hosts(self, receiver: Callable[[str], None]) -> Callable[[], None]:
        """Call `receiver` with the name of each host whose view changed, also after its removal;
        returns a function that unsubscribes."""
        return self._hosts.changed.subscribe(receiver)

    def define(self, spec: PoolSpec, binding: Binding) -> None:
        """Add a revision's pool, or change its settings."""
        self._bindings[spec.key] = binding
        self._reports.totals.define(spec.key)
        self.submit(events.PoolDefined(spec))
        self._hosts.stocking.touch()

    def remove(self, key: str) -> None:
        """Remove a revision's pool: its replicas are drained."""
        self.submit(events.PoolRemoved(key))
        self._reports.totals.forget(key)
        self._hosts.stocking.touch()

    async def trial(self, spec: PoolSpec, binding: Binding) -> dict[str, Any]:
        """Load a bundle in a throw-away replica and return its report.

        Raises ModelRefused with the reason, the stage and the last log lines; TrialKilled if the
        replica was killed from outside; ShuttingDown.
        """
        trial = replace(spec, role="trial")
        try:
            return await self._trials.wait(spec.key, lambda: self.define(trial, binding))
        finally:
            self.remove(spec.key)

    async def build(self, spec: PoolSpec, binding: Binding) -> Built:
        """Compile the model of a revision by `binding.spec.build` on a spare device that its pool
        may use. `spec` is the revision's, but for the `memory_mib` of a build.

        Waits for a device without a limit; a cancelled call ends the build. Raises BuildGivenUp if
        something else needs the device, the memory does not suffice, or the build was killed from
        outside; BuildFailed; Conflict if the model is being built; ShuttingDown.
        """
        begin = partial(self.define, binding=binding)
        return await self._compiled.build(spec, begin, self.remove)

    def builds(self) -> list[RunningBuild]:
        """Return every build that runs or waits for a device."""
        return self._compiled.builds()

    async def upgrade(self, key: str, compiled: Compiled) -> dict[str, UpgradeResult]:
        """Give the ready replicas of a pool, on devices of the target's type, a compiled model with
        its stored files; return the outcome by replica id. `session` is "" where a replica did not
        answer.

        `define` comes before, with the same model: a replica that loads now is upgraded when it is
        ready, and so is one of an earlier server.
        """
        return await self._compiled.upgrade(key, compiled)

    async def warm(self, key: str, *, beside: bool = False, timeout_s: float = WARM_S) -> Warmed:
        """Get one replica of a pool ready; return the outcome.

        With `beside`, the replica is started only if it fits at once beside the function's other
        replicas, exceeding `max` if necessary; idle replicas of other functions are evicted.
        Without it, the request waits for room for up to `timeout_s`.
        """
        return await self._warm.wait(key, beside=beside, timeout_s=timeout_s)

    def park(self, key: str) -> None:
        """Park a pool's idle replicas now, down to its `min`. Why others stay is decided at once
        (`subscribe_decisions`)."""
        self.submit(events.ParkRequested(key))

    async def unpark(self, key: str, *, timeout_s: float = WARM_S) -> Warmed:
        """Wake a parked replica of a pool; return the outcome, as `warm` does."""
        return await self._warm.wait(key, beside=False, timeout_s=timeout_s, is_parked=True)

    def parks(self, key: str) -> PoolParks | None:
        """Return the parks of a pool, None if there is no such pool."""
        pool = self._machine.pools.get(key)
        return parks_of(pool, self._machine.cluster) if pool is not None else None

    def parks_off(self) -> list[tuple[str, str]]:
        """Return each pool whose replicas are not parked any more, and the reason."""
        there = self._machine.pools.values()
        return [(one.key, one.parks.off) for one in there if one.parks.off and not one.removed]

    def sleep(self, key: str, *, force: bool = False) -> None:
        """Drain a pool's idle replicas now, down to its `min`; with `force` those with calls in
        flight as well, which they finish."""
        self.submit(events.SleepRequested(key, force))

    def unload(self, key: str) -> None:
        """Drain a pool's replicas down to its `min` as soon as they are idle, until one is started.
        A later `warm` takes this back."""
        self.submit(events.UnloadRequested(key))

    def retry(self, key: str) -> None:
        """Start a pool's replicas at once although starts have failed: their cause was removed."""
        self.submit(events.CauseRemoved(key))

    def subscribe_refutations(self, receiver: Callable[[str, str], None]) -> Callable[[], None]:
        """Call `receiver` with the key of each pool whose requests must no longer be batched, and
        the reason; at once for pools already known. Returns a function that unsubscribes."""
        for pool in self._machine.pools.values():
            if pool.refuted:
                receiver(pool.key, pool.refuted)
        return self._refuted.subscribe(receiver)

    def subscribe_not_compiled(
        self, receiver: Callable[[str, DeviceType, str], None]
    ) -> Callable[[], None]:
        """Call `receiver` with a pool's key, the type of device, and the reason each time that a
        replica does not use the compiled model it was given. Returns a function that
        unsubscribes."""
        return self._compiled.not_compiled.subscribe(receiver)

    async def remove_old_runners(self) -> None:
        """Remove the code for Python functions that no replica uses any more."""
        await self._launcher.remove_old_runners()

    def note(self, key: str, text: str) -> None:
        """Record a decision about a pool that another component made."""
        self._journal.note(key, text)

    def receive_demand(self, data: bytes) -> None:
        """Handle a Demand message of a gateway worker."""
        demand = decode_demand(data)
        self.submit(events.DemandReported(demand))
        self._publisher.add_worker(demand.worker)

    def worker_lost(self, worker: str) -> None:
        """Handle the end of a gateway worker's connection."""
        self._publisher.remove_worker(worker)
        self.submit(events.WorkerLost(worker))

    def subscribe(self, receiver: Callable[[bytes], None]) -> Callable[[], None]:
        """Call `receiver` with every Endpoints message; returns a function that unsubscribes."""
        return self._publisher.messages.subscribe(receiver)

    @property
    def runs(self) -> RunTotals:
        """Successful runs of every revision by batch size, as its replicas last reported."""
        return self._reports.totals

    async def refresh_runs(self, pools: Collection[str]) -> None:
        """Ask the replicas of these revisions for their runs up to now; takes at most 0.25 s."""
        await self._reports.refresh(pools)

    def replicas(self) -> list[Replica]:
        """Return every replica that is not yet stopped."""
        return self._machine.replicas()

    def charge(self, id: str) -> Charge:
        """Return what a replica is charged."""
        return self._machine.cluster.ledger.charge_of(id)

    def park_memory_mib(self) -> dict[str, float]:
        """Return the MiB of each host's memory that are charged to replicas that sleep, or have
        slept; hosts whose memory is not accounted are left out."""
        return park_memory_mib(self._machine.cluster)

    def devices(self) -> list[Device]:
        """Return every device of this host."""
        return list(self._machine.devices.values())

    def suitable(self, key: str) -> list[Device]:
        """Return the devices of all hosts that replicas of a pool may ever be on."""
        return self._compiled.suitable(key)

    def occupancies(self) -> list[Occupancy]:
        """Return every device of this host with its replicas, memory and state."""
        return occupancies(self._machine, self._fleet.gpu_view)

    def busy(self, device: str) -> float | None:
        """Return the share of the last seconds in which a model ran on a device, 0 to 1; None if
        unknown."""
        return self._use.busy(device)

    def held_totals(self) -> list[HeldTotal]:
        """Return the device-seconds and joules of functions since the server's start."""
        return self._use.totals()

    def not_answering(self) -> list[tuple[str, str]]:
        """Return each ready server that does not answer, as pool and reason."""
        there = self._machine.replicas()
        return [(one.pool, one.trouble) for one in there if one.trouble and one.is_listed]

    def trouble(self, key: str) -> str:
        """Return why a ready server of a pool does not answer, "" while all do."""
        pool = self._machine.pools.get(key)
        there = pool.replicas.values() if pool is not None else ()
        return next((one.trouble for one in there if one.trouble and one.is_listed), "")

    @property
    def gpu_silence(self) -> str:
        """Reason why the GPU driver does not answer, "" while it does."""
        return self._fleet.first.gpus.silence

    @property
    def engine_down(self) -> str:
        """Reason why nothing can be started or stopped, "" while the engine answers."""
        return self._machine.cluster.engine_down

    def pool(self, key: str) -> tuple[PoolEndpoints, int, float] | None:
        """Return a pool's endpoints, wanted replicas, and the Unix time at which its present state
        began; None if there is no such pool."""
        if key not in self._machine.pools:
            return None
        shown = self._publisher.endpoints(key)
        verdict, reason = self.golden.verdict(key)
        if verdict is SampleVerdict.WRONG and shown.state == "warm":
            why = f"it answers its golden sample wrong: {reason}"
            shown = msgspec.structs.replace(shown, reason=why)
        return shown, self._machine.pools[key].wanted, self._journal.since_s(key)

    @property
    def images(self) -> Images | None:
        """Images that servers may run, None under a driver that runs none."""
        own = self._fleet.first.driver.images
        return FleetImages(own, self._fleet) if own is not None else None

    def forecast(self, key: str) -> PoolForecast:
        """Return the forecast of a pool."""
        pool = self._machine.pools.get(key)
        if pool is None:
            return AT_REST
        return forecast(pool, self._machine.cluster.demand.load(key).busy, self._clock())

    def load(self, key: str) -> Load:
        """Return the calls of a pool as the gateways reported them last."""
        return self._machine.cluster.demand.load(key)

    def loads(self) -> dict[str, Load]:
        """Return `load` of every pool that has calls."""
        demand = self._machine.cluster.demand
        return {key: demand.load(key) for key in demand.active()}

    def wakes_by_standby(self, key: str) -> bool:
        """Whether the pool's starting replica was a standby; if none is starting, whether the next
        one would be."""
        pool = self._machine.pools.get(key)
        return pool is not None and self._machine.cluster.wakes_by_standby(pool)

    def blocked(self, key: str) -> str:
        """Return why a pool cannot get the replicas that it wants, "" if it can."""
        pool = self._machine.pools.get(key)
        return pool.blocked if pool is not None else ""

    def awaited(self, key: str) -> Awaited | None:
        """Return what a starting server of a pool, or of a trial, is waited for; None if that is
        not to be told."""
        pool = self._machine.pools.get(key)
        return pool.awaited(self._clock()) if pool is not None else None

    def kept_by(self, key: str) -> list[str]:
        """Return the names of the functions whose `min` keeps the devices that a pool waits for."""
        pool = self._machine.pools.get(key)
        return [one.rpartition("/")[2] for one in pool.kept_by] if pool is not None else []

    def decisions(self, key: str) -> list[Decision]:
        """Return the decisions about a pool, oldest first."""
        return self._journal.decisions(key)

    def subscribe_decisions(self, receiver: Callable[[str, Decision], None]) -> Callable[[], None]:
        """Call `receiver` with each decision as it is made, and its pool's key; returns a function
        that unsubscribes."""
        return self._journal.decided.subscribe(receiver)

    async def logs(self, function: str) -> list[tuple[str, bytes]]:
        """Return the kept output of a function's replicas as (replica id, bytes), oldest first."""
        return await self._launcher.output.kept(function)

    def follow(
        self, function: str, lines: int, cursor: str = ""
    ) -> AbstractAsyncContextManager[Follow]:
        """Follow the output of a function's replicas, from `cursor` on or from the last `lines`."""
        return self._launcher.output.follow(function, lines, cursor)

    def submit(self, event: events.Event) -> None:
        """Handle one event and carry out its commands. Commands start slow work in the background
        and never block."""
        self._events.append(event)
        if len(self._events) > 1:
            return  # submitted by an action of an outer call, which will handle it
        while self._events:
            try:
                self._handle(self._events[0])
            finally:
                self._events.popleft()
        self._alarm.set(self._machine.due_s(self._clock()))
        if self._machine.is_stopped:
            self._none_left.set()

    def _handle(self, event: events.Event) -> None:
        """Handle one event. An exception in it, in a command or in a counter is logged and counted,
        and does not stop the others."""
        asked: list[commands.Command] = []
        if isinstance(event, events.Observed):
            event = replace(event, gpu=self._gpu_use(event.id))
        with self._reported("event", "an event could not be handled", event):
            self._machine.handle(event, self._clock(), asked)
        if isinstance(event, EVENTS_OF_HOSTS):
            with self._reported("event", "the hosts could not be compared", event):
                self._sync_hosts(event)
        with self._reported("event", "an upgrade could not begin", event):
            self._compiled.observe(event)
        self._count(event)
        for command in asked:
            self._count(command)
            with self._reported("command", "a command could not be done", command):
                self._actions[type(command)](command)

    def _gpu_use(self, id: str) -> float | None:
        """Return the use of the busiest of a replica's GPUs, 0 to 1; 0 without one, None if that of
        one is unknown."""
        replica, known = self._machine.replica(id), self._machine.devices
        devices = replica.devices if replica is not None else ()
        uses: list[float] = []
        for device in devices:
            if device in known and known[device].kind != "cpu":
                view = self._fleet.gpu_view(known[device])
                if view is None or view.utilization is None:
                    return None
                uses.append(view.utilization)
        return max(uses, default=0.0)

    def _sync_hosts(self, event: events.Event) -> None:
        if isinstance(event, events.HostUp):
            self._launcher.host_is_up(event.host)
        self._hosts.sync(self._machine)

    def _count(self, about: events.Event | commands.Command) -> None:
        with self._reported("metering", "an event or a command could not be counted", about):
            self.counters.note(about)
        with self._reported("metering", "the use of a device could not be counted", about):
            self._use.observe(about)

    @contextlib.contextmanager
    def _reported(self, step: Step, failure: str, about: object) -> Iterator[None]:
        """Log and count whatever the block raises."""
        try:
            yield
        except Exception:
            self.counters.failed(step)
            log.exception(failure, about=about)

    def _on_pong(self, id: str, busy_ms: int, runs: Sequence[RunCount]) -> None:
        self._use.on_pong(id, busy_ms)
        replica = self._machine.replica(id)
        self._reports.on_pong(replica.pool if replica is not None else "", runs)

    def _tick(self) -> None:
        for memory in self._hosts.memories():
            self.submit(memory)
        self.submit(events.Tick())
        self._launcher.output.tick()
        self._use.tick()
        self.golden.tick()
        self._hosts.stocking.tick(self._machine, self._bindings)
        # Published again without a change, so that a gateway that could not connect tries again.
        self._publisher.publish(frozenset({one.pool for one in self._machine.replicas()}))

    @staticmethod
    def _note_wake(command: commands.RecordWake) -> None:
        about = {"replica": command.id, "pool": command.key, "s": round(command.took_s, 3)}
        if command.outcome == "right":
            log.info("a parked replica woke", **about)
        else:
            log.warning("a parked replica did not wake right", **about, reason=command.reason)

    def _keep_cold_start(self, command: commands.RecordColdStart) -> None:
        binding = self._bindings.get(command.key)
        device = self._machine.first_device(command.devices)
        if binding is not None:
            self._journal.cold_start(command, binding, device.kind if device else "unknown")
