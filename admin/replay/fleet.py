"""The driver's side: processes that take their time to start, load, run, drain and go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from admin.replay.clock import Clock
from admin.replay.conditions import Conditions
from admin.replay.figures import Figures
from admin.replay.function import Function
from admin.replay.replica import Ask, Process
from pool_manager.core import commands, events

MESSAGE_S = 0.0005
"""A control message's way to a replica, in which a call may cross it."""
BIND_S = 0.001
EXIT_S = 0.02
"""From a replica's last answer to its end."""


class Gateway(Protocol):
    """Who hears of answers and ends."""

    def started(self, process: Process) -> None: ...
    def ended(self, process: Process, ask: Ask) -> None: ...
    def goaway(self, process: Process) -> None: ...
    def lost(self, process: Process) -> None: ...


class Fleet:
    """Every process of the host. What happens to them is fed back as events."""

    _gateway: Gateway

    def __init__(
        self,
        conditions: Conditions,
        clock: Clock,
        functions: dict[str, Function],
        feed: Callable[[events.Event], None],
        figures: Figures,
    ) -> None:
        self._conditions = conditions
        self._clock = clock
        self._functions = functions
        self._feed = feed
        self._figures = figures
        self.processes: dict[str, Process] = {}

    def attach(self, gateway: Gateway) -> None:
        """Who sends calls here."""
        self._gateway = gateway

    def is_alive(self, id: str) -> bool:
        """Whether a process can be reached."""
        process = self.processes.get(id)
        return process is not None and not process.dead

    # What the manager commands

    def launch(self, command: commands.Launch) -> None:
        """Start a process."""
        now = self._clock.now
        others = (one for one in self.processes.values() if one.pool == command.pool)
        self._figures.cold_starts += all(one.draining or one.dead for one in others)
        batch, phases = self._conditions.batch, dict(command.phases)
        process = Process(command.id, command.pool, phases, now, batch)
        self.processes[command.id] = process
        self._figures.starts += 1
        self._clock.after(self._conditions.start_s, self._greet, process)

    def bind(self, command: commands.Bind) -> None:
        """Have a process load its model."""
        self._load(self.processes[command.id])

    def assign(self, command: commands.Assign) -> None:
        """Have a standby load a model."""
        process = self.processes[command.id]
        process.pool, process.phases = command.pool, dict(command.phases)
        process.launched_s = self._clock.now
        self._load(process)

    def drain(self, command: commands.Drain) -> None:
        """Tell a process to finish and go."""
        self._clock.after(MESSAGE_S, self._told_to_drain, command)

    def terminate(self, command: commands.Terminate) -> None:
        """TERM: go now, whatever runs."""
        self._exit(self.processes[command.id])

    def release(self, command: commands.Release) -> None:
        """Kill what is left and free the device."""
        process = self.processes[command.id]
        self._end(process)
        self._clock.after(self._conditions.release_s, self._released, process)

    def _greet(self, process: Process) -> None:
        if not process.dead:
            process.phases["start"] = self._conditions.start_s * 1e3
            self._feed(events.Greeted(process.id, dict(process.phases)))

    def _load(self, process: Process) -> None:
        load_s = self._functions[process.pool].draw_load_s()
        process.phases |= {"bind": BIND_S * 1e3, "load": load_s * 1e3}
        self._clock.after(BIND_S + load_s, self._loaded, process)

    def _loaded(self, process: Process) -> None:
        if process.dead or process.draining:
            return
        process.ready_s = process.last_end_s = self._clock.now
        limit = 2 * process.batch
        memory_mib = self._functions[process.pool].memory_mib
        phases = dict(process.phases)
        self._feed(events.Loaded(process.id, limit, True, memory_mib, phases))

    def _told_to_drain(self, command: commands.Drain) -> None:
        process = self.processes.get(command.id)
        if process is None or process.dead:
            return
        now = self._clock.now
        idle_s = now - process.last_end_s if process.is_idle else 0.0
        is_loaded = process.ready_s <= now
        if is_loaded and command.if_idle_s is not None and idle_s < command.if_idle_s:
            self._figures.refusals += 1
            self._feed(events.NotIdle(process.id, idle_s))
            return
        process.draining = True
        process.left_s = min(now, process.left_s)
        self._gateway.goaway(process)
        if process.is_idle:
            self._clock.after(EXIT_S, self._exit, process)

    def _exit(self, process: Process) -> None:
        if not process.dead:
            self._end(process)
            self._feed(events.Lost(process.id, "exit 0"))

    def _end(self, process: Process) -> None:
        if not process.dead:
            process.dead = True
            process.left_s = min(self._clock.now, process.left_s)
            self._gateway.lost(process)

    def _released(self, process: Process) -> None:
        self._figures.gone(process, self._clock.now)
        del self.processes[process.id]
        self._feed(events.Released(process.id))

    # What the gateway sends

    def accept(self, id: str, ask: Ask) -> None:
        """A request came."""
        process = self.processes[id]
        process.waiting.append(ask)
        if not process.running:
            self._run(process)

    def recall(self, id: str, number: int) -> None:
        """A request is no longer wanted: one that runs runs on."""
        process = self.processes[id]
        for ask in process.waiting:
            if ask.id == number:
                process.waiting.remove(ask)
                self._gateway.ended(process, ask)
                return

    def _run(self, process: Process) -> None:
        took_s = process.begin()
        process.busy_s += took_s
        self._gateway.started(process)
        self._clock.after(took_s, self._ran, process)

    def _ran(self, process: Process) -> None:
        if process.dead:
            return
        is_first = not process.has_run
        done = process.finish(self._clock.now)
        if process.waiting:
            self._run(process)
        for ask in done:
            self._gateway.ended(process, ask)
        if is_first:
            self._feed(events.FirstRun(process.id, done[0].service_s * 1e3))
        if process.draining and process.is_idle:
            self._clock.after(EXIT_S, self._exit, process)
