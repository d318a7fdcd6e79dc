"""The dispatcher: takes calls, sends them to replicas, decides about every mishap.

Invariants: a call is in exactly one place (a waiting line, one link, done); a replica never has
more than its limit from here; nobody waits while a replica has room.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from gateway.dispatch.call import Call, Command, Link, Send, Stage
from gateway.dispatch.failures import Endings
from gateway.dispatch.pool import UNKNOWN, Pool, check, foresee, refusal
from gateway.dispatch.queue import WaitingLine
from gateway.dispatch.redirects import Moves, Terms
from registry.errors import Poison
from registry.exchange import NOTHING, Load, PoolEndpoints
from runtime_image.contract.link import NotStarted


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one gateway process."""

    bytes_max: int = 256 * 2**20
    retries: int = 2


class Dispatcher:
    """One per gateway process. Every method returns the commands its event leads to."""

    def __init__(self, limits: Limits) -> None:
        self._bytes_max = limits.bytes_max
        self._moves = Moves(self.pool)
        self._endings = Endings(limits.retries, self._moves)
        self._places = count(1)
        self.pools: dict[str, Pool] = {}
        self.links: dict[str, Link] = {}
        self._called: set[str] = set()
        self._has_manager = True

    # What clients do

    def submit(self, call: Call, now: float) -> list[Command]:
        """Accept a call, or raise UnknownFunction, FunctionFailing, QueueFull, Poison, or
        WaitBudgetOver; then `call.was_held` says that its pool is woken all the same.

        Its body may have come while traffic moved: then it follows, as those do that wait.
        """
        pool = self._moves.readdress(call, self.pool(call.pool), now)
        check(call, pool, now, self.held_bytes, self._bytes_max)
        left_s = self._endings.poison.seconds_left(call.pool, call.body, now)
        if left_s:
            raise Poison("this input killed the model before", retry_after_s=left_s)
        self._called.add(pool.key)
        link = None if pool.waiting else pool.roomiest()
        if link is None:
            call.was_held = not pool.is_open
            if call.was_held:
                foresee(call, pool, now)
        self._endings.held_bytes += len(call.body)
        if link is not None:
            pool.waiting.pass_by(call)
            return [self._sent(call, link, now)]
        pool.waiting.append(call)
        if call.was_held:
            pool.watch(now)
        return self._fill(pool, now)

    def send_now(self, call: Call, now: float) -> Send | None:
        """What `submit` would do with a call to which nothing stands in the way, as with nearly
        all; None, and nothing was done, where it takes a closer look."""
        key = call.pool
        pool = self.pools.get(key)
        if pool is None or pool.waiting or self._moves.heir(key) != key or self._endings.poison:
            return None
        link = pool.roomiest()
        held_bytes = self._endings.held_bytes + len(call.body)
        is_over = held_bytes > self._bytes_max or not call.queue_max
        if link is None or is_over or refusal(pool, now) is not None:
            return None
        self._endings.held_bytes = held_bytes
        self._called.add(key)
        pool.waiting.pass_by(call)
        return self._sent(call, link, now)

    def leave(self, call: Call, now: float) -> list[Command]:
        """The client is gone: its place is free at once, its work is recalled."""
        commands: list[Command] = []
        pool = self.pools.get(call.pool)
        if pool is None:
            return commands
        self._endings.drop(call, pool, commands)
        return commands + self._fill(pool, now)

    def reserve(self, count: int) -> None:
        """Count so many bytes of bodies that still arrive among those held; a negative `count`
        gives them back."""
        self._endings.held_bytes += count

    # What the manager says

    def pool(self, key: str) -> Pool:
        """The view of a revision, made when first asked for and kept while anything goes on."""
        if key not in self.pools:
            line = WaitingLine(self._places)
            self.pools[key] = Pool(key, line, has_manager=self._has_manager)
        return self.pools[key]

    def look(self, key: str, shown: PoolEndpoints, now: float) -> list[Command]:
        """A pool's state as published. Failing and gone pools answer their waiters at once."""
        if key not in self.pools and shown == UNKNOWN:
            return []
        pool = self.pool(key)
        pool.shown = shown
        pool.retry_at_s = now + shown.retry_after_s
        commands = self._endings.refuse_waiting(pool, now)
        pool.watch(now)
        if shown.state == "gone":
            self._moves.forget(key)
        self._forget_if_gone(pool)
        return commands

    def lose_manager(self, now: float) -> list[Command]:
        """The pool manager is gone for good: from now on what no ready replica takes is refused."""
        self._has_manager = False
        commands: list[Command] = []
        for pool in self.pools.values():
            pool.has_manager = False
            commands += self._endings.refuse_waiting(pool, now)
        return commands

    def move(self, source: str, target: str, terms: Terms | None, now: float) -> list[Command]:
        """A function's traffic moved from one revision to another.

        Calls by plain name that have not begun follow it, now and when a replica hands them back,
        with `terms`; None where they do not fit the new revision: then they stay.
        """
        self._moves.moved(source, target, terms)
        old = self.pool(source)
        self._moves.follow(old, now)
        return self._fill(old, now)

    def heir(self, key: str) -> str:
        """The pool that calls by plain name for this one go to now."""
        return self._moves.heir(key)

    # What replicas do

    def link_up(self, link: Link, now: float) -> list[Command]:
        """A replica can be sent to."""
        self.links[link.id] = link
        pool = self.pool(link.pool)
        pool.links[link.id] = link
        pool.watch(now)
        return self._fill(pool, now)

    def link_lost(self, link_id: str, now: float) -> list[Command]:
        """A replica died or its link broke: every call on it is requeued or given up."""
        link = self.links.pop(link_id, None)
        if link is None:
            return []
        pool = self.pool(link.pool)
        del pool.links[link_id]
        commands: list[Command] = []
        for call in reversed(list(link.in_flight.values())):
            self._endings.bereave(call, pool, now, commands)
        commands += self._fill(pool, now)
        self._forget_if_gone(pool)
        return commands

    def started(self, link_id: str, ids: list[int], now: float) -> None:
        """These requests have begun to run."""
        link = self.links[link_id]
        for id in ids:
            call = link.in_flight.get(id)
            if call is not None and call.stage is Stage.SENT:
                call.stage = Stage.STARTED
                call.started_s = now

    def ended(self, link_id: str, id: int, now: float) -> tuple[Call | None, list[Command]]:
        """A final frame for `id` came: the call if its answer is still wanted.

        Raises KeyError for an id the replica does not have.
        """
        link = self.links[link_id]
        call = link.in_flight.pop(id)
        pool = self.pools[link.pool]
        wanted = call if call.stage is not Stage.ABANDONED else None
        if wanted is not None:
            call.stage = Stage.DONE
            self._endings.held_bytes -= len(call.body)
            pool.pace.answered(now)
        return wanted, self._fill(pool, now) if pool.waiting else []

    def not_started(self, link_id: str, id: int, reason: int, now: float) -> list[Command]:
        """The replica handed a request back unrun. Raises KeyError for an id it does not have."""
        link = self.links[link_id]
        if id in link.pardoned:
            link.pardoned.discard(id)
            return []
        call = link.in_flight.pop(id)
        if reason == NotStarted.FULL:
            link.full = True
            # Other gateways fill a replica too: being turned away is no sign of a loop.
            call.sends -= 1
        elif reason == NotStarted.DRAINING:
            link.closing = True
        else:
            call.run_alone(now)
        commands: list[Command] = []
        pool = self.pools[link.pool]
        self._endings.hand_back(call, link, pool, now, commands)
        return commands + self._fill(pool, now)

    def goaway(self, link_id: str, last_id: int, now: float) -> list[Command]:
        """The replica takes nothing sent after `last_id`; that is sent elsewhere."""
        link = self.links[link_id]
        link.closing = True
        pool = self.pools[link.pool]
        commands: list[Command] = []
        for call in reversed(link.sent_after(last_id)):
            del link.in_flight[call.id]
            link.pardoned.add(call.id)
            self._endings.hand_back(call, link, pool, now, commands)
        return commands + self._fill(pool, now)

    def window(self, link_id: str, now: float) -> list[Command]:
        """The replica has room again."""
        link = self.links[link_id]
        link.full = False
        return self._fill(self.pools[link.pool], now)

    # What time does

    def sweep(self, now: float) -> list[Command]:
        """Answer every call whose time is over, forget pools at rest; about ten times a second."""
        self._endings.poison.sweep(now)
        self.pools = {key: pool for key, pool in self.pools.items() if not pool.is_at_rest}
        commands: list[Command] = []
        for pool in self.pools.values():
            commands += self._endings.sweep(pool, now)
            pool.watch(now)
        return commands

    def loads(self, now: float) -> dict[str, Load]:
        """What is held and in flight, for every pool with any."""
        loads = ((key, self.load(key, now)) for key in self.pools)
        return {key: load for key, load in loads if load.busy}

    def load(self, key: str, now: float) -> Load:
        """What is held and in flight for one pool."""
        pool = self.pools.get(key)
        return NOTHING if pool is None else pool.load(now)

    def take_called(self) -> list[str]:
        """The pools called since this was asked last."""
        called, self._called = self._called, set()
        return list(called)

    @property
    def held_bytes(self) -> int:
        """Bytes of the bodies of all calls not yet ended."""
        return self._endings.held_bytes

    @property
    def is_idle(self) -> bool:
        """Whether nothing is owed to any client."""
        return not any(pool.waiting or pool.in_flight for pool in self.pools.values())

    # Inside

    def _fill(self, pool: Pool, now: float) -> list[Command]:
        """Serve who waits for this pool, and those whom it may just have handed to its heir."""
        commands = self._send(pool, now)
        heir = self._moves.heir(pool.key)
        return commands if heir == pool.key else commands + self._send(self.pool(heir), now)

    def _send(self, pool: Pool, now: float) -> list[Command]:
        """Send waiting calls while a replica has room, to the one with the fewest in flight."""
        commands: list[Command] = []
        while pool.waiting:
            link = pool.roomiest()
            if link is None:
                break
            commands.append(self._sent(pool.waiting.pop(), link, now))
        return commands

    @staticmethod
    def _sent(call: Call, link: Link, now: float) -> Send:
        # A call that runs alone is marked when it starts even where others are not.
        marked = link.marks_started or call.alone
        call.stage = Stage.SENT if marked else Stage.STARTED
        call.link, call.id = link.id, link.next_id()
        call.sent_s = call.started_s = now
        call.sends += 1
        link.in_flight[call.id] = call
        return Send(link.id, call.id, call)

    def _forget_if_gone(self, pool: Pool) -> None:
        if pool.shown.state == "gone" and not pool.links and not pool.waiting:
            del self.pools[pool.key]
