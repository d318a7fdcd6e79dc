"""The dispatcher: takes calls, sends them to replicas, decides about every mishap.

Invariants: a call is in exactly one place (a waiting line, one link, done); a replica never has
more than its limit from here; nobody waits while a replica has room.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.dispatch import admission
from gateway.dispatch.call import Call, Command, Fail, Recall, Send, Stage
from gateway.dispatch.links import Link
from gateway.dispatch.poison import PoisonList
from gateway.dispatch.pool import UNKNOWN, Pool
from registry.errors import ExecutionTimeout, FnError, Poison, ReplicaDied, WaitBudgetOver
from registry.exchange import Load, PoolEndpoints
from runtime_image.contract.link import NotStarted

SENDS_MAX = 12
"""A call that was handed back unrun so often is given up: something loops."""
TIMEOUT_GRACE_S = 5.0
"""The replica itself ends a late run; this much later the gateway stops waiting for it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one gateway process."""

    bytes_max: int = 256 * 2**20
    retries: int = 2


class Dispatcher:
    """One per gateway process. Every method returns the commands its event leads to."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._poison = PoisonList()
        self.held_bytes = 0
        self.pools: dict[str, Pool] = {}
        self.links: dict[str, Link] = {}

    # What clients do

    def submit(self, call: Call, now: float) -> list[Command]:
        """Accept a call, or raise UnknownFunction, FunctionFailing, QueueFull or Poison."""
        pool = self.pool(call.pool)
        admission.check(call, pool, now, self.held_bytes, self._limits.bytes_max)
        left_s = self._poison.seconds_left(call.pool, call.body, now)
        if left_s:
            raise Poison("this input killed the model before", retry_after_s=left_s)
        self.held_bytes += len(call.body)
        call.was_held = not any(not link.closing for link in pool.links.values())
        pool.waiting.append(call)
        return self._fill(pool, now)

    def leave(self, call: Call, now: float) -> list[Command]:
        """The client is gone: its place is free at once, its work is recalled."""
        commands: list[Command] = []
        self._drop(call, commands)
        pool = self.pools.get(call.pool)
        return commands + self._fill(pool, now) if pool else commands

    # What the manager says

    def pool(self, key: str) -> Pool:
        """The view of a revision, made when first asked for and kept while anything goes on."""
        if key not in self.pools:
            self.pools[key] = Pool(key)
        return self.pools[key]

    def look(self, key: str, shown: PoolEndpoints, now: float) -> list[Command]:
        """A pool's state as published. Failing and gone pools answer their waiters at once."""
        if key not in self.pools and shown == UNKNOWN:
            return []
        pool = self.pool(key)
        pool.shown = shown
        pool.retry_at_s = now + shown.retry_after_s
        commands: list[Command] = []
        error = admission.refusal(pool, now)
        if error is not None:
            for call in pool.waiting.clear():
                self._fail(call, error, commands)
        self._forget_if_gone(pool)
        return commands

    # What replicas do

    def link_up(self, link: Link, now: float) -> list[Command]:
        """A replica can be sent to."""
        self.links[link.id] = link
        pool = self.pool(link.pool)
        pool.links[link.id] = link
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
            self._bereave(call, pool, now, commands)
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
            self.held_bytes -= len(call.body)
            pool.pace.answered(now)
        return wanted, self._fill(pool, now)

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
            call.alone = True
            call.wait_until_s = max(call.wait_until_s, now + call.timeout_s)
        commands: list[Command] = []
        self._hand_back(call, link, now, commands)
        return commands + self._fill(self.pools[link.pool], now)

    def goaway(self, link_id: str, last_id: int, now: float) -> list[Command]:
        """The replica takes nothing sent after `last_id`; that is sent elsewhere."""
        link = self.links[link_id]
        link.closing = True
        commands: list[Command] = []
        for call in reversed(link.sent_after(last_id)):
            del link.in_flight[call.id]
            link.pardoned.add(call.id)
            self._hand_back(call, link, now, commands)
        return commands + self._fill(self.pools[link.pool], now)

    def window(self, link_id: str, now: float) -> list[Command]:
        """The replica has room again."""
        link = self.links[link_id]
        link.full = False
        return self._fill(self.pools[link.pool], now)

    # What time does

    def sweep(self, now: float) -> list[Command]:
        """Answer every call whose time is over, forget pools at rest; about ten times a second."""
        commands: list[Command] = []
        self._poison.sweep(now)
        self.pools = {key: pool for key, pool in self.pools.items() if not pool.is_at_rest}
        for pool in self.pools.values():
            for call in [c for c in pool.waiting if now >= c.wait_until_s]:
                self._expire(call, pool, now, commands)
            for link in pool.links.values():
                for call in list(link.in_flight.values()):
                    self._sweep_sent(call, pool, now, commands)
        return commands

    def loads(self, now: float) -> dict[str, Load]:
        """What is held and in flight, for every pool with any."""
        loads: dict[str, Load] = {}
        for key, pool in self.pools.items():
            queued, in_flight = len(pool.waiting), pool.in_flight
            if queued or in_flight:
                oldest_s = max(0.0, now - pool.waiting.oldest_s()) if queued else 0.0
                loads[key] = Load(queued, in_flight, oldest_s)
        return loads

    @property
    def is_idle(self) -> bool:
        """Whether nothing is owed to any client."""
        return not any(pool.waiting or pool.in_flight for pool in self.pools.values())

    # Inside

    def _fill(self, pool: Pool, now: float) -> list[Command]:
        """Send waiting calls while a replica has room, to the one with the fewest in flight."""
        commands: list[Command] = []
        while pool.waiting:
            open_links = [link for link in pool.links.values() if link.has_room]
            if not open_links:
                break
            link = min(open_links, key=lambda link: len(link.in_flight))
            call = pool.waiting.pop()
            # A call that runs alone is marked when it starts even where others are not.
            marked = link.marks_started or call.alone
            call.stage = Stage.SENT if marked else Stage.STARTED
            call.link, call.id = link.id, link.next_id()
            call.sent_s = call.started_s = now
            call.sends += 1
            link.in_flight[call.id] = call
            commands.append(Send(link.id, call.id, call))
        return commands

    def _forget_if_gone(self, pool: Pool) -> None:
        if pool.shown.state == "gone" and not pool.links and not pool.waiting:
            del self.pools[pool.key]

    def _fail(self, call: Call, error: FnError, commands: list[Command]) -> None:
        call.stage = Stage.DONE
        self.held_bytes -= len(call.body)
        commands.append(Fail(call, error))

    def _drop(self, call: Call, commands: list[Command]) -> None:
        """Nobody waits for this call any more, wherever it is."""
        if call.stage is Stage.QUEUED:
            self.pools[call.pool].waiting.remove(call)
            call.stage = Stage.DONE
        elif call.stage in (Stage.SENT, Stage.STARTED):
            call.stage = Stage.ABANDONED
            commands.append(Recall(call.link, call.id))
        else:
            return
        self.held_bytes -= len(call.body)

    def _hand_back(self, call: Call, link: Link, now: float, commands: list[Command]) -> None:
        """The replica will not finish this call; what it said to have started counts as begun."""
        begun = call.stage is Stage.STARTED and (link.marks_started or call.alone)
        if begun and not call.may_rerun:
            text = "its batch was stopped after it had started, and it may not be run again"
            self._fail(call, ExecutionTimeout(text), commands)
        else:
            self._requeue(call, self.pools[link.pool], now, commands)

    def _requeue(self, call: Call, pool: Pool, now: float, commands: list[Command]) -> None:
        """Back to its place in the line, uncounted; where nobody may wait it is answered."""
        if call.stage is Stage.ABANDONED:
            return
        error = admission.refusal(pool, now)
        if error is None and call.sends >= SENDS_MAX:
            error = ReplicaDied(f"sent {call.sends} times, never run")
        if error is not None:
            self._fail(call, error, commands)
            return
        call.stage = Stage.QUEUED
        pool.waiting.put_back(call)

    def _bereave(self, call: Call, pool: Pool, now: float, commands: list[Command]) -> None:
        """The replica that had this call is gone."""
        if call.stage is not Stage.STARTED:
            self._requeue(call, pool, now, commands)
            return
        call.deaths += 1
        if not call.may_rerun:
            text = "the replica died while it ran this request, which may not be run again"
            self._fail(call, ReplicaDied(text), commands)
        elif call.deaths > self._limits.retries:
            self._poison.add(call.pool, call.body, now)
            text = f"{call.deaths} replicas died while they ran this request"
            self._fail(call, Poison(text), commands)
        else:
            call.alone = True
            call.wait_until_s = max(call.wait_until_s, now + call.timeout_s)
            self._requeue(call, pool, now, commands)

    def _expire(self, call: Call, pool: Pool, now: float, commands: list[Command]) -> None:
        waited_s = now - call.arrived_s
        retry_s = pool.pace.retry_after_s(len(pool.waiting), waited_s, now)
        self._drop(call, commands)
        how = f"{pool.shown.state}: {pool.shown.reason}"
        text = f"not started within {waited_s:.1f} s; the function is {how}"
        commands.append(Fail(call, WaitBudgetOver(text, retry_after_s=retry_s)))

    def _sweep_sent(self, call: Call, pool: Pool, now: float, commands: list[Command]) -> None:
        if call.stage is Stage.SENT and now >= call.wait_until_s:
            self._expire(call, pool, now, commands)
        elif call.stage is Stage.STARTED and now >= (
            call.started_s + call.timeout_s + TIMEOUT_GRACE_S
        ):
            text = f"no answer {TIMEOUT_GRACE_S:g} s after its timeout of {call.timeout_s:g} s"
            self._drop(call, commands)
            commands.append(Fail(call, ExecutionTimeout(text)))
