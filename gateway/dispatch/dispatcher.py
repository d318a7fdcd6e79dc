"""The dispatcher: takes calls, sends them to replicas, decides about every mishap.

Invariants: a call is in exactly one place (a waiting line, one link, done); a replica never has
more than its limit from here; nobody waits while a replica has room.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from gateway.dispatch.call import Call, Command, Link, Send, Stage
from gateway.dispatch.failures import Endings, PoisonList
from gateway.dispatch.pool import UNKNOWN, Pool
from gateway.dispatch.redirects import Moves, Terms
from registry.errors import Poison, QueueFull, WaitBudgetOver
from registry.exchange import NOTHING, Load, PoolEndpoints
from runtime_image.contract.link import NotStarted

REFUSING = frozenset({"gone", "failing"})
"""States in which `Pool.refusal` may give an error although a replica has room."""


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
        self._poison = PoisonList()
        self._endings = Endings(limits.retries, self._moves, self._poison)
        self._places = count(1)
        self.pools: dict[str, Pool] = {}
        self.links: dict[str, Link] = {}
        self._called: set[str] = set()
        self._has_manager = True

    # What clients do

    def submit(self, call: Call, now: float) -> list[Command]:
        """Send a call, put it into a queue, or raise the error with which it is refused.

        1. Its function's traffic moved while its body came: it follows, as the calls that wait did.
        2. The pool serves nobody: UnknownFunction, ShuttingDown or FunctionFailing.
        3. As many calls wait as this one's function allows: QueueFull.
        4. The bodies held take all the memory they may: QueueFull.
        5. Its body killed replicas before: Poison.
        6. No call waits and a replica has room: it is sent.
        7. No replica is connected, and a cold start takes longer than it may wait: WaitBudgetOver.
           The pool is woken all the same, and `call.was_held` says so.
        8. It waits. Where no replica is connected the pool is woken, and `call.was_held` says so.
        """
        pool = self._moves.readdress(call, self.pool(call.pool), now)  # 1
        error = pool.refusal(now)
        if error is not None:  # 2
            raise error
        waiting, held_bytes = len(pool.waiting), self.held_bytes
        if waiting >= call.queue_max:  # 3
            text = f"{waiting} requests wait already, at most {call.queue_max} may"
            raise QueueFull(text, retry_after_s=pool.retry_after_s(now))
        if held_bytes + len(call.body) > self._bytes_max:  # 4
            text = (
                f"the requests held have {held_bytes} bytes, at most {self._bytes_max} are allowed"
            )
            raise QueueFull(text, retry_after_s=pool.retry_after_s(now))
        refused_s = self._poison.seconds_left(call, now)
        if refused_s:  # 5
            raise Poison("this input killed the model before", retry_after_s=refused_s)
        self._called.add(pool.key)
        call.place = next(self._places)
        link = None if waiting else pool.roomiest()
        if link is not None:  # 6
            self._endings.held_bytes += len(call.body)
            return [link.send(call, now)]
        call.was_held = not pool.is_open
        budget_s = call.wait_until_s - call.arrived_s
        if call.was_held and pool.starts_too_late(budget_s, now):  # 7
            pool.want(now)
            text = (
                f"the function is started, which takes about {pool.cold_start.p50_s:.3g} s;"
                f" this request may wait {budget_s:.3g} s"
            )
            raise WaitBudgetOver(text, retry_after_s=pool.retry_after_s(now))
        self._endings.held_bytes += len(call.body)  # 8
        pool.waiting.append(call)
        if call.was_held:
            pool.watch(now)
        return []

    def send_now(self, call: Call, now: float) -> Send | None:
        """Case 6 of `submit`, by far the most frequent one; None, and nothing was done, where
        another case may apply."""
        key = call.pool
        pool = self.pools.get(key)
        if pool is None or pool.waiting or key in self._moves.ways or self._poison.until_s:
            return None
        held_bytes = self._endings.held_bytes + len(call.body)
        if pool.shown.state in REFUSING or not call.queue_max or held_bytes > self._bytes_max:
            return None
        link = pool.roomiest()
        if link is None:
            return None
        self._endings.held_bytes = held_bytes
        self._called.add(key)
        call.place = next(self._places)
        return link.send(call, now)

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
            self.pools[key] = Pool(key, has_manager=self._has_manager)
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
            pool.answered_s.append(now)
        return wanted, self._fill(pool, now) if pool.waiting else []

    def not_started(self, link_id: str, id: int, reason: int, now: float) -> list[Command]:
        """The replica handed a request back unrun. Raises KeyError for an id it does not have."""
        link = self.links[link_id]
        if id in link.pardoned:
            link.pardoned.discard(id)
            return []
        call = link.in_flight.pop(id)
        commands: list[Command] = []
        pool = self.pools[link.pool]
        self._endings.hand_back(call, link, pool, reason, now, commands)
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
            self._endings.hand_back(call, link, pool, NotStarted.DRAINING, now, commands)
        return commands + self._fill(pool, now)

    def window(self, link_id: str, now: float) -> list[Command]:
        """The replica has room again."""
        link = self.links[link_id]
        link.full = False
        return self._fill(self.pools[link.pool], now)

    # What time does

    def sweep(self, now: float) -> list[Command]:
        """Answer every call whose time is over, forget pools at rest; about ten times a second."""
        self._poison.sweep(now)
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
            commands.append(link.send(pool.waiting.pop(), now))
        return commands

    def _forget_if_gone(self, pool: Pool) -> None:
        if pool.shown.state == "gone" and not pool.links and not pool.waiting:
            del self.pools[pool.key]
