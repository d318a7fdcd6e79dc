"""Property tests of exchanges: three gateways' dispatchers and one sidecar's table of slots.

Frames of a link arrive in order. Everything else arrives in any order: frames of different links,
connections, and the ends of connections.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.dispatch.call import (
    Call,
    CloseIdle,
    Command,
    Decline,
    End,
    Fail,
    Quiesced,
    Send,
    ServerLink,
    Stage,
)
from gateway.dispatch.dispatcher import Dispatcher, Limits
from gateway.dispatch.keeping import KeptConnections
from registry.errors import FnError
from runtime_image.contract.link import Flag, Kind
from runtime_image.link.meta import RequestMeta
from runtime_image.server import slots
from tests.support.doses import amount

KEY = "default/web@1"
META = RequestMeta("", "", -1, "")
LIMIT = 2
IDLE_S = 2.0
STEPS_MAX = 5000
"""Max rounds until a system without new calls must have come to rest."""

picks = st.integers(0, 5)


@dataclass(eq=False)
class Connection:
    """A connection to the server. `is_shut`: shut by the sidecar; `is_closed`: by the gateway."""

    is_free: bool
    is_shut: bool = False
    is_closed: bool = False
    id: int = 0
    known_id: int = 0
    opened_s: float = 0.0
    idle_since_s: float = 0.0
    is_told: bool = False
    has_failed: bool = False

    @property
    def is_open(self) -> bool:
        """Whether bytes can pass."""
        return not (self.is_shut or self.is_closed)


class Sent(NamedTuple):
    """A frame on its way."""

    kind: Kind
    id: int = 0
    flags: int = 0
    aux: int = 0


@dataclass(eq=False)
class Wire:
    """One link between a gateway and the sidecar, with everything that is on its way."""

    number: int
    to_sidecar: deque[Sent] = field(default_factory=deque)
    to_gateway: deque[Sent] = field(default_factory=deque)
    arriving: deque[tuple[int, Connection]] = field(default_factory=deque)
    answered: set[int] = field(default_factory=set)


class Gateway:
    """One gateway process: a dispatcher, and the connections that its shell has.

    `live` has the exchanges that are not over, None until the connection has arrived.
    """

    def __init__(self) -> None:
        self.dispatcher = Dispatcher(Limits())
        self.now = 1000.0
        self.wire: Wire | None = None
        self.live: dict[int, Connection | None] = {}
        self.kept: KeptConnections[Connection] = KeptConnections(self.tell)
        self.calls: list[Call] = []
        self.ends: Counter[Call] = Counter()
        self.grants: list[Call] = []
        self.fresh: set[Call] = set()
        """Exchanges that get no connection that was used before."""

    @property
    def link(self) -> ServerLink:
        """The dispatcher's view of the link."""
        assert self.wire is not None
        link = self.dispatcher.links[f"r{self.wire.number}"]
        assert isinstance(link, ServerLink)
        return link

    def connect(self, wire: Wire) -> None:
        """Get a link."""
        self.wire = wire
        self.kept = KeptConnections(self.tell)
        link = ServerLink(f"r{wire.number}", KEY, LIMIT, marks_started=True)
        self.perform(self.dispatcher.on_link_up(link, self.now))

    def lose_link(self) -> None:
        """Lose the link: its connections are closed."""
        assert self.wire is not None
        link, self.wire = f"r{self.wire.number}", None
        for connection in [*self.live.values(), *self.kept.clear()]:
            if connection is not None:
                connection.is_closed = True
        self.live.clear()
        self.perform(self.dispatcher.on_link_lost(link, self.now))

    def submit(self, wait_s: float, *, is_free: bool) -> None:
        """Submit one exchange."""
        until_s = self.now + wait_s
        call = Call(KEY, META, b"", self.now, until_s, 0.0, is_exchange=True, is_free=is_free)
        try:
            commands = self.dispatcher.submit(call, self.now)
        except FnError:
            return
        self.calls.append(call)
        self.perform(commands)

    def started(self) -> list[Call]:
        """Return the exchanges that have a connection, or had one."""
        return [call for call in self.calls if call.stage is Stage.STARTED]

    def end(self, call: Call, *, kept: bool) -> None:
        """The proxy ends an exchange."""
        self.ends[call] += 1
        connection = self.live.get(call.id) if self.wire else None
        is_kept = kept and connection is not None and connection.is_open
        self.perform(self.dispatcher.exchanges.on_ended(call, self.now, kept=is_kept))

    def cancel(self, call: Call) -> None:
        """A client disconnects."""
        self.ends[call] += 1
        self.perform(self.dispatcher.cancel(call, self.now))

    def retry(self, call: Call, *, was_refused: bool) -> None:
        """The proxy queues an exchange again."""
        exchanges = self.dispatcher.exchanges
        self.fresh.add(call)
        self.perform(exchanges.retry(call, self.now, was_refused=was_refused))

    def notice_ends(self) -> None:
        """Read the ends of connections that the sidecar has shut."""
        for connection in list(self.kept):
            if connection.is_shut:
                self.close_idle(connection.known_id)
        by_id = {call.id: call for call in self.started()}
        for id, live in list(self.live.items()):
            if live is not None and live.is_shut:
                self.end(by_id[id], kept=False)

    def pass_time(self, seconds: float) -> None:
        """Sweep."""
        self.now += seconds
        self.kept.tell_due(self.now)
        for connection in list(self.kept):
            if connection.idle_since_s + IDLE_S <= self.now:
                self.close_idle(connection.known_id)
        self.perform(self.dispatcher.sweep(self.now))

    def close_idle(self, id: int) -> bool:
        """Close an idle connection."""
        connection = self.kept.take(id)
        if connection is None:
            return False
        connection.is_closed = True
        return True

    def tell(self, kind: Kind, id: int = 0, flags: int = 0, aux: int = 0) -> None:
        """Send a frame to the sidecar."""
        assert self.wire is not None
        self.wire.to_sidecar.append(Sent(kind, id, flags, aux))

    # Commands

    def perform(self, commands: list[Command]) -> None:
        """Execute commands as the shell does."""
        for command in commands:
            match command:
                case Send(_, id, call):
                    self.open(id, call)
                case End(_, id, kept):
                    self.finish(id, kept=kept)
                case CloseIdle():
                    for connection in list(self.kept):
                        self.close_idle(connection.known_id)
                case Decline():
                    self.tell(Kind.END)
                case Quiesced(_, count):
                    self.tell(Kind.QUIESCED, aux=count)
                case Fail(call, _):
                    self.ends[call] += 1
                case _:
                    raise AssertionError(command)

    def open(self, id: int, call: Call) -> None:
        """Use an idle connection, or request one."""
        assert call.stage is Stage.SENT
        connection = None if call.is_free or call in self.fresh else self.kept.newest()
        if call in self.fresh and not call.is_free and (oldest := self.kept.oldest()):
            self.close_idle(oldest.known_id)
        self.live[id] = connection
        if connection is None:
            self.kept.request(id, is_free=call.is_free)
            return
        self.kept.reuse(connection, id, self.now)
        assert self.dispatcher.exchanges.on_opened(self.link.id, id, self.now) is call
        self.grants.append(call)

    def finish(self, id: int, *, kept: bool) -> None:
        """Keep or close the connection of an exchange that is over."""
        connection = self.live.pop(id)
        if connection is None:
            self.tell(Kind.END, id)
        elif kept:
            self.kept.keep(connection, self.now)
        else:
            self.kept.drop(connection)
            connection.is_closed = True

    # Events

    def receive(self, frame: Sent) -> None:
        """Handle a frame of the sidecar."""
        link, exchanges = self.link.id, self.dispatcher.exchanges
        if frame.kind is Kind.NOT_STARTED:
            if self.live.get(frame.id, self) is None:
                del self.live[frame.id]
                self.perform(exchanges.on_not_started(link, frame.id, frame.aux, self.now))
        elif frame.kind is Kind.WINDOW:
            if not frame.aux:
                self.kept.relax()
            self.perform(exchanges.on_window(link, frame.aux, self.now))
        elif frame.kind is Kind.QUIESCE:
            self.kept.hasten(self.now)
            self.perform(exchanges.on_quiesce(link))
        elif not frame.id:
            assert frame.kind is Kind.RECALL
            self.kept.hasten(self.now)
        elif not self.close_idle(frame.id):
            assert frame.kind is Kind.RECALL
            exchanges.on_recall_missed(link)

    def adopt(self, id: int, connection: Connection) -> None:
        """Handle a connection that arrives."""
        if self.live.get(id, self) is not None:
            connection.is_closed = True
            return
        self.live[id] = connection
        connection.id = id
        self.kept.opened(connection, self.now)
        call = self.dispatcher.exchanges.on_opened(self.link.id, id, self.now)
        assert call is not None
        self.grants.append(call)


