"""Property tests of replica ids: repeated random ids never collide with a living replica's."""

from __future__ import annotations

from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from pool_manager.core import events
from pool_manager.core.commands import Launch
from pool_manager.core.machine import Machine
from pool_manager.core.state import PoolSpec
from registry.exchange import Demand, Load
from tests.support.play import cpus

KEYS = ["default/a@1", "default/b@1", "default/c@1"]
DEVICES = 4
TIMES = 3
"""Number of times that each id is generated before the next one."""

pick = st.integers(0, DEVICES)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.sampled_from(KEYS)),
        st.tuples(st.just("start"), pick),
        st.tuples(st.just("lose"), pick),
        st.tuples(st.just("release"), pick),
        st.tuples(st.just("wait"), st.sampled_from([1, 5, 60])),
    ),
    max_size=60,
)


class Host:
    """Machine whose id generator repeats, and the ids of the replicas that it should have."""

    def __init__(self, adopted: list[int]) -> None:
        ids = (f"r{number // TIMES}" for number in count())
        self.machine = Machine(cpus(DEVICES), lambda: next(ids), standbys=1)
        self.now, self.seq = 100.0, 0
        self.ids: set[str] = set()
        for key in KEYS:
            self.feed(events.PoolDefined(PoolSpec(key, max=2, idle_s=10.0)))
        for place, number in enumerate(adopted):
            self.ids.add(f"r{number}")
            self.feed(events.Found(f"r{number}", KEYS[0], (f"cpu{place}",), "serve"))
        self.feed(events.ReplicasListed())

    def feed(self, event: events.Event) -> None:
        """Handle an event; check that new ids are unique and that all records exist."""
        for command in self.machine.handle(event, self.now):
            if isinstance(command, Launch):
                assert command.id not in self.ids, "a new replica got the id of another one"
                self.ids.add(command.id)
        there = self.machine.replicas()
        assert sorted(one.id for one in there) == sorted(self.ids)
        assert all(self.machine.replica(one.id) is one for one in there)

    def do(self, step: str, what: str | int) -> None:
        """Apply one step."""
        if isinstance(what, str):
            self.seq += 1
            loads = {key: Load(3 * (key == what), 0, 0.0) for key in KEYS}
            self.feed(events.DemandReported(Demand("w", self.seq, True, loads)))
        elif step == "wait":
            self.now += what
            self.feed(events.Tick())
        elif what < len(self.ids):
            self.happen(step, sorted(self.ids)[what])

    def happen(self, step: str, id: str) -> None:
        if step == "start":
            self.feed(events.Greeted(id, {}))
            self.feed(events.Loaded(id, 1, True, 10.0, {}))
        elif step == "lose":
            self.feed(events.Lost(id, "exit 1"))
        elif (replica := self.machine.replica(id)) and replica.state == "releasing":
            self.ids.remove(id)
            self.feed(events.Released(id))


@settings(deadline=None)
@given(st.lists(st.integers(0, DEVICES), max_size=2, unique=True), steps)
def test_no_replica_gets_the_id_of_another(
    adopted: list[int], happened: list[tuple[str, str | int]]
) -> None:
    """Ids are generated again while their replicas, adopted ones included, live; each has one
    record."""
    host = Host(adopted)
    for step, what in happened:
        host.do(step, what)
