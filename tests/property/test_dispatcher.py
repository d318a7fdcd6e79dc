"""Property tests of the dispatcher: whatever happens, every accepted call ends exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.dispatch.call import Call, Command, Fail, GiveUp, Link, Priority, Recall, Send, Stage
from gateway.dispatch.dispatcher import Dispatcher, Limits
from gateway.dispatch.pool import UNKNOWN
from gateway.dispatch.redirects import RerunPolicy
from registry.errors import FnError, WaitBudgetOver
from registry.exchange import Expected, PoolEndpoints, ReplicaEndpoint
from runtime_image.contract.link import ID_MAX, NotStarted
from runtime_image.link.meta import RequestMeta
from tests.support.doses import amount

REVISIONS = ["default/a@1", "default/a@2", "default/a@3"]
"""Revisions of one function, between which its traffic moves."""
POOLS = [*REVISIONS, "default/b@1"]
QUEUE_MAX = 20
META = RequestMeta("application/json", "", -1, "")
BYTES_MAX = 4000
RETRIES = 2

SLOW = Expected(3.0, 4.0, 9.0, 10)
"""A cold start that takes longer than the shortest wait budget."""

pools = st.sampled_from(POOLS)
picks = st.integers(0, 7)


@dataclass(eq=False)
class Replica:
    """The replica's end of a link: calls received and not yet settled, in order."""

    link: Link
    has: dict[int, Call] = field(default_factory=dict)
    running: set[int] = field(default_factory=set)
    last_id: int = 0
    limit: int = 1


