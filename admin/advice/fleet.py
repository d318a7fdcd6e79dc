"""The driver and its processes in virtual time: part of the simulation. Pure."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Protocol

from admin.advice.load_model import Ask, Clock, Conditions, Figures, Function, Process
from pool_manager.core import commands, events
from pool_manager.core.state import UNKNOWN, ParkSpec

MESSAGE_S = 0.0005
"""Latency of a control message to a replica, during which a call may cross it."""
BIND_S = 0.001
EXIT_S = 0.02
"""Time from a replica's last answer to its exit."""
PROOF_S = 0.25
"""Time of the proof that a sleeping server has freed its devices."""


class Gateway(Protocol):
    """Receiver of a process's answers and exits."""

    def started(self, process: Process, asks: list[Ask]) -> None: ...
    def ended(self, process: Process, ask: Ask) -> None: ...
    def goaway(self, process: Process) -> None: ...
    def resumed(self, process: Process) -> None: ...
    def lost(self, process: Process) -> None: ...


class Fleet:
    """All processes of the host. Their events are passed to `feed`."""

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
        self._devices: dict[str, tuple[str, ...]] = {}

    def attach(self, gateway: Gateway) -> None:
        """Set the gateway, which sends calls here."""
        self._gateway = gateway

    def is_alive(self, id: str) -> bool:
        """Return whether a process can be reached."""
        process = self.processes.get(id)
        return process is not None and not process.dead

    # Commands of the manager

    def launch(self, command: commands.Launch) -> None:
        """Start a process."""
        now = self._clock.now
        others = (one for one in self.processes.values() if one.pool == command.pool)
        self._figures.cold_starts += all(one.draining or one.dead for one in others)
        batch, phases = self._conditions.batch, dict(command.phases)
        process = Process(command.id, command.pool, phases, now, batch)
        process.is_server = bool(command.pool) and self._functions[command.pool].server is not None
        self.processes[command.id] = process
        self._devices[command.id] = command.devices
        self._figures.starts += 1
        self._clock.after(self.start_s(command), self._greet, process)

    def start_s(self, _command: commands.Launch) -> float:
        """Return the time from a launch to the first message of the process."""
        return self._conditions.start_s

    def bind(self, command: commands.Bind) -> None:
        """Make a process load its model."""
        self._load(self.processes[command.id])

    def assign(self, command: commands.Assign) -> None:
        """Make a standby load a model."""
        process = self.processes[command.id]
        process.pool, process.phases = command.pool, dict(command.phases)
        process.launched_s = self._clock.now
        self._load(process)

    def drain(self, command: commands.Drain) -> None:
        """Tell a process to finish and exit."""
        self._clock.after(MESSAGE_S, self._told_to_drain, command)

    def quiesce(self, command: commands.Quiesce) -> None:
        """Tell a server to finish its exchanges and exit."""
        self.drain(commands.Drain(command.id, None))

    def resume(self, command: commands.Resume) -> None:
        """Tell a server to take exchanges again."""
        self._clock.after(MESSAGE_S, self._told_to_resume, command)

    def _told_to_resume(self, command: commands.Resume) -> None:
        process = self.processes.get(command.id)
        if process is None or process.dead or process.is_idle or process.is_asleep:
            return
        process.draining, process.left_s, process.sleeps_after = False, inf, False
        self._figures.revoked += 1
        self._gateway.resumed(process)
        self._feed(events.NotIdle(process.id, 0.0))

    def terminate(self, command: commands.Terminate) -> None:
        """End a process at once, as SIGTERM does, whatever runs."""
        process = self.processes[command.id]
        self._figures.cut += len(process.running) if process.is_server else 0
        self._exit(process)

    def release(self, command: commands.Release) -> None:
        """Kill the process if it is alive, and free the device."""
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
        server = self._functions[process.pool].server
        limit = server.concurrency if server else 2 * process.batch
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
        process.draining, process.sleeps_after = True, False
        process.left_s = min(now, process.left_s)
        self._gateway.goaway(process)
        if process.is_idle:
            self._clock.after(EXIT_S, self._exit, process)

    # Parks

    def park(self, command: commands.Park) -> None:
        """Tell a server to sleep."""
        self._clock.after(MESSAGE_S, self._told_to_park, command)

    def _told_to_park(self, command: commands.Park) -> None:
        process, now = self.processes.get(command.id), self._clock.now
        if process is None or process.dead or process.draining:
            return
        idle_s = now - process.last_end_s if process.is_idle else 0.0
        if command.if_idle_s is not None and idle_s < command.if_idle_s:
            self._figures.refusals += 1
            self._feed(events.NotIdle(process.id, idle_s))
            return
        process.draining = process.sleeps_after = True
        process.left_s = min(now, process.left_s)
        self._gateway.goaway(process)
        if process.is_idle:
            self._sleep(process)

    def _sleep(self, process: Process) -> None:
        process.sleeps_after, process.is_asleep = False, True
        self._clock.after(self._park_of(process).sleep_s, self._asleep, process)

    def _asleep(self, process: Process) -> None:
        if not process.dead:
            self._figures.parks += 1
            park = self._park_of(process)
            self._feed(events.ParkAnswered(process.id, "", park.sleep_s))

    def prove(self, command: commands.ProvePark) -> None:
        """Read what a sleeping server keeps: what the trial has measured."""
        self._clock.after(PROOF_S, self._proved, command)

    def _proved(self, command: commands.ProvePark) -> None:
        kept_mib = dict.fromkeys(self._devices.get(command.id, ()), command.residue_mib)
        self._feed(events.ParkProven(command.id, kept_mib))

    def unpark(self, command: commands.Unpark) -> None:
        """Wake a server."""
        process = self.processes[command.id]
        self._figures.wakes += 1
        self._clock.after(self._park_of(process).wake_s, self._awake, process)

    def _awake(self, process: Process) -> None:
        if not process.dead:
            self._feed(events.UnparkAnswered(process.id, "", self._park_of(process).wake_s))

    def verify(self, command: commands.Verify) -> None:
        """Ask the golden sample of a server that is awake: it is right."""
        process = self.processes[command.id]
        self._clock.after(self._park_of(process).verify_s, self._verified, process)

    def _verified(self, process: Process) -> None:
        if process.dead:
            return
        process.draining = process.is_asleep = False
        process.rested_s += self._clock.now - process.left_s
        process.last_end_s, process.left_s = self._clock.now, inf
        self._feed(events.Verified(process.id, ""))
        self._gateway.resumed(process)

    def _park_of(self, process: Process) -> ParkSpec:
        return self._functions[process.pool].park or UNKNOWN

    def _rest_or_exit(self, process: Process) -> None:
        """End a drain whose last answer was given."""
        if process.sleeps_after:
            self._sleep(process)
        else:
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
        del self.processes[process.id], self._devices[process.id]
        self._feed(events.Released(process.id))

    # Messages of the gateway

    def accept(self, id: str, ask: Ask) -> None:
        """Accept a request."""
        process = self.processes[id]
        if process.is_server:
            if process.is_idle:
                process.began_s = self._clock.now
            process.running.append(ask)
            self._gateway.started(process, [ask])
            self._clock.after(ask.service_s, self._exchanged, (process, ask))
            return
        process.waiting.append(ask)
        if not process.running:
            self._run(process)

    def recall(self, id: str, number: int) -> None:
        """Withdraw a request that is not running yet."""
        process = self.processes[id]
        for ask in process.waiting:
            if ask.id == number:
                process.waiting.remove(ask)
                self._gateway.ended(process, ask)
                return

    def _run(self, process: Process) -> None:
        took_s = process.begin()
        process.busy_s += took_s
        self._gateway.started(process, process.running)
        self._clock.after(took_s, self._ran, process)

    def _exchanged(self, of: tuple[Process, Ask]) -> None:
        process, ask = of
        if process.dead:
            return
        process.running.remove(ask)
        process.last_end_s = self._clock.now
        if process.is_idle:
            process.busy_s += self._clock.now - process.began_s
        if not process.has_run:
            process.has_run = True
            self._feed(events.FirstRun(process.id, 0.0))
        self._gateway.ended(process, ask)
        if process.draining and process.is_idle:
            self._rest_or_exit(process)

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
