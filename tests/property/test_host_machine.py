"""Property tests of hosts that come and go, against what really runs there.

Besides the promises of all histories: calls that may not run twice are never taken by more
replicas than `max`, nothing is released twice over one connection, and once all hosts are up and
quiet, what is recorded and charged is what runs.
"""

from __future__ import annotations

import itertools
from collections import Counter
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from pool_manager.core import events
from pool_manager.core.commands import Abandon, Command, Release, Resume
from pool_manager.core.machine import Machine
from pool_manager.core.state import Device, PoolSpec, Replica
from registry.exchange import Demand, Load
from registry.model.hosts import LOCAL_HOST
from tests.support.book import Book, charged
from tests.support.doses import IS_FULL, amount
from tests.support.processes import Link, Process, Processes
from tests.support.promises import Promises, Sleepless

HANDLER, SERVER, MODEL = "default/h@1", "default/s@1", "default/m@1"
KEYS = [HANDLER, SERVER, MODEL]
NEAR = [Device("cpu0", "cpu", 4_000, "ram")]
FAR = {
    "far": [Device(f"far/cpu{n}", "cpu", 4_000, "far/ram", "far") for n in range(2)],
    "off": [Device("off/GPU-1", "cuda", 4_000, host="off")],
}
EVERYWHERE = [*NEAR, *itertools.chain(*FAR.values())]
QUIET_S = 110
"""Seconds of quiet after which nothing is on its way any more."""

SEEN: Counter[str] = Counter()
"""Commands and special cases over all histories."""

hosts = st.sampled_from([*FAR])
picks = st.integers(0, 3)


