"""Simulated hosts: links, transfers of files, caches, losses of power."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from admin.advice.fleet import Fleet
from admin.advice.load_model import HOUR_S, Ask, Clock, Figures, Function, Process
from benchmarks.simulation.settings import Settings
from pool_manager.core import commands, events
from pool_manager.core.hosts import HostRecord, HostState
from pool_manager.core.placement import ROUND_TRIPS
from pool_manager.core.state import Device, PoolSpec
from pool_manager.core.stocking import FileSet, HostSpace, stock_targets

KEEPALIVE_S = 8.0
"""Time until the loss of a host is noticed: four keepalives of 2 s (SSH)."""
UNLIMITED = 1 << 62
"""Bytes of a cache without a limit."""
OUTAGE_SPREAD = 0.5
"""Max relative deviation of an outage from the mean."""


@dataclass(slots=True)
class Host:
    """One host. `files` are the sizes of what it has, the least recently used first; `arriving` is
    when files that are on their way will be there; `free_s` when its link is free again."""

    name: str
    devices: tuple[Device, ...]
    epoch: int = 0
    files: dict[str, int] = field(default_factory=dict)
    arriving: dict[str, float] = field(default_factory=dict)
    free_s: float = 0.0


class HostFleet(Fleet):
    """The processes of several hosts. A start takes ROUND_TRIPS and the transfer of missing files
    longer than on the local host, a call half a round trip. `down` are the hosts without power."""

    def __init__(
        self,
        settings: Settings,
        devices: list[Device],
        clock: Clock,
        functions: dict[str, Function],
        feed: Callable[[events.Event], None],
        figures: Figures,
    ) -> None:
        super().__init__(settings, clock, functions, feed, figures)
        self._settings = settings
        self._rtt_s = settings.rtt_ms / 1e3
        self.hosts = {
            name: Host(name, tuple(_moved(one, name) for one in devices[number :: settings.hosts]))
            for number, name in enumerate(f"h{n}" for n in range(settings.hosts))
        }
        self.down: set[str] = set()
        self._host_of: dict[str, str] = {}
        self._sizes: dict[str, int] = {}
        self.transfers = self.lost = 0
        self.transferred_mb = 0.0

    def join(self) -> Iterator[events.Event]:
        """Yield the events by which all hosts are defined and connected."""
        for host in self.hosts.values():
            yield events.HostDefined(host.name)
            yield self.up(host)
        yield from self._stock()

    def _stock(self) -> Iterator[events.Event]:
        """Put each function's files on `file_hosts` hosts, as stocking does ahead of need."""
        count, limit = self._settings.file_hosts, int(self._settings.cache_mb * 1e6)
        records = [HostRecord(name, HostState.UP, 0.0) for name in self.hosts]
        targets = stock_targets(
            (FileSet(key, size, count) for key, size in self._sizes.items() if size),
            [HostSpace(one, limit or UNLIMITED, {self._settings.device_kind}) for one in records],
        )
        for name, key in targets:
            self.hosts[name].files[key] = self._sizes[key]
        if not self._settings.blind:
            yield from (self._stocked(host) for host in self.hosts.values())

    def up(self, host: Host) -> events.HostUp:
        """Return the event of a host that is connected and has no replicas."""
        host.epoch += 1
        return events.HostUp(host.name, host.epoch, host.devices, frozenset(), rtt_s=self._rtt_s)

    def with_files(self, spec: PoolSpec, function: Function) -> PoolSpec:
        """Return a pool's settings with the function's files."""
        size = int(self._settings.files_mb * function.memory_mib * 1e6)
        self._sizes[function.key] = size
        return replace(spec, files=function.key if size else "", bundle_bytes=size)

    def report(self) -> dict[str, Any]:
        """Return the figures of hosts as plain data."""
        return {
            "transfers": self.transfers,
            "transferred_gb": self.transferred_mb / 1e3,
            "hosts_lost": self.lost,
        }

    # Commands of the manager

    def launch(self, command: commands.Launch) -> None:
        """Start a process; on a host without power it never connects."""
        self._host_of[command.id] = command.host
        super().launch(command)
        self.processes[command.id].dead = command.host in self.down

    def release(self, command: commands.Release) -> None:
        """Free the device, unless the host has no power: the command is given again later."""
        if self._host_of[command.id] not in self.down:
            super().release(command)

    def start_s(self, command: commands.Launch) -> float:
        """Return the time of a start, with the transfer of files that the host lacks."""
        host, size = self.hosts[command.host], self._sizes[command.pool]
        now = self._clock.now
        usual_s = super().start_s(command) + ROUND_TRIPS * self._rtt_s
        if not size or host.name in self.down:
            return usual_s
        if command.pool in host.files:
            host.files[command.pool] = host.files.pop(command.pool)
            return usual_s
        if command.pool not in host.arriving:
            host.free_s = max(now, host.free_s) + size / (self._settings.link_mb_s * 1e6)
            host.arriving[command.pool] = host.free_s
            self.transfers += 1
            self.transferred_mb += size / 1e6
            self._clock.at(host.free_s, self._arrived, (host, command.pool))
        return host.arriving[command.pool] - now + usual_s

    def _arrived(self, what: tuple[Host, str]) -> None:
        host, key = what
        host.arriving.pop(key, None)
        host.files[key] = self._sizes[key]
        limit = self._settings.cache_mb * 1e6
        while limit and sum(host.files.values()) > limit and len(host.files) > 1:
            del host.files[next(iter(host.files))]
        if not self._settings.blind:
            self._feed(self._stocked(host))

    def _stocked(self, host: Host) -> events.HostStocked:
        rate = self._settings.link_mb_s * 1e6
        return events.HostStocked(host.name, frozenset(host.files), frozenset(), rate)

    # Messages of the gateway

    def accept(self, id: str, ask: Ask) -> None:
        """Accept a request, which arrives half a round trip later."""
        process = self.processes[id]
        if not self._rtt_s or process.is_server:
            super().accept(id, ask)
            return
        process.waiting.append(ask)
        self._clock.after(self._rtt_s / 2, self._reached, process)

    def _reached(self, process: Process) -> None:
        if not process.dead and not process.running and process.waiting:
            self._run(process)

    # Power losses

    def lose(self, host: Host) -> None:
        """Cut the power of a host: its processes end."""
        self.down.add(host.name)
        self.lost += 1
        host.arriving.clear()
        for process in list(self.processes.values()):
            if self._host_of[process.id] == host.name:
                self._end(process)


