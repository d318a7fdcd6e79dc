"""Slots of a server: which gateway may open an exchange, and when the server may stop. Pure.

Events in, commands out; `now` is monotonic seconds. A *slot* is one connection to the server: being
connected, open (an exchange runs) or idle (kept by its gateway). An *offer* is a slot that a link
of the rotation may take with its next OPEN. Exchanges with the flag FREE take no slot, nor do
WebSockets while they are *quiet*, without data.

Invariants, for any number of links and any order of frames:
- connecting + open + idle + offered <= limit, but for WebSockets that are used after being quiet.
- While a link waits, no slot is free, and of the idle slots one per waiting link without an offer
  is recalled. Links tell late that a connection is idle; RECALL(id 0) has them tell it at once,
  until WINDOW(aux=0). So a slot is idle and not recalled for at most two exchanges of frames.
- Every WINDOW(aux=1) is answered by one OPEN or one END(id 0), so no offer is lost; one that is
  not answered within OFFER_S counts as declined.
- A link that was told FULL is in the rotation, or was told WINDOW(aux=0) later: not full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from runtime_image.contract.link import BUSY_MASK, Kind, NotStarted
from runtime_image.contract.server import FREE_MAX, MAX_GRACE_S, QUIESCE_S
from runtime_image.link.frames import LinkError

CONNECT_S: Final = 5.0
"""Seconds after which a connection that is not established counts as refused."""
OFFER_S: Final = 3.0
"""Seconds that a gateway has to answer an offer."""
IDLE_S: Final = 10.0
"""Seconds after which an idle connection is shut. Gateways keep them 2 s."""


class Key(NamedTuple):
    """One exchange: number of the gateway's link, and the id of its OPEN."""

    link: int
    id: int


class Connect(NamedTuple):
    """Connect to the server and pass the socket; `connected` or `refused` reports the result."""

    key: Key


class Rename(NamedTuple):
    """The connection `old` carries the exchange `key` from now on."""

    old: Key
    key: Key


class Shut(NamedTuple):
    """Shut the connection down for all its holders, or give up connecting; then forget it."""

    key: Key


class Send(NamedTuple):
    """Send a frame without body to a gateway."""

    link: int
    kind: Kind
    id: int = 0
    aux: int = 0


class EndLink(NamedTuple):
    """End the link of a gateway that does not answer; `link_lost` follows."""

    link: int


class NotIdle(NamedTuple):
    """Tell the manager that the server serves on; `idle_ms` since the last end, 0 while open."""

    idle_ms: int


class Stop(NamedTuple):
    """Nothing is open, and no gateway uses the server any more: stop it."""


class Parked(NamedTuple):
    """Nothing is open, and no gateway uses the server until `serve`."""


Command = Connect | Rename | Shut | Send | EndLink | NotIdle | Stop | Parked


class Phase(Enum):
    """SERVING; the three kinds of drain; STOPPED after Stop; the way to PARKED.

    ASKED is a conditional drain, which an OPEN refuses, and so is PARKING, after which the server
    is PARKED. SOFT may be revoked by RESUME, and so is SOFT_PARKING, which ends as PARKING does.
    """

    SERVING = "serving"
    ASKED = "asked"
    PARKING = "parking"
    SOFT_PARKING = "soft parking"
    PARKED = "parked"
    SOFT = "soft"
    HARD = "hard"
    STOPPED = "stopped"


class _State(Enum):
    CONNECTING = "connecting"
    OPEN = "open"
    IDLE = "idle"


@dataclass(slots=True)
class _Slot:
    state: _State
    since_s: float
    is_free: bool
    is_recalled: bool = False
    is_tunnel: bool = False
    """Whether it is a WebSocket, whose time only its gateway limits."""
    is_quiet: bool = False
    """Whether it is a WebSocket without data, which is open and takes no slot."""


@dataclass(slots=True)
class _Link:
    ids: set[int] = field(default_factory=set)
    offers: deque[float] = field(default_factory=deque)
    """Times of the offers that are not answered."""
    quiesces: int = 0
    """QUIESCE frames that are not answered. A number, because an answer to a drain that was refused
    may arrive after the QUIESCE of the next one."""
    quiesced_by_s: float = 0.0
    is_hastened: bool = False
    """Whether the link tells ends at once."""