class Hosts(Promises):
    """Functions with callers, and hosts whose connections break."""

    def __init__(self) -> None:
        super().__init__()
        self.seqs = itertools.count(1)
        self.released: dict[str, int] = {}

    @initialize(
        seed=st.integers(0, 2**32),
        standbys=st.integers(0, 1),
        old=st.sampled_from([None, HANDLER, SERVER, MODEL]),
        is_joined=st.booleans(),
    )
    def build(self, seed: int, standbys: int, old: str | None, is_joined: bool) -> None:
        """Start a server, perhaps while a replica of an earlier one runs on another host."""
        self.world = Processes(Random(seed), self.feed, self.is_known, self.report_up)
        self.world.now = self.now
        self.standbys = standbys
        self.book = Book({device.id: device for device in NEAR})
        ids, twins = itertools.count(1), itertools.count(1)
        self.machine = Machine(NEAR, lambda: f"r{next(ids)}", standbys)
        self.twin = Sleepless(NEAR, lambda: f"r{next(twins)}", standbys)
        for key in KEYS:
            self.define(key)
        for host in FAR:
            self.add_host(host)
        if old is not None:
            self.find_old(old)
        self.is_list_read = True
        self.feed(events.ReplicasListed())
        if is_joined:
            self.wait(4)

    def define(self, key: str) -> None:
        spec = PoolSpec(
            key,
            max=2 if key == MODEL else 1,
            idle_s=30.0,
            function=key.partition("@")[0],
            is_server=key == SERVER,
            may_rerun=key == MODEL,
            drain_s=20.0,
            stop_grace_s=5.0,
        )
        self.feed(events.PoolDefined(self.spec(spec)))

    def find_old(self, key: str) -> None:
        one = Process("old", key, "far", "serving", heard_s=self.now)
        self.world.all[one.id] = one
        self.book.place(one.id, self.specs[key], ("far/cpu0",))
        self.feed(events.Found(one.id, key, ("far/cpu0",), "serve", "far"))
        self.world.links["far"].generation += 1
        self.world.join("far")

    def add_host(self, host: str) -> None:
        self.feed(events.HostDefined(host))
        self.link(host)

    def link(self, host: str) -> None:
        if host not in self.world.links:
            self.world.links[host] = Link()
            self.world.join(host)

    def is_known(self, id: str) -> bool:
        return self.machine.replica(id) is not None

    def report_up(self, host: str, running: frozenset[str]) -> None:
        """The manager has joined a host. Reports of earlier connections may arrive after that."""
        epoch = self.links.hosts[host].epoch + 1
        for device in FAR[host]:
            self.book.devices[device.id] = device
        self.feed(events.HostUp(host, epoch, tuple(FAR[host]), running, rtt_s=0.001))
        if self.world.random.random() < 0.3:
            late = events.HostUp(host, epoch, (), frozenset())
            self.feed_late(late)
            if epoch > 1:
                self.feed_late(events.HostUnreachable(host, "late", epoch - 1))

    def feed_late(self, event: events.Event) -> None:
        """An event of an earlier connection has no effect."""
        before = self.picture()
        self.feed(event)
        assert self.picture() == before

    def picture(self) -> object:
        replicas = [(one.id, one.state, one.contact) for one in self.machine.replicas()]
        hosts = [(one.name, one.state, one.epoch) for one in self.machine.cluster.hosts.values()]
        return replicas, hosts, dict(self.machine.devices)

    def check(self, command: Command, commands: list[Command]) -> None:
        """Check a command and carry it out."""
        SEEN[type(command).__name__] += 1
        if isinstance(command, Release):
            self.check_released_once(command.id)
        super().check(command, commands)

    def check_released_once(self, id: str) -> None:
        """A release is repeated only after a failure or over a new connection."""
        host = self.replica(id).host
        epoch = self.links.hosts[host].epoch
        is_repeated = self.released.get(id) == epoch
        is_engine = isinstance(self.event, events.EngineBack)
        assert not is_repeated or id in self.late or is_engine
        self.released[id] = epoch

    def feed(self, event: events.Event) -> None:
        """Feed an event; the links of hosts that are forgotten end."""
        super().feed(event)
        for host in self.world.links.keys() - self.machine.cluster.hosts.keys():
            del self.world.links[host]
            self.world.engines_down.discard(host)

    def check_starts(self, commands: list[Command]) -> None:
        super().check_starts(commands)
        for command in commands:
            self.world.obey(command)

    # Rules

    @rule(those=st.sets(st.sampled_from(KEYS)))
    def call(self, those: set[str]) -> None:
        """These functions have callers from now on, the others have none."""
        self.world.called = set(those)
        self.wait(3)

    @rule(seconds=st.sampled_from([1, 3, 8, 20]))
    def wait(self, seconds: int) -> None:
        """Time passes."""
        for _ in range(seconds):
            self.second()

    @rule(host=hosts)
    def cut(self, host: str) -> None:
        """The connection to a host breaks."""
        self.world.cut(host)
        self.wait(1)

    @rule(
        host=hosts,
        silence_s=st.sampled_from([3, 50, 90]),
        is_frozen=st.booleans(),
        has_callers=st.booleans(),
    )
    def cut_off(self, host: str, silence_s: int, is_frozen: bool, has_callers: bool) -> None:
        """A host cannot be reached for some time. One of its processes may not greet again."""
        self.world.called = set(KEYS) if has_callers else set()
        self.wait(8)
        there = [one for one in self.world.all.values() if one.host == host and one.is_alive]
        if is_frozen and there:
            there[-1].is_hung = True
        self.world.cut(host)
        self.wait(silence_s)
        self.world.mend(host)
        self.wait(8)

    @rule(host=hosts, after_s=st.sampled_from([0, 2, 10, 65]))
    def mend(self, host: str, after_s: int) -> None:
        """Packets to a host pass again."""
        self.wait(after_s)
        self.world.mend(host)

    @rule(pick=picks)
    def kill(self, pick: int) -> None:
        """A process dies, which is not reported if its host cannot be reached."""
        if one := self.picked(pick):
            self.world.die(one, "exit 1")

    @rule(pick=picks)
    def hang(self, pick: int) -> None:
        """The manager gives a replica up that serves on."""
        if (one := self.picked(pick)) and one.host != LOCAL_HOST:
            one.is_hung, one.is_linked = True, False
            SEEN["hang"] += 1
            self.feed(events.Lost(one.id, "it does not answer"))

    @rule(host=hosts)
    def stop_engine(self, host: str) -> None:
        """The engine of a host stops answering."""
        if self.links.hosts.get(host) and self.links.is_up(host):
            self.world.engines_down.add(host)
            self.feed(events.EngineLost("no answer", host))

    @rule(host=hosts)
    def start_engine(self, host: str) -> None:
        """The engine of a host answers again."""
        if host in self.world.engines_down:
            self.world.engines_down.discard(host)
            if self.world.is_on(host):
                self.feed(events.EngineBack(self.world.running(host), host))

    @rule(host=hosts, is_draining=st.booleans())
    def drain(self, host: str, is_draining: bool) -> None:
        """A host is drained, or takes replicas again."""
        self.feed(events.HostDefined(host, is_draining=is_draining))
        self.link(host)

    @rule(host=hosts, is_forced=st.booleans(), is_back=st.booleans())
    def remove(self, host: str, is_forced: bool, is_back: bool) -> None:
        """An operator removes a host, and perhaps adds it again."""
        self.feed(events.HostRemoved(host, is_forced))
        self.wait(2)
        if is_back:
            self.add_host(host)

    @rule(host=hosts, seconds=st.sampled_from([1, 20, 60]))
    def replace(self, host: str, seconds: int) -> None:
        """A host in use is removed by force while it cannot be reached, and added again."""
        self.call(set(KEYS))
        self.world.cut(host)
        self.wait(10)
        self.feed(events.HostRemoved(host, is_forced=True))
        self.wait(seconds)
        self.add_host(host)
        self.world.mend(host)

    # The surroundings

    def picked(self, pick: int) -> Process | None:
        alive = [one for one in self.world.all.values() if one.is_alive and self.is_known(one.id)]
        return alive[pick % len(alive)] if alive else None

    def second(self) -> None:
        """Let a second pass."""
        for _ in range(2):
            self.now += 0.5
            self.world.run_until(self.now)
            self.check_taken()
        loads = {key: self.load(key) for key in sorted(self.world.called)}
        self.feed(events.DemandReported(Demand("w", next(self.seqs), True, loads, [])))
        self.feed(events.Tick())
        self.feed(events.Tick())
        self.check_progress()

    def load(self, key: str) -> Load:
        return Load(0, 1, 0.0) if self.machine.pools[key].is_warm else Load(1, 0, 0.0)

    def check_taken(self) -> None:
        """Calls that may not run twice are taken by one replica at most."""
        for key in (HANDLER, SERVER):
            those = [one for one in self.world.all.values() if one.pool == key]
            taking = [one for one in those if self.world.takes_calls(one)]
            assert len(taking) <= 1, f"{key} runs twice: {taking}"

    def teardown(self) -> None:
        """Once all hosts are up and quiet, what is recorded is what runs."""
        if not hasattr(self, "machine"):
            return
        SEEN.update(self.world.seen)
        for host in FAR:
            self.start_engine(host)
            self.add_host(host)
            self.world.mend(host)
        self.world.called = set()
        for _ in range(QUIET_S):
            self.second()
        running = {one.id for one in self.world.all.values() if one.is_alive}
        known: list[Replica] = self.machine.replicas()
        assert {one.id for one in known if not one.is_unknown} == running, known
        assert charged(self.machine.cluster.ledger, EVERYWHERE) == running
        assert all(one.state != "releasing" for one in known)


TestHosts = Hosts.TestCase
TestHosts.__doc__ = "No history of hosts lets a call run twice, or loses a replica."
TestHosts.settings = settings(
    max_examples=amount(40, 400),
    stateful_step_count=15,
    deadline=None,
    derandomize=True,
)


def test_the_histories_contain_the_rare_events() -> None:
    """The histories above contain what is rare, so that their promises mean something; some of it
    is too rare for a small dose."""
    rare = ["hang", "short break", "failed release"] if IS_FULL else []
    if SEEN:  # empty where only this test runs
        for case in (Abandon.__name__, Resume.__name__, *rare):
            assert SEEN[case] > 0, case
