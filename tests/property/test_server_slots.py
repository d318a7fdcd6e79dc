"""Property tests of a server's slots: any number of gateways, whose frames are delayed at will."""

from __future__ import annotations

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runtime_image.contract.link import Kind, NotStarted
from runtime_image.server.slots import (
    Command,
    Connect,
    EndLink,
    Key,
    NotIdle,
    Parked,
    Phase,
    Rename,
    Send,
    Shut,
    SlotTable,
    Stop,
)
from tests.support.doses import amount

LIMIT = 3
MAX_S = 30.0
GATEWAYS = st.integers(1, 3)
Message = tuple[Kind, int, int]
"""Kind, id and aux; kind OPEN with aux not 0 is REUSE, END with aux 1 is KEPT."""


class Gateway:
    """A gateway that keeps to the protocol, with the frames in flight in both directions."""

    def __init__(self, link: int) -> None:
        self.link = link
        self.ids = 0
        self.queue = 0
        """Calls that wait."""
        self.requested: set[int] = set()
        self.open: set[int] = set()
        self.idle: list[int] = []
        self.is_full = False
        self.is_closing = False
        self.out: deque[Message] = deque()
        self.arriving: deque[Message] = deque()

    def call(self) -> None:
        """A call comes: use an idle connection, or ask for a new one, unless full."""
        self.queue += 1
        self.pump()

    def pump(self) -> None:
        """Send what may be sent."""
        while self.queue and not self.is_closing:
            self.ids += 1
            if self.idle:
                self.out.append((Kind.OPEN, self.ids, self.idle.pop()))
                self.open.add(self.ids)
            elif not self.is_full:
                self.out.append((Kind.OPEN, self.ids, 0))
                self.requested.add(self.ids)
            else:
                return
            self.queue -= 1

    def finish(self, id: int, *, is_kept: bool) -> None:
        """End an exchange; a full link keeps no connection."""
        self.open.discard(id)
        self.requested.discard(id)
        is_kept = is_kept and not self.is_full and not self.is_closing
        self.out.append((Kind.END, id, int(is_kept)))
        if is_kept:
            self.idle.append(id)
        self.pump()

    def close_idle(self, id: int) -> None:
        """Close an idle connection, for whatever reason."""
        if id in self.idle:
            self.idle.remove(id)
            self.out.append((Kind.END, id, 0))

    def receive(self) -> None:
        """Handle the next frame from the sidecar."""
        kind, id, aux = self.arriving.popleft()
        if kind is Kind.NOT_STARTED and id in self.requested:
            self.requested.discard(id)
            self.queue += 1
            self.is_full |= aux == NotStarted.FULL
            # DRAINING and REFUSED: the call goes to another replica.
            self.queue -= aux != NotStarted.FULL
        elif kind is Kind.NOT_STARTED:
            self.is_full |= aux == NotStarted.FULL
        elif kind is Kind.WINDOW:
            self._window(aux)
        elif kind is Kind.RECALL:
            self.close_idle(id)
        elif kind is Kind.QUIESCE:
            self.is_closing = True
            for idle in list(self.idle):
                self.close_idle(idle)
            self.out.append((Kind.QUIESCED, 0, len(self.requested | self.open)))

    def _window(self, offered: int) -> None:
        if offered and self.queue and not self.is_closing and not self.idle:
            self.queue -= 1
            self.ids += 1
            self.requested.add(self.ids)
            self.out.append((Kind.OPEN, self.ids, 0))
            return
        if offered:
            self.out.append((Kind.END, 0, 0))
        else:
            self.is_closing = False
        self.is_full = False
        self.pump()