class SlotTable:
    """Slots of one server over all gateway links.

    Frames of a link must be fed in the order of their arrival. `tick` is due twice a second.
    """

    def __init__(self, limit: int, max_s: float, now: float) -> None:
        """`limit` is the number of slots, `max_s` the longest exchange in seconds."""
        self.limit = limit
        self.phase = Phase.SERVING
        self._exchange_s = max_s + MAX_GRACE_S
        self._slots: dict[Key, _Slot] = {}
        self._links: dict[int, _Link] = {}
        self._rotation: deque[int] = deque()
        self._idle: dict[Key, None] = {}
        """Idle connections, the oldest first."""
        self._recalled = 0
        self._offered = 0
        self._free = 0
        self._quiet = 0
        self._in_use = 0
        """Slots that are connecting or open."""
        self._last_end_s = now
        self._busy_since_s = now
        self._busy_s = 0.0

    @property
    def taken(self) -> int:
        """Slots that are connecting, open, idle or offered."""
        return len(self._slots) - self._free - self._quiet + self._offered

    @property
    def in_use(self) -> int:
        """Exchanges that are connecting or open, without FREE and quiet ones."""
        return self._in_use

    def counted(self) -> list[Key]:
        """Return the open exchanges that are expected to end: no WebSockets, none that is FREE."""
        return [
            key
            for key, slot in self._slots.items()
            if slot.state is _State.OPEN and not (slot.is_free or slot.is_tunnel)
        ]

    def busy_ms(self, now: float) -> int:
        """Return the milliseconds with any exchange so far, modulo 2**32, for PONG."""
        running_s = now - self._busy_since_s if self._in_use else 0.0
        return int((self._busy_s + running_s) * 1e3) & BUSY_MASK

    def idle_ms(self, now: float) -> int:
        """Return the milliseconds since the last exchange; 0 while one runs or a link waits."""
        if self._in_use or self._rotation or self._offered:
            return 0
        return min(BUSY_MASK, max(0, int((now - self._last_end_s) * 1e3)))

    # Frames and connections

    def join(self, link: int, now: float) -> list[Command]:
        """Add a link that has greeted."""
        self._links[link] = _Link()
        return self._quiesce([link], now) if self._is_quiescing() else []

    def link_lost(self, link: int, now: float) -> list[Command]:
        """Remove a link; its connections are shut and its slots are free."""
        gone = self._links.pop(link, None)
        if gone is None:
            return []
        self._offered -= len(gone.offers)
        self._leave_rotation(link)
        commands: list[Command] = []
        for id in gone.ids:
            key = Key(link, id)
            self._drop(key, now)
            commands.append(Shut(key))
        return commands + self._settle(now)

    def open(self, link: int, id: int, now: float, *, is_free: bool = False) -> list[Command]:
        """Handle OPEN. Raises LinkError if the id is 0 or in use."""
        self._check_id(link, id)
        if self.phase is not Phase.SERVING and not self._is_conditional():
            return [_not_started(Key(link, id), NotStarted.DRAINING)]
        if is_free:
            return [self._start(link, id, now, is_free=True, has_room=self._free < FREE_MAX)]
        commands = self._refuse_drain(0) if self._is_conditional() else []
        # While a link waits, all slots are taken: nobody overtakes the rotation.
        has_room = self._answer_offer(link) or self.taken < self.limit
        commands.append(self._start(link, id, now, is_free=False, has_room=has_room))
        if not has_room and link not in self._rotation:
            self._rotation.append(link)
        return commands + self._settle(now)

    def _start(self, link: int, id: int, now: float, *, is_free: bool, has_room: bool) -> Command:
        if not has_room:
            return _not_started(Key(link, id), NotStarted.FULL)
        return Connect(self._add(link, id, _Slot(_State.CONNECTING, now, is_free), now))

    def reuse(self, link: int, id: int, old: int, now: float) -> list[Command]:
        """Handle OPEN with the flag REUSE: the idle connection `old` carries exchange `id`.

        The gateway has written to it already, so that a drain waits for this exchange too. A
        connection that was shut meanwhile is ignored: the gateway reads its end. Raises LinkError
        if the id is 0 or in use, or `old` is not idle.
        """
        self._check_id(link, id)
        slot = self._slots.get(Key(link, old))
        if slot is None:
            return []
        if slot.state is not _State.IDLE:
            raise LinkError(f"expected an idle connection to reuse, got {slot.state.value} {old}")
        commands = self._refuse_drain(0) if self._is_conditional() else []
        self._drop(Key(link, old), now)
        key = self._add(link, id, _Slot(_State.OPEN, now, is_free=False), now)
        return [*commands, Rename(Key(link, old), key), *self._settle(now)]

    def end(
        self, link: int, id: int, now: float, *, is_kept: bool = False, ago_ms: int = 0
    ) -> list[Command]:
        """Handle END; id 0 declines an offer. Unknown ids were answered or shut meanwhile.

        `is_kept` has no effect on a FREE exchange, nor before its connection was passed. `ago_ms`:
        the exchange ended so many milliseconds ago.
        """
        if id == 0:
            return self._decline(link) + self._settle(now)
        key = Key(link, id)
        slot = self._slots.get(key)
        if slot is None:
            return []
        if is_kept and slot.state is _State.OPEN and not slot.is_free and not self._is_stopped():
            self._drop(key, max(slot.since_s, now - ago_ms / 1e3))
            self._add(link, id, _Slot(_State.IDLE, now, is_free=False), now)
            return self._settle(now)
        self._drop(key, now)
        return [Shut(key), *self._settle(now)]

    def tunnel(self, link: int, id: int, now: float, *, is_quiet: bool) -> list[Command]:
        """Handle TUNNEL: exchange `id` is a WebSocket, which is quiet or in use.

        A quiet one that is used again takes a slot even above the limit, and refuses a drain that
        may be refused. An exchange that was shut meanwhile is ignored. Raises LinkError if the
        connection is idle.
        """
        slot = self._slots.get(Key(link, id))
        if slot is None:
            return []
        if slot.state is _State.IDLE:
            raise LinkError(f"expected an open connection for a WebSocket, got an idle one, {id}")
        slot.is_tunnel = True
        if slot.is_free or slot.is_quiet is is_quiet:
            return []
        slot.is_quiet = is_quiet
        self._quiet += 1 if is_quiet else -1
        if is_quiet:
            self._leave_use(now)
            return self._settle(now)
        self._enter_use(now)
        return self._refuse_drain(0) if self._is_conditional() else []

    def connected(self, key: Key, now: float) -> list[Command]:
        """Handle a connection that was established and passed to its gateway."""
        slot = self._slots.get(key)
        if slot is not None and slot.state is _State.CONNECTING:
            slot.state, slot.since_s = _State.OPEN, now
        return []

    def refused(self, key: Key, now: float) -> list[Command]:
        """Handle a connection that the server refused."""
        slot = self._slots.get(key)
        if slot is None or slot.state is not _State.CONNECTING:
            return []
        self._drop(key, now)
        refused = _not_started(key, NotStarted.REFUSED)
        return [Shut(key), refused, *self._settle(now)]

    def tick(self, now: float) -> list[Command]:
        """Apply the time limits of connections, exchanges, offers and answers to QUIESCE."""
        commands: list[Command] = []
        for key, slot in list(self._slots.items()):
            if slot.is_tunnel or now - slot.since_s < self._limit_s(slot.state):
                continue
            if slot.state is _State.CONNECTING:
                commands += self.refused(key, now)
            else:
                self._drop(key, now)
                commands.append(Shut(key))
        for number, link in self._links.items():
            while link.offers and now - link.offers[0] >= OFFER_S:
                self._answer_offer(number)
                self._leave_rotation(number)
                # The gateway may still take the offer, and would then wait for the next one.
                commands.append(self._window(number))
            if link.quiesces and self._is_quiescing() and now >= link.quiesced_by_s:
                commands.append(EndLink(number))
            if link.is_hastened and self.phase is Phase.SERVING and not self._rotation:
                commands.append(self._window(number))
        return commands + self._settle(now)

    # Drains

    def drain(self, if_idle_ms: int, now: float) -> list[Command]:
        """Handle the manager's DRAIN; 0 is unconditional. A drain in progress is only tightened."""
        if if_idle_ms == 0 or self.phase is Phase.PARKED:
            return self._begin(Phase.HARD, now)
        return self._ask(Phase.ASKED, if_idle_ms, now)

    def park(self, if_idle_ms: int, now: float) -> list[Command]:
        """Handle the manager's PARK: Parked follows, or NotIdle if an exchange is open, a link
        waits, or the last exchange ended less than `if_idle_ms` ago. With 0 open exchanges end
        before, unless RESUME revokes it. What takes no slot is shut, as by a drain. A drain goes on
        without an answer."""
        if if_idle_ms == 0 and self.phase is Phase.SERVING:
            return self._begin(Phase.SOFT_PARKING, now)
        return self._ask(Phase.PARKING, if_idle_ms, now)

    def serve(self, now: float) -> list[Command]:
        """Serve again after Parked. A drain goes on."""
        if self.phase is not Phase.PARKED:
            return []
        self.phase, self._last_end_s = Phase.SERVING, now
        return [self._window(link) for link in self._links]

    def _ask(self, phase: Phase, if_idle_ms: int, now: float) -> list[Command]:
        """Begin a conditional drain, unless the server is not idle."""
        if self.phase is not Phase.SERVING:
            return []
        idle_ms = self.idle_ms(now)
        return [NotIdle(idle_ms)] if idle_ms < if_idle_ms else self._begin(phase, now)

    def quiesce(self, now: float) -> list[Command]:
        """Handle the manager's QUIESCE: drain until RESUME."""
        return [] if self.phase is Phase.HARD else self._begin(Phase.SOFT, now)

    def resume(self, now: float) -> list[Command]:
        """Handle the manager's RESUME. An unconditional drain goes on."""
        if self._is_conditional() or self.phase in (Phase.SOFT, Phase.SOFT_PARKING):
            return self._refuse_drain(self.idle_ms(now))
        return [NotIdle(self.idle_ms(now))] if self.phase is Phase.SERVING else []

    def quiesced(self, link: int, count: int, now: float) -> list[Command]:
        """Handle QUIESCED. Raises LinkError without a QUIESCE.

        `count` matters for a conditional drain only: the gateway's exchanges are in the table, as
        its OPENs came before this frame.
        """
        answered = self._links[link]
        if not answered.quiesces:
            raise LinkError("unexpected QUIESCED")
        answered.quiesces -= 1
        if self._is_conditional() and not answered.quiesces and count:
            return self._refuse_drain(0)
        return self._settle(now)

    def _begin(self, phase: Phase, now: float) -> list[Command]:
        if self._is_stopped():
            return []
        was_quiescing, self.phase = self._is_quiescing(), phase
        # No link is full after a drain: WINDOW(aux=0) opens them all.
        self._rotation.clear()
        for link in self._links.values():
            link.offers.clear()
        self._offered = 0
        commands = [] if was_quiescing else self._quiesce(list(self._links), now)
        return commands + self._settle(now)

    def _quiesce(self, links: list[int], now: float) -> list[Command]:
        for link in links:
            self._links[link].quiesces += 1
            self._links[link].quiesced_by_s = now + QUIESCE_S
        return [Send(link, Kind.QUIESCE) for link in links]

    def _refuse_drain(self, idle_ms: int) -> list[Command]:
        self.phase = Phase.SERVING
        opened: list[Command] = [self._window(link) for link in self._links]
        return [*opened, NotIdle(idle_ms)]

    def _is_quiescing(self) -> bool:
        return self.phase not in (Phase.SERVING, Phase.STOPPED)

    def _is_conditional(self) -> bool:
        return self.phase in (Phase.ASKED, Phase.PARKING)

    def _is_stopped(self) -> bool:
        return self.phase is Phase.STOPPED

    # Slots

    def _check_id(self, link: int, id: int) -> None:
        if id == 0 or Key(link, id) in self._slots:
            raise LinkError(f"expected a new id of an exchange, got {id}")

    def _answer_offer(self, link: int) -> bool:
        """Take back the oldest offer of a link; False if there is none.

        An answer without an offer is no error: an earlier OPEN, sent before the offer arrived, may
        have taken it.
        """
        offers = self._links[link].offers
        if not offers:
            return False
        offers.popleft()
        self._offered -= 1
        return True

    def _decline(self, link: int) -> list[Command]:
        """Take back an offer that a link declines, and take the link out of the rotation.

        An earlier OPEN may have taken the offer that is meant; then this takes back the next one.
        The gateway, which has yet to answer that one, still waits: WINDOW(aux=0) ends its wait.
        """
        if not self._answer_offer(link) or link not in self._rotation:
            return []
        self._leave_rotation(link)
        return [self._window(link)]

    def _leave_rotation(self, link: int) -> None:
        if link in self._rotation:
            self._rotation.remove(link)

    def _limit_s(self, state: _State) -> float:
        if state is _State.CONNECTING:
            return CONNECT_S
        return self._exchange_s if state is _State.OPEN else IDLE_S

    def _add(self, link: int, id: int, slot: _Slot, now: float) -> Key:
        key = Key(link, id)
        self._slots[key] = slot
        self._links[link].ids.add(id)
        if slot.is_free:
            self._free += 1
        elif slot.state is _State.IDLE:
            self._idle[key] = None
        else:
            self._enter_use(now)
        return key

    def _drop(self, key: Key, now: float) -> None:
        slot = self._slots.pop(key)
        if key.link in self._links:
            self._links[key.link].ids.discard(key.id)
        if slot.is_free:
            self._free -= 1
        elif slot.state is _State.IDLE:
            del self._idle[key]
            self._recalled -= slot.is_recalled
        elif slot.is_quiet:
            self._quiet -= 1
        else:
            self._leave_use(now)

    def _enter_use(self, now: float) -> None:
        if not self._in_use:
            self._busy_since_s = now
        self._in_use += 1

    def _leave_use(self, now: float) -> None:
        self._in_use -= 1
        # An end that is told late may be earlier than one that was told before.
        self._last_end_s = max(self._last_end_s, now)
        if not self._in_use:
            self._busy_s += max(0.0, self._last_end_s - self._busy_since_s)

    def _settle(self, now: float) -> list[Command]:
        """Offer what is free, recall what is idle, stop when a drain is over.

        Quiet WebSockets are shut before the server is stopped, so that their gateways can tell the
        clients why, whatever the server says at its end.
        """
        if self.phase is Phase.SERVING:
            return [*self._offer(now), *self._hasten(), *self._recall()]
        is_quiesced = not any(link.quiesces for link in self._links.values())
        if not (self._is_quiescing() and is_quiesced and not self._in_use):
            return []
        if self.phase is Phase.PARKED:
            return []
        if self.phase in (Phase.PARKING, Phase.SOFT_PARKING):
            self.phase = Phase.PARKED
            # Their gateways keep their links, and wait for an answer.
            begun = [key for key, one in self._slots.items() if one.state is _State.CONNECTING]
            refused = [_not_started(key, NotStarted.DRAINING) for key in begun]
            return [*refused, *self._shut(list(self._slots), now), Parked()]
        self.phase = Phase.STOPPED
        quiet = [key for key, slot in self._slots.items() if slot.is_quiet]
        return [*self._shut(quiet, now), Stop()]

    def _shut(self, keys: list[Key], now: float) -> list[Command]:
        for key in keys:
            self._drop(key, now)
        return list(map(Shut, keys))

    def _offer(self, now: float) -> Iterator[Command]:
        while self._rotation and self.taken < self.limit:
            link = self._rotation[0]
            self._rotation.rotate(-1)
            self._links[link].offers.append(now)
            self._offered += 1
            yield Send(link, Kind.WINDOW, aux=1)

    def _window(self, link: int) -> Send:
        """Tell a link that it is not full, and may tell ends late."""
        self._links[link].is_hastened = False
        return Send(link, Kind.WINDOW)

    def _hasten(self) -> Iterator[Command]:
        """While a link waits, have all tell at once which of their connections are idle.

        A link that knows that it waits keeps none. But one in the rotation may not know: FULL is
        ignored where the exchange has ended meanwhile.
        """
        if not self._rotation:
            return
        for number, link in self._links.items():
            if not link.is_hastened and self._has_open(number, link):
                link.is_hastened = True
                yield Send(number, Kind.RECALL)

    def _has_open(self, number: int, link: _Link) -> bool:
        """Return whether a link has slots that are not known to be idle."""
        slots = [self._slots[Key(number, id)] for id in link.ids]
        return any(slot.state is not _State.IDLE and not slot.is_free for slot in slots)

    def _recall(self) -> Iterator[Command]:
        if not self._rotation or not self._idle:
            return
        wanted = sum(not self._links[link].offers for link in self._rotation) - self._recalled
        for key in self._idle:
            if wanted <= 0:
                return
            slot = self._slots[key]
            if not slot.is_recalled:
                slot.is_recalled = True
                self._recalled += 1
                wanted -= 1
                yield Send(key.link, Kind.RECALL, key.id)


def _not_started(key: Key, reason: NotStarted) -> Send:
    return Send(key.link, Kind.NOT_STARTED, key.id, reason)