class House:
    """Gateways and a sidecar, and what is on its way between them."""

    def __init__(self, count: int = 3) -> None:
        self.now = 1000.0
        self.numbers = 0
        self.gateways = [Gateway() for _ in range(count)]
        self.restart()
        for gateway in self.gateways:
            self.connect(gateway)

    def restart(self) -> None:
        """Start a new sidecar."""
        self.table = slots.SlotTable(LIMIT, 600.0, self.now)
        self.connecting: list[slots.Key] = []
        self.connections: dict[slots.Key, Connection] = {}
        self.free: set[slots.Key] = set()

    def connect(self, gateway: Gateway) -> None:
        """Establish a link."""
        self.numbers += 1
        wire = Wire(self.numbers)
        gateway.connect(wire)
        self.apply(self.table.join(wire.number, self.now))

    def wires(self) -> dict[int, Wire]:
        """Return the links by number."""
        return {one.wire.number: one.wire for one in self.gateways if one.wire}

    def lose(self, gateway: Gateway) -> None:
        """A link ends on both sides; what was on its way is lost."""
        assert gateway.wire is not None
        number = gateway.wire.number
        gateway.lose_link()
        self.apply(self.table.link_lost(number, self.now))

    # The sidecar's shell

    def apply(self, commands: list[slots.Command]) -> None:
        """Execute commands of the table."""
        for command in commands:
            match command:
                case slots.Connect(key):
                    self.connecting.append(key)
                case slots.Rename(old, key):
                    self.connections[key] = self.connections.pop(old)
                case slots.Shut(key):
                    self.shut(key)
                case slots.Send(link, kind, id, aux):
                    self.tell(self.wires()[link], Sent(kind, id, aux=aux))
                case slots.EndLink(link):
                    self.lose(next(one for one in self.gateways if one.wire is self.wires()[link]))
                case slots.Stop():
                    self.stop()

    def shut(self, key: slots.Key) -> None:
        """Shut a connection, or give up connecting."""
        if key in self.connecting:
            self.connecting.remove(key)
        if key in self.connections:
            self.connections.pop(key).is_shut = True

    def tell(self, wire: Wire, frame: Sent) -> None:
        """Send a frame to a gateway."""
        if frame.kind is Kind.NOT_STARTED:
            self.answer(wire, frame.id)
        wire.to_gateway.append(frame)

    @staticmethod
    def answer(wire: Wire, id: int) -> None:
        """Check that no request is answered twice."""
        assert id not in wire.answered, "an id was answered twice"
        wire.answered.add(id)

    def stop(self) -> None:
        """A drain is complete: nothing is open. The sidecar exits, and the next one starts."""
        for gateway in self.gateways:
            held = [*gateway.live.values(), *gateway.kept]
            assert not [one for one in held if one and one.is_open and not one.is_free]
        for connection in self.connections.values():
            connection.is_shut = True
        self.restart()
        for gateway in self.gateways:
            if gateway.wire:
                gateway.lose_link()
        for gateway in self.gateways:
            self.connect(gateway)

    def finish_connect(self, key: slots.Key, *, is_granted: bool) -> None:
        """A connection is established and passed, or refused."""
        self.connecting.remove(key)
        if not is_granted:
            self.apply(self.table.refused(key, self.now))
            return
        wire = self.wires()[key.link]
        is_free = key in self.free
        connection = self.connections[key] = Connection(is_free)
        self.answer(wire, key.id)
        wire.arriving.append((key.id, connection))
        self.apply(self.table.connected(key, self.now))

    def receive(self, wire: Wire) -> None:
        """The sidecar handles the next frame of a gateway."""
        kind, id, flags, aux = wire.to_sidecar.popleft()
        number = wire.number
        if kind is Kind.OPEN and flags & Flag.REUSE:
            self.apply(self.table.reuse(number, id, aux, self.now))
        elif kind is Kind.OPEN:
            is_free = bool(flags & Flag.FREE)
            if is_free:
                self.free.add(slots.Key(number, id))
            self.apply(self.table.open(number, id, self.now, is_free=is_free))
        elif kind is Kind.END:
            is_kept = bool(flags & Flag.KEPT)
            self.apply(self.table.end(number, id, self.now, is_kept=is_kept, ago_ms=aux))
        else:
            assert kind is Kind.QUIESCED
            self.apply(self.table.quiesced(number, aux, self.now))

    def pass_time(self, seconds: float) -> None:
        """Time passes for all."""
        self.now += seconds
        for gateway in self.gateways:
            gateway.pass_time(seconds)
        self.apply(self.table.tick(self.now))

    def settle(self) -> None:
        """Deliver everything that is on its way; every connection is granted."""
        for _ in range(STEPS_MAX):
            if not self.step():
                return
        raise AssertionError("frames go on for ever")

    def step(self) -> bool:
        """Deliver something of each kind; return whether there was anything."""
        is_busy = False
        for key in list(self.connecting):
            self.finish_connect(key, is_granted=True)
            is_busy = True
        for gateway in self.gateways:
            gateway.notice_ends()
            wire = gateway.wire
            if wire is None:
                self.connect(gateway)
                is_busy = True
                continue
            if wire.to_gateway:
                gateway.receive(wire.to_gateway.popleft())
                is_busy = True
            if wire is gateway.wire and wire.arriving:
                gateway.adopt(*wire.arriving.popleft())
                is_busy = True
            if wire is gateway.wire and wire.to_sidecar:
                self.receive(wire)
                is_busy = True
        return is_busy

    def check(self) -> None:
        """Check what must hold at any time."""
        assert self.table.taken <= LIMIT
        taken = [one for one in self.connections.values() if not one.is_free]
        assert len(taken) <= LIMIT
        for gateway in self.gateways:
            if gateway.wire:
                link = gateway.link
                assert len(link.in_flight) <= LIMIT
                assert gateway.live.keys() == link.in_flight.keys() | link.free.keys()
                assert not (link.is_waiting and len(gateway.kept))
            ended = [call for call in gateway.calls if gateway.ends[call]]
            assert all(call.sends >= (call.stage is Stage.STARTED) for call in gateway.calls)
            assert all(gateway.ends[call] == 1 for call in ended)
            assert all(call.stage is Stage.DONE for call in ended)

    def check_settled(self) -> None:
        """Check what must hold once nothing is on its way, while nobody refuses connections."""
        if self.table.phase is not slots.Phase.SERVING:
            return
        for gateway in self.gateways:
            link, pool = gateway.link, gateway.dispatcher.pool(KEY)
            if link.retry_s or link.free_retry_s:
                continue
            in_use = sum(len(one.link.in_flight) for one in self.gateways)
            assert not (pool.queue and in_use < LIMIT), "a free or idle slot, and a waiting call"
            assert not (link.is_waiting and self.table.taken < LIMIT), "a wait without an offer"
            assert not pool.free_queue

    def drain_calls(self) -> None:
        """End exchange after exchange until no call is left."""
        for _ in range(STEPS_MAX):
            self.settle()
            self.check_settled()
            self.pass_time(0.1)
            started = [(one, call) for one in self.gateways for call in one.started()]
            for gateway, call in started:
                gateway.end(call, kept=call.position % 2 == 0)
            if not started and all(one.dispatcher.is_idle for one in self.gateways):
                self.settle()
                return
        raise AssertionError("a call is never served")