class Gateways(RuleBasedStateMachine):
    """Three gateways, the manager and the server around one table."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.table = SlotTable(LIMIT, MAX_S, self.now)
        self.gateways: dict[int, Gateway] = {}
        self.links = 0
        self.connections: dict[Key, bool] = {}
        """Every connection of the sidecar; True once it has been passed."""
        self.answers_due = 0
        """Frames NOT_IDLE that the manager may still get."""
        self.is_soft = False
        for _ in range(3):
            self._join()

    def _join(self) -> None:
        self.links += 1
        self.gateways[self.links] = Gateway(self.links)
        self._do(self.table.join(self.links, self.now))

    def _gateway(self, number: int) -> Gateway:
        return list(self.gateways.values())[number % len(self.gateways)]

    def _do(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Connect(key):
                    assert key not in self.connections
                    self.connections[key] = False
                case Rename(old, key):
                    assert key not in self.connections
                    self.connections[key] = self.connections.pop(old)
                case Shut(key):
                    self._shut(key)
                case Send(link, kind, id, aux):
                    assert self.table.phase is not Phase.STOPPED or aux == NotStarted.DRAINING
                    self.gateways[link].arriving.append((kind, id, aux))
                case EndLink(link):
                    self._lose(link)
                case NotIdle():
                    assert self.answers_due
                    self.answers_due -= 1
                case Stop() | Parked():
                    self._stopped()

    def _shut(self, key: Key) -> None:
        self.connections.pop(key)
        gateway = self.gateways.get(key.link)
        if gateway is None:
            return
        # Each REUSE on its way carries the connection on to another exchange.
        ended = key.id
        for kind, id, aux in gateway.out:
            if kind is Kind.OPEN and aux == ended:
                ended = id
        gateway.close_idle(ended)
        if ended in gateway.open:
            gateway.finish(ended, is_kept=False)

    def _stopped(self) -> None:
        """No gateway may be left with an exchange that it has begun."""
        for gateway in self.gateways.values():
            assert not gateway.open
            assert not gateway.idle

    def _lose(self, link: int) -> None:
        del self.gateways[link]
        self._do(self.table.link_lost(link, self.now))

    @rule(number=GATEWAYS)
    def call(self, number: int) -> None:
        """A call comes to a gateway."""
        self._gateway(number).call()

    @rule(number=GATEWAYS, is_kept=st.booleans())
    def finish(self, number: int, is_kept: bool) -> None:
        """An exchange ends."""
        gateway = self._gateway(number)
        if gateway.open:
            gateway.finish(min(gateway.open), is_kept=is_kept)

    @rule(number=GATEWAYS)
    def give_up(self, number: int) -> None:
        """The client of an OPEN that is not answered leaves."""
        gateway = self._gateway(number)
        if gateway.requested:
            gateway.finish(max(gateway.requested), is_kept=False)

    @rule(number=GATEWAYS)
    def expire(self, number: int) -> None:
        """A gateway closes its oldest idle connection."""
        gateway = self._gateway(number)
        if gateway.idle:
            gateway.close_idle(gateway.idle[0])

    @rule(number=GATEWAYS)
    def to_gateway(self, number: int) -> None:
        """A frame arrives at a gateway."""
        gateway = self._gateway(number)
        if gateway.arriving:
            gateway.receive()

    @rule(number=GATEWAYS)
    def to_sidecar(self, number: int) -> None:
        """A frame arrives at the sidecar."""
        gateway = self._gateway(number)
        if gateway.out:
            self._feed(gateway)

    def _feed(self, gateway: Gateway) -> None:
        kind, id, aux = gateway.out.popleft()
        table, link = self.table, gateway.link
        if kind is Kind.OPEN and aux:
            self._do(table.reuse(link, id, aux, self.now))
        elif kind is Kind.OPEN:
            self._do(table.open(link, id, self.now))
        elif kind is Kind.END:
            self._do(table.end(link, id, self.now, is_kept=bool(aux)))
        else:
            self._do(table.quiesced(link, aux, self.now))

    @precondition(lambda self: not all(self.connections.values()))
    @rule(is_refused=st.booleans())
    def connect(self, is_refused: bool) -> None:
        """The server accepts a connection, or refuses it."""
        key = next(key for key, is_passed in self.connections.items() if not is_passed)
        if is_refused:
            self._do(self.table.refused(key, self.now))
            return
        self._pass(key)

    def _pass(self, key: Key) -> None:
        self.connections[key] = True
        self._do(self.table.connected(key, self.now))
        gateway = self.gateways[key.link]
        # The socket of an exchange that was given up is closed; its END is on its way.
        if key.id in gateway.requested:
            gateway.requested.discard(key.id)
            gateway.open.add(key.id)

    @rule(number=GATEWAYS)
    def lose(self, number: int) -> None:
        """A gateway ends, and another one comes."""
        self._lose(self._gateway(number).link)
        self._join()

    @rule(passed_s=st.sampled_from([0.5, 2.0, 11.0, 40.0]))
    def wait(self, passed_s: float) -> None:
        """Time passes."""
        self.now += passed_s
        self._do(self.table.tick(self.now))
        while len(self.gateways) < 3:
            self._join()

    @rule()
    def deliver_all(self) -> None:
        """Once all frames have arrived, no call waits while a slot could be had."""
        while any(gateway.out or gateway.arriving for gateway in self.gateways.values()):
            for gateway in list(self.gateways.values()):
                while gateway.out:
                    self._feed(gateway)
                while gateway.arriving:
                    gateway.receive()
        for key in [key for key, is_passed in self.connections.items() if not is_passed]:
            self._pass(key)
        if self.table.phase is Phase.SERVING:
            in_use = sum(len(gateway.open) for gateway in self.gateways.values())
            waiting = any(gateway.queue for gateway in self.gateways.values())
            assert self.table.taken == len(self.connections), "an offer was lost"
            assert not waiting or in_use == LIMIT
            assert in_use == self.table.in_use
        elif self.table.phase not in (Phase.STOPPED, Phase.PARKED):
            assert self.table.in_use, "a drain must end when nothing is open"

    @invariant()
    def keeps_its_limit(self) -> None:
        """Connections and offers never exceed the limit."""
        assert len(self.connections) <= self.table.taken <= LIMIT


class DrainedGateways(Gateways):
    """The same with a manager that drains the server."""

    @rule(if_idle_ms=st.sampled_from([0, 500, 500, 500]))
    def drain(self, if_idle_ms: int) -> None:
        """The manager asks for a drain."""
        self.answers_due += 1
        self._do(self.table.drain(if_idle_ms, self.now))

    @rule()
    def quiesce(self) -> None:
        """The manager drains softly."""
        self._do(self.table.quiesce(self.now))

    @rule()
    def resume(self) -> None:
        """The manager revokes a soft drain."""
        self.answers_due += 1
        self._do(self.table.resume(self.now))


class ParkedGateways(DrainedGateways):
    """The same with a manager that also parks the server."""

    @rule(if_idle_ms=st.sampled_from([0, 1, 500]))
    def park(self, if_idle_ms: int) -> None:
        """The manager parks a server that is idle, or with 0 once it is."""
        self.answers_due += 1
        self._do(self.table.park(if_idle_ms, self.now))

    @rule()
    def serve(self) -> None:
        """The server is awake, and has answered its samples."""
        self._do(self.table.serve(self.now))

    @invariant()
    def has_nothing_open_while_parked(self) -> None:
        """No exchange reaches an engine that sleeps."""
        if self.table.phase is Phase.PARKED:
            assert not self.connections


SETTINGS = settings(max_examples=amount(100, 400), stateful_step_count=60, deadline=None)
Gateways.TestCase.settings = SETTINGS
DrainedGateways.TestCase.settings = SETTINGS
ParkedGateways.TestCase.settings = SETTINGS
TestGateways = Gateways.TestCase
TestDrainedGateways = DrainedGateways.TestCase
TestParkedGateways = ParkedGateways.TestCase