class Traffic(RuleBasedStateMachine):
    """Clients, replicas and a manager around one dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.dispatcher = Dispatcher(Limits(BYTES_MAX, RETRIES))
        self.replicas: dict[str, Replica] = {}
        self.accepted: list[Call] = []
        self.ends: Counter[Call] = Counter()
        self.begun: Counter[Call] = Counter()
        self.asked: dict[Call, str] = {}
        self.ran_at: dict[Call, str] = {}
        self.wanted_at: dict[str, float] = {}
        self.count = 0
        self.current = REVISIONS[0]
        self.has_manager = True

    # Clients

    @rule(
        pool=pools,
        size=st.sampled_from([0, 10, 900]),
        priority=st.sampled_from(Priority),
        wait_s=st.sampled_from([0.0, 5.0, 55.0, 55.0]),
        may_rerun=st.booleans(),
        copies=st.integers(1, 4),
        pinned=st.booleans(),
    )
    def submit(
        self,
        pool: str,
        size: int,
        priority: Priority,
        wait_s: float,
        may_rerun: bool,
        copies: int,
        pinned: bool,
    ) -> None:
        """Submit some requests with unique bodies. Requests without a revision may have been
        resolved before the traffic moved."""
        until_s = self.now + wait_s
        for _ in range(copies):
            self.count += 1
            body = str(self.count).encode().ljust(size, b".")
            call = Call(pool, META, body, self.now, until_s, 10.0, priority, may_rerun, QUEUE_MAX)
            call.pinned = pinned
            self.submit_one(call)

    def submit_one(self, call: Call) -> None:
        asked = call.pool
        self.dispatcher.pool(asked).cold_start = SLOW
        try:
            # The fast path must give the same result.
            is_sent = self.now % 2 < 1 and self.dispatcher.send_now(call, self.now)
            sent = [Send(call.link, call.id, call)]
            commands = sent if is_sent else self.dispatcher.submit(call, self.now)
        except WaitBudgetOver:
            self.wanted_at[call.pool] = self.now
            assert self.dispatcher.load(call.pool, self.now).queued > 0
            return
        except FnError:
            return
        if call.stage is Stage.QUEUED and not self.has_manager:
            assert self.dispatcher.pools[call.pool].is_connected
        # A queue may exceed its limit by moved calls, and then accepts no new call.
        if call.stage is Stage.QUEUED:
            assert len(self.dispatcher.pools[call.pool].queue) <= QUEUE_MAX
        self.accepted.append(call)
        self.asked[call] = asked
        self.perform(commands)

    @precondition(lambda self: self.accepted)
    @rule(pick=picks)
    def leave(self, pick: int) -> None:
        """A client disconnects, perhaps after its answer."""
        owed = [call for call in self.accepted if not self.ends[call]] or self.accepted
        call = owed[pick % len(owed)]
        if not self.ends[call]:
            self.ends[call] += 1
        self.perform(self.dispatcher.cancel(call, self.now))

    # Replicas

    @rule(pool=pools, limit=st.integers(1, 3), marks=st.booleans(), near_wrap=st.booleans())
    def come(self, pool: str, limit: int, marks: bool, near_wrap: bool) -> None:
        """A replica connects, some with ids close to the wrap."""
        if len(self.replicas) < 4:
            self.connect(pool, limit, marks, ID_MAX - 2 if near_wrap else 0)

    def connect(self, pool: str, limit: int, marks: bool, last_id: int) -> Replica:
        self.count += 1
        link = Link(f"r{self.count}", pool, limit, marks, last_id=last_id)
        self.replicas[link.id] = Replica(link, last_id=last_id, limit=limit)
        self.perform(self.dispatcher.on_link_up(link, self.now))
        return self.replicas[link.id]

    @precondition(lambda self: self.replicas)
    @rule(pick=picks)
    def die(self, pick: int) -> None:
        """A replica dies, whatever it was doing."""
        self.lose(self.some(pick, self.busy()))

    @rule(pool=pools, times=st.integers(1, 3))
    def rampage(self, pool: str, times: int) -> None:
        """Replicas connect, start all calls they get, and die."""
        for _ in range(times):
            replica = self.connect(pool, 2, marks=True, last_id=0)
            self.begin(replica, 2)
            self.lose(replica)

    def lose(self, replica: Replica) -> None:
        del self.replicas[replica.link.id]
        self.perform(self.dispatcher.on_link_lost(replica.link.id, self.now))

    @precondition(lambda self: self.busy())
    @rule(pick=picks, count=st.integers(1, 3))
    def start(self, pick: int, count: int) -> None:
        """A replica starts the calls it received first."""
        self.begin(self.some(pick, self.busy()), count)

    def begin(self, replica: Replica, count: int) -> None:
        ids = [id for id in replica.has if id not in replica.running][:count]
        replica.running.update(ids)
        for id in ids:
            if replica.has[id].stage is Stage.SENT:
                self.begun[replica.has[id]] += 1
                self.ran_at[replica.has[id]] = replica.link.pool
        self.dispatcher.on_started(replica.link.id, ids, self.now)

    @precondition(lambda self: self.busy())
    @rule(pick=picks)
    def answer(self, pick: int) -> None:
        """A replica answers, or confirms a cancelled request."""
        replica = self.some(pick, self.busy())
        for id in list(replica.has)[:1]:
            self.settle(replica, id)

    @precondition(lambda self: self.busy())
    @rule(pick=picks, reason=st.sampled_from([NotStarted.FULL, NotStarted.DRAINING]))
    def hand_back(self, pick: int, reason: NotStarted) -> None:
        """A replica returns unstarted calls in the order of their arrival."""
        replica = self.some(pick, self.busy())
        for id in [id for id in replica.has if id not in replica.running]:
            del replica.has[id]
            self.perform(self.dispatcher.on_not_started(replica.link.id, id, reason, self.now))

    @precondition(lambda self: self.busy())
    @rule(pick=picks)
    def stop_batch(self, pick: int) -> None:
        """A batch timed out because of another request."""
        replica = self.some(pick, self.busy())
        self.begin(replica, 2)
        for id in sorted(replica.running & replica.has.keys()):
            del replica.has[id]
            reason = NotStarted.BATCH_TIMEOUT
            self.perform(self.dispatcher.on_not_started(replica.link.id, id, reason, self.now))

    @precondition(lambda self: self.replicas)
    @rule(pick=picks, late=st.integers(0, 2))
    def go_away(self, pick: int, late: int) -> None:
        """A replica drains; the last requests sent have not reached it."""
        replica = self.some(pick)
        unread = [id for id in replica.has if id not in replica.running][-late:] if late else []
        if unread and list(replica.has)[-len(unread) :] != unread:
            return
        kept = [id for id in replica.has if id not in unread]
        last = kept[-1] if kept else (replica.last_id if not unread else unread[0] - 1)
        for id in unread:
            del replica.has[id]
        self.perform(self.dispatcher.on_goaway(replica.link.id, last, self.now))
        for id in unread:
            reason = NotStarted.DRAINING
            assert self.dispatcher.on_not_started(replica.link.id, id, reason, self.now) == []

    @precondition(lambda self: self.replicas)
    @rule(pick=picks)
    def make_room(self, pick: int) -> None:
        """A full replica has room again."""
        self.perform(self.dispatcher.on_window(self.some(pick).link.id, self.now))

    # Manager and clock

    @rule(to=st.sampled_from(REVISIONS), fits=st.booleans(), may_rerun=st.booleans())
    def move(self, to: str, fits: bool, may_rerun: bool) -> None:
        """Traffic moves to another revision; wait budgets do not change."""
        if to == self.current:
            return
        waits = {call: call.wait_until_s for call in self.accepted}
        before = set(self.dispatcher.pools[self.current].queue) if self.has(self.current) else ()
        rerun_policy = RerunPolicy(may_rerun, 10.0) if fits else None
        commands = self.dispatcher.on_traffic_moved(self.current, to, rerun_policy, self.now)
        for call in before:
            stays = call.pinned or call.alone or not fits
            assert call.pool == self.current or not stays
        assert waits == {call: call.wait_until_s for call in self.accepted}
        self.current = to
        self.perform(commands)

    def has(self, pool: str) -> bool:
        return pool in self.dispatcher.pools

    @rule(pool=pools, state=st.sampled_from(["cold", "waking", "warm", "failing", "gone"]))
    def look(self, pool: str, state: str) -> None:
        """The manager publishes another state of a pool."""
        retry_s = 5.0 if state == "failing" else 0.0
        shown = PoolEndpoints(self.listed(pool, ()), state, "for a reason", retry_s)
        if state == "cold":
            shown = UNKNOWN
        self.perform(self.dispatcher.on_endpoints(pool, shown, self.now))

    @rule(pool=pools, paused=st.lists(st.booleans(), max_size=4))
    def pause(self, pool: str, paused: list[bool]) -> None:
        """The manager pauses replicas of a pool, and lets others take calls again."""
        if self.has(pool) and self.dispatcher.pools[pool].endpoints.state != "gone":
            shown = PoolEndpoints(self.listed(pool, paused), "warm", "for a reason")
            self.perform(self.dispatcher.on_endpoints(pool, shown, self.now))
            links = self.dispatcher.pools[pool].links
            are_paused = {one.id: one.paused for one in shown.replicas}
            for id, link in links.items():
                assert (link.limit == 0) == (are_paused[id] and self.has_manager)

    def listed(self, pool: str, paused: Iterable[bool]) -> list[ReplicaEndpoint]:
        """Return the endpoints of the connected replicas of a pool."""
        there = [one for one in self.replicas.values() if one.link.pool == pool]
        return [
            ReplicaEndpoint(one.link.id, "", one.limit, True, "", {}, paused=is_paused)
            for one, is_paused in zip_longest(there, paused, fillvalue=False)
            if isinstance(one, Replica)
        ]

    @rule(step_s=st.sampled_from([0.1, 1.0, 6.0, 20.0]))
    def sweep(self, step_s: float) -> None:
        """Time passes."""
        self.now += step_s
        self.perform(self.dispatcher.sweep(self.now))
        self.check_orphans()

    @precondition(lambda self: self.has_manager)
    @rule(is_lost=st.sampled_from([False, False, False, True]))
    def lose_manager(self, is_lost: bool) -> None:
        """No replica will be started any more; connected ones keep serving."""
        if is_lost:
            self.has_manager = False
            self.perform(self.dispatcher.on_manager_lost(self.now))
            self.check_orphans()

    def check_orphans(self) -> None:
        """Without a manager no call is queued for a replica that cannot start."""
        for pool in self.dispatcher.pools.values():
            assert self.has_manager or pool.is_connected or not pool.queue

    def teardown(self) -> None:
        """After all wait budgets and all replicas have ended, every call has ended once."""
        self.sweep(1000.0)
        while self.replicas:
            self.die(0)
        self.sweep(1000.0)
        assert self.dispatcher.is_idle
        assert self.dispatcher.loads(self.now) == {}
        assert [call for call in self.accepted if self.ends[call] != 1] == []

    # Checks of every command

    def busy(self) -> list[Replica]:
        return [replica for replica in self.replicas.values() if replica.has]

    def some(self, pick: int, among: list[Replica] | None = None) -> Replica:
        """Return one of `among`, or of all replicas if it is empty."""
        replicas = among or list(self.replicas.values())
        return replicas[pick % len(replicas)]

    def settle(self, replica: Replica, id: int) -> None:
        del replica.has[id]
        call, commands = self.dispatcher.on_ended(replica.link.id, id, self.now)
        if call is not None:
            self.ends[call] += 1
        self.perform(commands)

    def perform(self, commands: list[Command]) -> None:
        """Deliver sends and count ends; links that were given up are lost afterwards."""
        given_up: list[Replica] = []
        for command in commands:
            match command:
                case Send():
                    self.deliver(command)
                case Recall(link, id):
                    assert id in self.replicas[link].has
                case Fail(call, _):
                    self.ends[call] += 1
                case GiveUp(link, _):
                    held = self.dispatcher.links[link].in_flight.values()
                    assert any(call.stage is Stage.ABANDONED for call in held)
                    given_up.append(self.replicas[link])
        for replica in given_up:
            self.lose(replica)

    def deliver(self, send: Send) -> None:
        """Check that a send keeps the promises made for its call, and deliver it."""
        call, replica = send.call, self.replicas[send.link]
        assert self.ends[call] == 0, "sent after its end"
        assert 0 < send.id <= ID_MAX
        assert send.id not in replica.has, "an id in use"
        assert not replica.link.closing
        assert replica.link.limit, "sent to a paused replica"
        assert call.pool == replica.link.pool
        if call.pinned or "b@" in call.pool:
            assert call.pool == self.asked[call], "a call that must not move has moved"
        if self.begun[call]:
            assert call.pool == self.ran_at[call], "a started call has moved"
            assert call.may_rerun, "rerun although its function forbids it"
            assert call.alone, "retried in a batch with others"
        assert call.deaths <= RETRIES
        replica.has[send.id] = call
        replica.running.discard(send.id)
        replica.last_id = send.id

    @invariant()
    def no_call_is_queued_while_there_is_room(self) -> None:
        """A link never exceeds its limit, and no call is queued while a link has room."""
        for pool in self.dispatcher.pools.values():
            for link in pool.links.values():
                assert len(link.in_flight) <= self.replicas[link.id].limit
            assert not (pool.queue and pool.least_loaded_link())

    @invariant()
    def calls_are_in_one_place(self) -> None:
        """A call is queued, at one replica, or done; both ends of a link agree."""
        pools = self.dispatcher.pools
        at = Counter(c for p in pools.values() for c in p.queue)
        assert all(call.pool == key for key, pool in pools.items() for call in pool.queue)
        for replica in self.replicas.values():
            assert replica.has == replica.link.in_flight
            at.update(replica.has.values())
        owed = {call for call in self.accepted if not self.ends[call]}
        assert set(at.values()) <= {1}
        assert owed <= at.keys()

    @invariant()
    def wake_demand_is_bounded(self) -> None:
        """Beside its queue a pool counts at most one refused call, for at most one cold start, and
        none once it has a replica."""
        for key, pool in self.dispatcher.pools.items():
            extra = self.dispatcher.load(key, self.now).queued - len(pool.queue)
            since_s = self.now - self.wanted_at.get(key, -1000.0)
            assert extra in ((0, 1) if since_s < SLOW.p90_s else (0,))
            assert not (extra and pool.has_replica)

    @invariant()
    def bytes_are_those_of_calls_not_ended(self) -> None:
        """The bytes of a body are released when its call ends, in whatever way."""
        held = sum(len(call.body) for call in self.accepted if not self.ends[call])
        assert self.dispatcher.held.bytes == held <= BYTES_MAX

    @invariant()
    def queued_calls_keep_their_order(self) -> None:
        """Within a priority, queued calls are in order of arrival."""
        for pool in self.dispatcher.pools.values():
            for priority in Priority:
                line = [call.position for call in pool.queue if call.priority is priority]
                assert line == sorted(line)


TestTraffic = Traffic.TestCase
TestTraffic.__doc__ = "No traffic makes the dispatcher lose, repeat or reorder a call."
TestTraffic.settings = settings(
    max_examples=amount(100, 300),
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
)