class Exchanges(RuleBasedStateMachine):
    """Clients, proxies, three gateways, a sidecar and a manager."""

    def __init__(self) -> None:
        super().__init__()
        self.house = House()

    def gateway(self, pick: int) -> Gateway:
        return self.house.gateways[pick % 3]

    @rule(
        pick=picks,
        count=st.integers(1, 4),
        is_free=st.sampled_from([False, False, False, True]),
        wait_s=st.sampled_from([0.5, 60.0, 1e6]),
    )
    def submit(self, pick: int, count: int, is_free: bool, wait_s: float) -> None:
        """Requests arrive at a gateway."""
        for _ in range(count):
            self.gateway(pick).submit(wait_s, is_free=is_free)

    @rule(pick=picks, count=st.integers(1, 4))
    def to_sidecar(self, pick: int, count: int) -> None:
        """Frames of a gateway arrive."""
        for _ in range(count):
            wire = self.gateway(pick).wire
            if wire and wire.to_sidecar:
                self.house.receive(wire)

    @rule(pick=picks, count=st.integers(1, 4))
    def to_gateway(self, pick: int, count: int) -> None:
        """Frames of the sidecar arrive."""
        for _ in range(count):
            wire = self.gateway(pick).wire
            if wire and wire.to_gateway:
                self.gateway(pick).receive(wire.to_gateway.popleft())

    @rule(pick=picks)
    def arrive(self, pick: int) -> None:
        """A connection arrives."""
        wire = self.gateway(pick).wire
        if wire and wire.arriving:
            self.gateway(pick).adopt(*wire.arriving.popleft())

    @precondition(lambda self: self.house.connecting)
    @rule(pick=picks, is_granted=st.sampled_from([True, True, True, False]))
    def answer(self, pick: int, is_granted: bool) -> None:
        """The server accepts or refuses a connection."""
        keys = self.house.connecting
        self.house.finish_connect(keys[pick % len(keys)], is_granted=is_granted)

    @rule(pick=picks, which=picks, kept=st.booleans())
    def end(self, pick: int, which: int, kept: bool) -> None:
        """An exchange is over."""
        if started := self.gateway(pick).started():
            self.gateway(pick).end(started[which % len(started)], kept=kept)

    @rule(pick=picks, which=picks)
    def cancel(self, pick: int, which: int) -> None:
        """A client disconnects, wherever its request is."""
        gateway = self.gateway(pick)
        if owed := [call for call in gateway.calls if call.stage is not Stage.DONE]:
            gateway.cancel(owed[which % len(owed)])

    @rule(pick=picks, which=picks, was_refused=st.booleans())
    def retry(self, pick: int, which: int, was_refused: bool) -> None:
        """A connection is lost before the first byte of the answer, or before the request."""
        if started := self.gateway(pick).started():
            self.gateway(pick).retry(started[which % len(started)], was_refused=was_refused)

    @rule(pick=picks)
    def notice(self, pick: int) -> None:
        """A gateway reads the ends of its connections."""
        self.gateway(pick).notice_ends()

    @rule(pick=picks)
    def lose(self, pick: int) -> None:
        """A link ends, or a lost one is replaced."""
        gateway = self.gateway(pick)
        if gateway.wire is None:
            self.house.connect(gateway)
        elif pick % 2:
            self.house.lose(gateway)

    @rule(seconds=st.sampled_from([0.1, 0.1, 1.0, 2.5, 700.0]))
    def pass_time(self, seconds: float) -> None:
        """Time passes."""
        self.house.pass_time(seconds)

    @rule(how=st.sampled_from(["if idle", "hard", "soft", "resume", "resume"]))
    def drain(self, how: str) -> None:
        """The manager drains the replica, or revokes that."""
        table, now = self.house.table, self.house.now
        if how == "if idle":
            self.house.apply(table.drain(1, now))
        elif how == "hard":
            self.house.apply(table.drain(0, now))
        else:
            self.house.apply(table.quiesce(now) if how == "soft" else table.resume(now))

    @rule()
    def settle(self) -> None:
        """Everything arrives."""
        self.house.settle()
        self.house.check_settled()

    @invariant()
    def nothing_is_taken_twice(self) -> None:
        """Slots are never exceeded; every call is in one place and ends once."""
        self.house.check()

    def teardown(self) -> None:
        """Without new calls and drains every call is granted or refused, and nothing stays open."""
        house = self.house
        house.apply(house.table.resume(house.now))
        house.drain_calls()
        house.check()
        for gateway in house.gateways:
            assert [call for call in gateway.calls if gateway.ends[call] != 1] == []
            assert gateway.dispatcher.is_idle
        house.pass_time(3.0)
        house.settle()
        assert (house.table.taken, house.connections) == (0, {})


