"""Driver of a pool machine: events in, commands out, with a manual clock."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from pool_manager.core import events
from pool_manager.core.commands import Assign, Command, Launch, Note, Publish, RecordColdStart
from pool_manager.core.machine import Machine
from pool_manager.core.pool import Pool
from pool_manager.core.state import Device, PoolSpec, Replica, State
from registry.exchange import Demand, Load


def cpus(count: int, memory_mib: float = 0.0) -> list[Device]:
    """Return CPU slots that share one memory bank."""
    return [Device(f"d{number}", "cpu", memory_mib, "ram") for number in range(count)]


def gpus(count: int) -> list[Device]:
    """Return GPUs whose memory is not accounted."""
    return [Device(f"d{number}", "cuda", bank="ram") for number in range(count)]


LOAD_S = 1 / 256
"""Load time of a replica in seconds; a power of two, because clocks are compared exactly."""


class Play:
    """A machine with its clock. `devices` as a number are GPUs, which a replica holds also while it
    is idle, or CPU slots if there are `standbys` for them. Replica ids are r1, r2, ... in order of
    launch; `a` stands for the pool default/a@1, `b` for default/b@1 and so on."""

    def __init__(
        self,
        *specs: PoolSpec,
        devices: int | Sequence[Device] = 2,
        standbys: int = 0,
        gpu_standbys: int = 0,
        is_open: bool = True,
    ) -> None:
        numbers = itertools.count(1)
        there = devices
        if isinstance(devices, int):
            there = cpus(devices) if standbys else gpus(devices)
        self.machine = Machine(there, lambda: f"r{next(numbers)}", standbys, gpu_standbys)
        self.now = 1000.0
        self.notes: list[Note] = []
        self.receipts: list[RecordColdStart] = []
        self.published: list[frozenset[str]] = []
        self._seq = itertools.count(1)
        for spec in specs:
            self.on(events.PoolDefined(spec))
        if is_open:
            self.on(events.ReplicasListed())

    def on(self, event: events.Event, after_s: float = 0.0) -> list[Command]:
        """Feed an event; return its commands. Notes, receipts and publications are stored
        instead."""
        self.now += after_s
        commands = self.machine.handle(event, self.now)
        self.notes += [c for c in commands if isinstance(c, Note)]
        self.receipts += [c for c in commands if isinstance(c, RecordColdStart)]
        self.published += [c.keys for c in commands if isinstance(c, Publish)]
        return [c for c in commands if not isinstance(c, Note | RecordColdStart | Publish)]

    def demand(self, after_s: float = 0.0, worker: str = "w1", **queued: int) -> list[Command]:
        """Report queued requests: `a=3` means 3 for pool a. Unnamed pools have none."""
        loads = {f"default/{name}@1": Load(n, 0, 0.0) for name, n in queued.items()}
        return self.hear(loads, after_s, worker)

    def run(self, after_s: float = 0.0, worker: str = "w1", **in_flight: int) -> list[Command]:
        """Report requests in flight: `a=3` means 3 for pool a. Nothing is queued."""
        loads = {f"default/{name}@1": Load(0, n, 0.0) for name, n in in_flight.items()}
        return self.hear(loads, after_s, worker)

    def hear_all(
        self,
        after_s: float = 0.0,
        *,
        in_flight: dict[str, int],
        queued: dict[str, int],
        more: dict[str, int] | None = None,
    ) -> list[Command]:
        """Report requests in flight and queued, `{"a": 3}` for 3 of pool a; `more` are queued ones
        by key."""
        loads = {
            f"default/{name}@1": Load(queued.get(name, 0), in_flight.get(name, 0), 0.0)
            for name in in_flight | queued
        }
        loads |= {key: Load(count, 0, 0.0) for key, count in (more or {}).items()}
        return self.hear(loads, after_s)

    def hear(
        self, loads: dict[str, Load], after_s: float = 0.0, worker: str = "w1", *, full: bool = True
    ) -> list[Command]:
        """Feed a gateway worker's Demand."""
        return self.on(
            events.DemandReported(Demand(worker, next(self._seq), full, loads, list(loads))),
            after_s,
        )

    def tick(self, after_s: float = 0.0) -> list[Command]:
        return self.on(events.Tick(), after_s)

    def seconds(self, count: int, **in_flight: int) -> list[Command]:
        """Report this load and tick once per second for `count` seconds."""
        commands: list[Command] = []
        for _ in range(count):
            commands += self.run(1.0, **in_flight)
            commands += self.tick()
        return commands

    def ready(self, *ids: str, memory_mib: float = 80.0) -> None:
        """Let these replicas connect and load; the clock advances by LOAD_S."""
        for id in ids:
            self.on(events.Greeted(id, {"start": 3.0}))
            self.on(events.Loaded(id, 4, True, memory_mib, {"load": LOAD_S * 1e3}))
        self.now += LOAD_S

    def warm(self, **names: str) -> None:
        """`a="r1"`: call pool a, start r1 until it is ready, then end the demand."""
        for name, id in names.items():
            self.demand(**{name: 1})
            self.ready(id)
            self.demand()

    def lose(self, id: str, reason: str = "exit 1") -> list[Command]:
        """Let a replica die and be released."""
        self.on(events.Lost(id, reason, ("last line",)))
        return self.on(events.Released(id))

    def state(self, id: str) -> State:
        replica = self.machine.replica(id)
        return replica.state if replica else State.STOPPED

    def replica(self, id: str) -> Replica:
        replica = self.machine.replica(id)
        assert replica is not None
        return replica

    def pool(self, name: str) -> Pool:
        return self.machine.pools[f"default/{name}@1"]

    def reason(self, name: str) -> str:
        """Return a pool's reason as published to gateways."""
        return self.machine.endpoints(f"default/{name}@1", self.now).reason

    def shown(self, name: str) -> str:
        """Return a pool's state as published to gateways."""
        return self.machine.endpoints(f"default/{name}@1", self.now).state


def launched(commands: list[Command]) -> list[tuple[str, str]]:
    """Return (id, device) of every launch, several joined by a space, "" for none."""
    return [(c.id, " ".join(c.devices)) for c in commands if isinstance(c, Launch)]


def assigned(commands: list[Command]) -> list[tuple[str, str]]:
    """Return (id, pool) of every assigned standby."""
    return [(c.id, c.pool) for c in commands if isinstance(c, Assign)]
