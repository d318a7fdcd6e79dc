"""Driver of a machine with a second host, gpu2."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from pool_manager.core import events
from pool_manager.core.commands import Command
from pool_manager.core.hosts import ALL_KINDS, HostRecord
from pool_manager.core.state import Device, PoolSpec
from registry.model.hosts import Ability
from tests.support.play import Play, cpus

HOST = "gpu2"
ABILITIES = frozenset({Ability.IMAGE})
SLOTS = (
    Device("gpu2/d0", "cpu", 8_000, "gpu2/ram", HOST),
    Device("gpu2/d1", "cpu", 8_000, "gpu2/ram", HOST),
)
FAR_GPU = Device("gpu2/GPU-1", "cuda", 8_000, host=HOST)


class FleetPlay(Play):
    """A `Play` with the host gpu2, which is up with `far` as its devices unless `is_up` is False.
    The local host has `near` CPU slots."""

    def __init__(
        self,
        *specs: PoolSpec,
        near: int = 0,
        far: Iterable[Device] = SLOTS,
        is_up: bool = True,
        standbys: int = 0,
        gpu_standbys: int = 0,
    ) -> None:
        super().__init__(*specs, devices=cpus(near), standbys=standbys, gpu_standbys=gpu_standbys)
        self.far = tuple(far)
        self.epochs = itertools.count(1)
        self.on(events.HostDefined(HOST))
        if is_up:
            self.up()

    @property
    def host(self) -> HostRecord:
        """The record of gpu2."""
        return self.machine.cluster.hosts[HOST]

    def up(self, *running: str, after_s: float = 0.0) -> list[Command]:
        """Connect to gpu2, where these replicas run."""
        return self.on(self.host_up(*running), after_s)

    def host_up(self, *running: str, standby_kinds: frozenset[str] = ALL_KINDS) -> events.HostUp:
        """Return the event of a new connection to gpu2, where these replicas run."""
        return events.HostUp(
            HOST,
            next(self.epochs),
            self.far,
            frozenset(running),
            0.001,
            ABILITIES,
            standby_kinds=standby_kinds,
        )

    def down(self, after_s: float = 0.0) -> list[Command]:
        """Lose the connection to gpu2."""
        return self.on(events.HostUnreachable(HOST, "no route"), after_s)

    def greet(self, id: str, *, loaded: bool = True) -> list[Command]:
        """Let a replica connect (again)."""
        return self.on(events.Greeted(id, {}, loaded))

    def found(self, id: str, pool: str, device: str = "gpu2/d0", host: str = HOST) -> None:
        """Find a replica of an earlier manager."""
        self.on(
            events.Found(
                id, pool, (device,) if device else (), "serve" if pool else "standby", host
            )
        )

    def contact(self, id: str) -> str:
        """Return how well a replica is known."""
        return self.replica(id).contact