TestExchanges = Exchanges.TestCase
TestExchanges.__doc__ = (
    "No order of events exceeds the slots, loses an exchange or leaves one open."
)
TestExchanges.settings = settings(
    max_examples=amount(100, 1000),
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
)


def test_waiting_gateways_are_served_in_turn() -> None:
    """While three gateways wait, the slots go round: of any six grants each gateway has two."""
    house = House()
    for gateway in house.gateways:
        for _ in range(8):
            gateway.submit(1e6, is_free=False)
    order: list[Gateway] = []
    seen: set[Call] = set()
    for _ in range(18):
        house.settle()
        started = [(one, call) for one in house.gateways for call in one.started()]
        order += [one for one, call in started if call not in seen]
        seen |= {call for _, call in started}
        gateway, call = min(started, key=lambda pair: pair[1].position)
        gateway.end(call, kept=True)

    for at in range(LIMIT, len(order) - 5):  # the first grants are those before anybody waited
        assert set(Counter(order[at : at + 6]).values()) == {2}


def test_a_gateway_with_a_long_queue_does_not_keep_its_connections() -> None:
    """A gateway that would reuse its connections for ever gives one back when it is recalled."""
    house = House(2)
    greedy, modest = house.gateways
    for _ in range(50):
        greedy.submit(1e6, is_free=False)
    house.settle()
    modest.submit(1e6, is_free=False)
    for _ in range(4):
        house.settle()
        if modest.started():
            break
        for call in greedy.started():
            greedy.end(call, kept=True)
    assert modest.started()


