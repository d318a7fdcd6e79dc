"""Simulated hosts: processes, links that break, messages that are late or lost.

The machine gets only events, some of them late. A process takes calls for as long as it has had
contact to its manager within `ORPHAN_S`, also if the machine has given it up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from pool_manager.core import commands as cmd
from pool_manager.core import events
from pool_manager.core.hosts import HOST_LOST_S
from registry.model.hosts import LOCAL_HOST

ORPHAN_S = HOST_LOST_S - 15.0
NOTICE_S = 8.0
"""Longest time after which a broken connection is noticed."""


@dataclass
class Process:
    """A replica's process. `heard_s`: its last contact to its manager. `is_linked`: it has greeted
    on the present connection. `is_hung`: the manager has given it up, but it serves on."""

    id: str
    pool: str
    host: str
    state: str = "starting"
    heard_s: float = 0.0
    is_linked: bool = False
    is_hung: bool = False
    has_told_loaded: bool = False
    if_idle: bool = False

    @property
    def is_alive(self) -> bool:
        return self.state != "dead"


@dataclass
class Link:
    """The connection to a host: whether packets pass, and whether the manager holds it for up.
    `held` is what is sent again if a break is too short to be noticed."""

    is_on: bool = True
    is_joined: bool = False
    is_noticed: bool = True
    generation: int = 0
    breaks: int = 0
    held: list[Callable[[], None]] = field(default_factory=list)


@dataclass
class Processes:
    """All processes and links. `tell` gets the events, each at its time; `knows` says whether the
    manager has a record of a replica, `epoch` the highest epoch of a host that it has received."""

    random: Random
    tell: Callable[[events.Event], None]
    knows: Callable[[str], bool]
    up: Callable[[str, frozenset[str]], None]
    called: set[str] = field(default_factory=set)
    now: float = 0.0
    all: dict[str, Process] = field(default_factory=dict)
    links: dict[str, Link] = field(default_factory=dict)
    engines_down: set[str] = field(default_factory=set)
    seen: set[str] = field(default_factory=set)
    _due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _count: int = 0

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Do something later."""
        self._count += 1
        heappush(self._due, (self.now + seconds, self._count, do))

    def run_until(self, now: float) -> None:
        """Do what is due."""
        while self._due and self._due[0][0] <= now:
            self.now, _, do = heappop(self._due)
            do()
        self.now = now
        for one in self.all.values():
            self._pass_time(one)

    def _pass_time(self, one: Process) -> None:
        if one.is_linked and self.is_on(one.host) and not one.is_hung:
            one.heard_s = self.now
        if one.is_alive and self.now - one.heard_s >= ORPHAN_S and one.host != LOCAL_HOST:
            self.die(one, "nobody manages it")

    def is_on(self, host: str) -> bool:
        return host == LOCAL_HOST or (host in self.links and self.links[host].is_on)

    def generation(self, host: str) -> int:
        """Return the number of a host's connection; 0 for the local one and for unknown ones."""
        return self.links[host].generation if host in self.links else 0

    def takes_calls(self, one: Process) -> bool:
        """Whether a gateway that is connected to a process could start a call there."""
        return one.state == "serving" and self.now - one.heard_s < ORPHAN_S

    def running(self, host: str) -> frozenset[str]:
        return frozenset(one.id for one in self.all.values() if one.is_alive and one.host == host)

    # Hosts

    def cut(self, host: str) -> None:
        """Packets to a host are dropped, which is noticed after a while."""
        link = self.links.get(host)
        if link is None or not link.is_on:
            return
        link.is_on, link.is_noticed = False, False
        link.breaks += 1
        number = link.breaks
        self.after(self.random.uniform(0.0, NOTICE_S), lambda: self._notice(host, link, number))

    def _notice(self, host: str, link: Link, number: int) -> None:
        if self.links.get(host) is not link or link.breaks != number or link.is_noticed:
            return
        link.is_noticed = True
        link.generation += 1
        link.held.clear()
        for one in self.all.values():
            if one.host == host:
                one.is_linked = False
        if link.is_joined:
            link.is_joined = False
            self.engines_down.discard(host)
            self.tell(events.HostUnreachable(host, "no answer"))

    def mend(self, host: str) -> None:
        """Packets pass again. A short break was not noticed; after a longer one the manager logs in
        and lists what runs, while replicas greet, before or after that is reported."""
        link = self.links.get(host)
        if link is None or link.is_on:
            return
        link.is_on = True
        if link.is_noticed:
            self.join(host)
            return
        link.is_noticed = True
        self.seen.add("short break")
        held, link.held = link.held, []
        for do in held:
            do()

    def send(self, host: str, do: Callable[[], None]) -> None:
        """Do something at the other end of a link: now, after a short break, or never."""
        if self.is_on(host):
            do()
        elif host in self.links and not self.links[host].is_noticed:
            self.links[host].held.append(do)

    def join(self, host: str) -> None:
        link = self.links[host]
        generation = link.generation
        list_s = self.random.uniform(0.2, 3.0)

        def take_list() -> None:
            if link.generation == generation and self.links.get(host) is link:
                for one in self.all.values():
                    if one.host == host and one.is_alive and not self.knows(one.id):
                        one.state = "dead"
                running = self.running(host)
                self.after(self.random.uniform(0.0, 0.5), lambda: report(running))

        def report(running: frozenset[str]) -> None:
            if link.generation == generation and self.links.get(host) is link:
                link.is_joined = link.is_noticed = True
                self.up(host, running)

        self.after(list_s, take_list)
        for one in self.all.values():
            if one.host == host and one.is_alive:
                one.is_linked = False
                self.after(self.random.uniform(0.1, 5.0), self._greeting(one, generation))

    def _greeting(self, one: Process, generation: int) -> Callable[[], None]:
        def greet() -> None:
            is_same = self.generation(one.host) == generation
            if not (one.is_alive and is_same and self.knows(one.id)) or one.is_hung:
                return
            if not self.is_on(one.host):
                self.send(one.host, greet)
                return
            one.is_linked, one.heard_s = True, self.now
            if one.state == "starting":
                one.state = "waiting"
            self.say(one, events.Greeted(one.id, {}, one.state not in ("waiting", "loading")))
            if one.state == "serving" and not one.has_told_loaded:
                self._say_loaded(one)

        return greet

    def say(self, one: Process, event: events.Event) -> None:
        """Send the manager an event about a process, perhaps late; it may get lost."""
        delay_s = self.random.choice([0.0, 0.0, 0.4, 1.5])
        self.send(one.host, lambda: self.after(delay_s, lambda: self.tell(event)))

    def _say_loaded(self, one: Process) -> None:
        phases, report = {"load": 1e3}, {"load_ms": 1e3}
        loaded = events.Loaded(one.id, 4, True, 100.0, phases, report)

        def tell() -> None:
            one.has_told_loaded = True
            self.say(one, loaded)

        if one.is_linked:
            self.send(one.host, tell)

    def die(self, one: Process, reason: str) -> None:
        if one.is_alive:
            one.state = "dead"
            self.say(one, events.Lost(one.id, reason, cause=reason))

    # Commands

    def obey(self, command: cmd.Command) -> None:
        """Carry out a command, which may get lost."""
        if isinstance(command, cmd.Launch):
            self._launch(command)
            return
        one = self.all.get(getattr(command, "id", ""))
        if one is None:
            return
        if isinstance(command, cmd.Release):
            self._release(one)
        elif isinstance(command, cmd.Abandon):
            one.is_hung = True
        elif isinstance(command, cmd.Terminate):
            self.send(one.host, lambda: self.die(one, "exited with code 0"))
        elif one.is_linked:
            self.send(one.host, lambda: self._instruct(one, command))

    def _launch(self, command: cmd.Launch) -> None:
        one = Process(command.id, command.pool, command.host, heard_s=self.now)
        host = command.host
        if not self.is_on(host):
            one.state = "dead"
            lost = events.Lost(command.id, "no connection", is_its_fault=False)
            self.after(self.random.uniform(0.0, NOTICE_S), lambda: self.tell(lost))
        self.all[one.id] = one
        pause_s = self.random.choice([0.2, 1.0, 2.5])
        self.after(pause_s, self._greeting(one, self.generation(host)))

    def _release(self, one: Process) -> None:
        one.is_linked = False
        is_dead = self.is_on(one.host) and one.host not in self.engines_down
        if is_dead:
            one.state = "dead"

        def end() -> None:
            if is_dead and self.is_on(one.host):
                self.tell(events.Released(one.id))
            else:
                self.seen.add("failed release")
                self.tell(events.NotReleased(one.id, "no connection"))

        self.after(self.random.choice([0.2, 1.0, 4.0]), end)

    def _instruct(self, one: Process, command: cmd.Command) -> None:
        match command:
            case _ if not one.is_alive:
                pass
            case cmd.Bind() | cmd.Assign() if one.state in ("starting", "waiting"):
                one.pool, one.state = command.pool, "loading"
                self.after(self.random.choice([0.3, 1.0, 3.0]), lambda: self._load(one))
            case cmd.Drain(_, if_idle_s) if one.state in ("serving", "draining"):
                if if_idle_s is not None and one.pool in self.called:
                    self.say(one, events.NotIdle(one.id, 0.0))
                    return
                one.state = "draining"
                ended = "exited with code 0"
                self.after(self.random.choice([0.3, 2.0]), lambda: self.die(one, ended))
            case cmd.Drain():
                self.die(one, "exited with code 0")
            case cmd.Quiesce() if one.state == "serving":
                one.state = "quiesced"
                self.after(self.random.choice([2.0, 15.0]), lambda: self._end_streams(one))
            case cmd.Resume() if one.state in ("quiesced", "serving"):
                one.state = "serving"
                self.say(one, events.NotIdle(one.id, 0.0))

    def _load(self, one: Process) -> None:
        if one.state == "loading":
            one.state = "serving"
            self._say_loaded(one)

    def _end_streams(self, one: Process) -> None:
        if one.state == "quiesced":
            self.die(one, "exited with code 0")
