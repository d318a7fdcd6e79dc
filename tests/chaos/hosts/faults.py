"""Faults of hosts under load: each host has its own, one after another; the gateway dies, too."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from tests.chaos.calls import client
from tests.chaos.containers.calling import Front
from tests.chaos.containers.fault_times import FaultTimes
from tests.chaos.footprint import pause, until
from tests.chaos.hosts.world import AGENT, World, kill, running
from tests.chaos.ledger import Ledger
from tests.support.fleet.host import Host
from tests.support.fleet.served import UNTIL_S, is_host_ready, items, until_host

SHORT_S = (0.5, 3.0)
"""Shorter than the time in which a silent link counts as broken."""
LONG_S = (10.0, 16.0)
AWAY_S = (1.0, 25.0)
LAG_S = 0.035
LOSS = 0.01
LAGGING_S = (4.0, 8.0)
READY_S = 60.0


@dataclass
class Faults:
    """Faults of a world's hosts and of the server over it.

    `done`: how often each was injected; `healed_s`: seconds until the host was up again.
    """

    world: World
    front: Front
    fault_times: FaultTimes
    ledger: Ledger
    chance: Random
    done: Counter[str] = field(default_factory=Counter)
    healed_s: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    adopted: int = 0

    async def run(self, turns: int, every_s: tuple[float, float], kinds: Sequence[str]) -> None:
        """Inject each of `kinds` on each host `turns` times; meanwhile those of the gateway."""
        async with asyncio.TaskGroup() as group:
            for host in self.world.hosts:
                group.create_task(self._strike(host, turns, every_s, [*kinds]))
            if turns:
                group.create_task(self._strike_gateway(turns, every_s))

    async def _strike(
        self, host: Host, turns: int, every_s: tuple[float, float], kinds: list[str]
    ) -> None:
        for _ in range(turns):
            self.chance.shuffle(kinds)
            for kind in kinds:
                await pause(self.chance.uniform(*every_s))
                with self.fault_times.fault():
                    await HOST_FAULTS[kind](self, host)
                    self.done[kind] += 1
                    began_s = time.monotonic()
                    await self._require_up(host, kind)
                    self.healed_s[kind].append(time.monotonic() - began_s)

    async def _strike_gateway(self, turns: int, every_s: tuple[float, float]) -> None:
        for _ in range(turns):
            for kind, fault in GATEWAY_FAULTS.items():
                await pause(5 * self.chance.uniform(*every_s))
                await fault(self)
                self.done[kind] += 1

    async def _require_up(self, host: Host, kind: str) -> None:
        """Require that a host is up again; the time in which the gateway is down does not count."""
        end, said = time.monotonic() + UNTIL_S, ""
        while time.monotonic() < end:
            await self.front.up.wait()
            try:
                async with client(self.front.server) as caller:
                    await until_host(caller, host.name, is_host_ready)
                    return
            except (OSError, AssertionError) as error:
                said = str(error)
        self.ledger.violated(f"not up after {kind}: {said}")

    # Replicas and agents

    async def kill_replica(self, host: Host) -> None:
        """Kill a replica's container."""
        if found := await asyncio.to_thread(running, host.engine_url):
            await asyncio.to_thread(kill, host.engine_url, self.chance.choice(found))

    async def kill_agent(self, host: Host) -> None:
        """Kill the agent's container; another one must come."""
        await asyncio.to_thread(kill, host.engine_url, AGENT)

    async def kill_engine(self, host: Host) -> None:
        """Kill dockerd; it comes back later."""
        await asyncio.to_thread(host.dockerd.kill)
        await pause(self.chance.uniform(*SHORT_S))
        await asyncio.to_thread(host.dockerd.start)

    # Connections

    async def kill_connections(self, host: Host) -> None:
        """Kill all SSH connections."""
        await asyncio.to_thread(host.kill_sessions)

    async def restart_listener(self, host: Host) -> None:
        """Kill the listening sshd and all connections; it comes back later."""
        await asyncio.to_thread(host.sshd.kill_listener)
        await asyncio.to_thread(host.kill_sessions)
        await pause(self.chance.uniform(*SHORT_S))
        await asyncio.to_thread(host.sshd.start, *host.plan.sshd)

    async def freeze_connection(self, host: Host) -> None:
        """Stop the process of one connection until the manager has given it up."""
        sessions = await asyncio.to_thread(host.sessions)
        frozen = self.chance.sample(sessions, min(1, len(sessions)))
        for pid in frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        await pause(self.chance.uniform(*LONG_S))
        for pid in frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    async def lag(self, host: Host) -> None:
        """Make the link slow and lossy for a while."""
        host.link.set(delay_s=LAG_S, loss=LOSS)
        await pause(self.chance.uniform(*LAGGING_S))
        host.link.set(delay_s=0.0, loss=0.0)

    async def cut_shortly(self, host: Host) -> None:
        """Cut the link and heal it before anyone notices."""
        await self._break(host, host.link.cut, SHORT_S)

    async def cut_long(self, host: Host) -> None:
        """Cut the link until it counts as broken."""
        await self._break(host, host.link.cut, LONG_S)

    async def half_open(self, host: Host) -> None:
        """Let packets pass in one direction only."""
        await self._break(host, host.link.half_open, LONG_S)

    async def _break(
        self, host: Host, act: Callable[[], None], seconds: tuple[float, float]
    ) -> None:
        act()
        await pause(self.chance.uniform(*seconds))
        host.link.heal()

    # Power

    async def cut_power(self, host: Host) -> None:
        """Switch a host off; it boots later, at times after it counted as gone."""
        await asyncio.to_thread(host.stop)
        await pause(self.chance.uniform(*AWAY_S))
        await asyncio.to_thread(host.start)

    # The gateway

    async def kill_gateway(self) -> None:
        """Kill the server and start another one: it adopts what runs on all hosts."""
        await self._restart(self.front.server.kill)

    async def stop_gateway(self) -> None:
        """Restart the server in order."""
        await self._restart(self.front.server.stop)

    async def _restart(self, end: Callable[[], object]) -> None:
        server = self.front.server
        with self.fault_times.death(is_down=True), self.front.down():
            await asyncio.to_thread(end)
            await asyncio.to_thread(server.start)
            async with client(server) as caller:

                async def is_ready() -> bool:
                    return (await caller.get("/readyz")).status == 200

                is_there = await until(is_ready, READY_S)
                self.ledger.require(is_there, f"not ready {READY_S:g} s after a restart")
                listed = await items(caller, "/replicas")
                self.adopted += sum(bool(one["adopted"]) for one in listed)


HOST_FAULTS: dict[str, Callable[[Faults, Host], Awaitable[None]]] = {
    "replica killed": Faults.kill_replica,
    "agent killed": Faults.kill_agent,
    "engine killed": Faults.kill_engine,
    "connections killed": Faults.kill_connections,
    "sshd restarted": Faults.restart_listener,
    "connection frozen": Faults.freeze_connection,
    "slow and lossy link": Faults.lag,
    "link cut shortly": Faults.cut_shortly,
    "link cut": Faults.cut_long,
    "link half open": Faults.half_open,
    "power cut": Faults.cut_power,
}
GATEWAY_FAULTS: dict[str, Callable[[Faults], Awaitable[None]]] = {
    "gateway killed": Faults.kill_gateway,
    "gateway restarted": Faults.stop_gateway,
}