def test_a_decline_that_meets_the_next_offer_leaves_nobody_waiting() -> None:
    """A gateway declines an offer that its own earlier request has taken. If the decline meets the
    next offer, that gateway's later requests are served nevertheless."""
    house = House(2)
    holder, waiter = house.gateways
    for gateway in (holder, holder, waiter, waiter):
        gateway.submit(1e6, is_free=False)
    to_holder, to_waiter = holder.wire, waiter.wire
    assert to_holder is not None
    assert to_waiter is not None
    house.receive(to_holder)
    house.receive(to_holder)
    for key in list(house.connecting):
        house.finish_connect(key, is_granted=True)
        holder.adopt(*to_holder.arriving.popleft())
    waiter.cancel(waiter.calls[0])
    waiter.submit(1e6, is_free=False)

    house.receive(to_waiter)  # the first request: full
    holder.end(holder.started()[0], kept=False)
    house.receive(to_holder)  # a slot is free: an offer to the waiter
    for _ in range(3):  # its second request takes the offer; the first has ended; the third: full
        house.receive(to_waiter)
    for _ in range(3):  # the offer is declined, as nothing is queued; the third request is queued
        waiter.receive(to_waiter.to_gateway.popleft())
    holder.end(holder.started()[0], kept=False)
    house.receive(to_holder)  # another offer, which the decline meets
    house.settle()
    assert len(waiter.started()) == LIMIT

    for call in waiter.started():
        waiter.end(call, kept=False)
    waiter.submit(1e6, is_free=False)
    house.settle()
    house.check_settled()
    assert len(waiter.started()) == 1