class PowerLosses:
    """Lets hosts lose power at random times, which are drawn from the seed."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        fleet: HostFleet,
        feed: Callable[[events.Event], None],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._fleet = fleet
        self._feed = feed
        self._draws = Random(f"{settings.seed}/losses")

    def plan(self) -> None:
        """Plan all losses of the day."""
        at_s = 0.0
        while True:
            at_s += self._draws.expovariate(self._settings.losses / HOUR_S)
            if at_s > self._settings.horizon_s:
                return
            self._clock.at(at_s, self._lose, self._draws.random())

    def _lose(self, draw: float) -> None:
        there = [one for one in self._fleet.hosts.values() if one.name not in self._fleet.down]
        if not there:
            return
        host = there[int(draw * len(there))]
        self._fleet.lose(host)
        spread = 1 + OUTAGE_SPREAD * self._draws.uniform(-1, 1)
        outage_s = max(KEEPALIVE_S + 1.0, self._settings.outage_s * spread)
        self._clock.after(KEEPALIVE_S, self._noticed, host)
        self._clock.after(outage_s, self._back, host)

    def _noticed(self, host: Host) -> None:
        self._feed(events.HostUnreachable(host.name, "Connection lost", host.epoch))

    def _back(self, host: Host) -> None:
        self._fleet.down.discard(host.name)
        self._feed(self._fleet.up(host))


def _moved(device: Device, host: str) -> Device:
    return Device(
        f"{host}/{device.id}", device.kind, device.memory_mib, f"{host}/{device.bank}", host
    )
