"""The dispatcher: events of clients, manager and replicas in, commands for the shell out.

Invariants: a call is in one queue, in flight on one link, or done; a link never has more than its
limit in flight; no call is queued while a link of its pool has room. The order of decisions and
their reasons: design.md.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass
from itertools import count

from gateway.dispatch.call import Call, Command, Link, ServerLink, Stage
from gateway.dispatch.exchanges import Exchanges
from gateway.dispatch.failures import CallFailures, PoisonList
from gateway.dispatch.held import HeldBytes
from gateway.dispatch.pool import LARGE_ANSWER, UNKNOWN, Pool
from gateway.dispatch.redirects import RerunPolicy, TrafficRedirects
from registry.errors import FnError, Poison, QueueFull, WaitBudgetOver
from registry.exchange import NOTHING, Load, PoolEndpoints
from runtime_image.contract.link import NotStarted

REFUSING = frozenset({"gone", "failing"})
"""States in which `Pool.refusal` may return an error although a replica has room."""
ANSWERS_PART = 2
"""Large answers take at most 1/N of the limit of held bytes, so that clients that do not take them
leave room for the calls of others."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one gateway process: bytes of held bodies and of unsent answers, reruns of a call
    that had started."""

    bytes_max: int = 256 * 2**20
    retries: int = 2


class Dispatcher:
    """Dispatcher of one gateway process. Methods return the commands that an event requires.

    `exchanges` handles the events of sidecars and of exchanges with functions' servers. `held`
    counts the bodies of all calls that have not ended, and what other owners add to it.
    """

    def __init__(self, limits: Limits) -> None:
        self.held = HeldBytes(limits.bytes_max)
        self._redirects = TrafficRedirects(self.pool)
        self._poison = PoisonList()
        self._failures = CallFailures(limits.retries, self._redirects, self._poison, self.held)
        self._positions = count(1)
        self.pools: dict[str, Pool] = {}
        self.links: dict[str, Link] = {}
        self._called: set[str] = set()
        self._has_manager = True
        self.exchanges = Exchanges(self.links, self.pool, self._failures, self._serve)

    # Events of clients

    def submit(self, call: Call, now: float) -> list[Command]:
        """Send a call, queue it, or raise the error with which it is refused.

        1. The function's traffic moved while the body arrived: use the successor pool.
        2. The pool serves no calls: UnknownFunction, ShuttingDown or FunctionFailing.
        3. The queue is full: QueueFull.
        4. The held bytes would exceed `bytes_max`: QueueFull.
        5. The body killed replicas within REFUSED_S: Poison. Exchanges are not digested: most have
           no body, and one digest would stand for all of these.
        6. The queue is empty, a replica has room, and there is room for the answer: send the call.
           Exchanges that take no slot are sent although others are queued.
        7. No replica is connected, and a cold start would exceed the call's wait budget:
           WaitBudgetOver. The pool is woken nevertheless, and `call.was_held` is set.
        8. Queue the call. If no replica is connected, `call.was_held` is set and the pool is woken.
        """
        pool = self._redirects.redirect(call, self.pool(call.pool), now)  # 1
        waiting = pool.queue_size(call)
        error = self._refusal(call, pool, waiting, now)
        if error is not None:  # 2 to 5
            raise error
        self._called.add(pool.key)
        call.position = next(self._positions)
        link = self._link_for(call, pool, waiting, now)
        if link is not None:  # 6
            self.held.bytes += len(call.body)
            return [link.send(call, now)]
        call.was_held = not pool.is_connected
        budget_s = call.wait_until_s - call.arrived_s
        if call.was_held and pool.starts_too_late(budget_s, now):  # 7
            pool.wake(now)
            text = (
                f"the function is starting, which takes about {pool.cold_start.p50_s:.3g} s;"
                f" this request may wait {budget_s:.3g} s"
            )
            raise WaitBudgetOver(text, retry_after_s=pool.retry_after_s(now))
        self.held.bytes += len(call.body)  # 8
        pool.enqueue(call)
        if call.was_held:
            pool.update_waking(now)
        return []

    def _refusal(self, call: Call, pool: Pool, waiting: int, now: float) -> FnError | None:
        """Return the error of cases 2 to 5 of `submit`."""
        error = pool.refusal(now)
        if error is not None:  # 2
            return error
        if waiting >= call.queue_max:  # 3
            text = f"{waiting} requests are queued already, at most {call.queue_max} may wait"
            return QueueFull(text, retry_after_s=pool.retry_after_s(now))
        if self.held.bytes + len(call.body) > self.held.most:  # 4
            return QueueFull(self.held.over_text, retry_after_s=pool.retry_after_s(now))
        refused_s = self._poison.seconds_left(call, now) if call.may_poison else 0.0
        if refused_s:  # 5
            return Poison("this input killed the model before", retry_after_s=refused_s)
        return None

    def _link_for(self, call: Call, pool: Pool, waiting: int, now: float) -> Link | None:
        """Return the link of case 6 of `submit`."""
        if call.is_free:
            return pool.free_link(now)
        return None if waiting or not self._has_room(pool) else pool.least_loaded_link()

    def refuse_body(self, call: Call, now: float) -> None:
        """Refuse the body of an exchange that has killed replicas from now on."""
        self._poison.add(call, now)

    def send_now(self, call: Call, now: float) -> bool:
        """Fast path: case 6 of `submit`, the most frequent one, without the checks for the others.

        The call is to be sent as request `call.id` over `call.link`, without a command. Returns
        False, with nothing changed, if another case may apply.
        """
        key = call.pool
        pool = self.pools.get(key)
        if (
            pool is None
            or pool.queue.size
            or pool.answer_bytes
            or key in self._redirects.successors
            or self._poison.until_s
        ):
            return False
        held = self.held
        held_bytes = held.bytes + len(call.body)
        if pool.endpoints.state in REFUSING or not call.queue_max or held_bytes > held.most:
            return False
        link = pool.least_loaded_link()
        if link is None:
            return False
        held.bytes = held_bytes
        self._called.add(key)
        call.position = next(self._positions)
        link.put(call, now)
        return True

    def cancel(self, call: Call, now: float) -> list[Command]:
        """Remove the call of a disconnected client from its queue, or recall it."""
        commands: list[Command] = []
        pool = self.pools.get(call.pool)
        if pool is None:
            return commands
        self._failures.drop(call, pool, commands)
        return commands + self._serve(pool, now)

    # Events of the manager

    def pool(self, key: str) -> Pool:
        """Return the pool of a revision, created if unknown; `sweep` drops pools at rest."""
        if key not in self.pools:
            self.pools[key] = Pool(key, has_manager=self._has_manager)
        return self.pools[key]

    def on_endpoints(self, key: str, endpoints: PoolEndpoints, now: float) -> list[Command]:
        """Apply a pool's published state; failing and removed pools refuse queued calls. A paused
        replica gets no calls."""
        if key not in self.pools and endpoints == UNKNOWN:
            return []
        pool = self.pool(key)
        pool.endpoints = endpoints
        pool.retry_at_s = now + endpoints.retry_after_s
        commands = self._failures.refuse_queued(pool, now)
        if pool.update_limits():
            commands += self._serve(pool, now)
        pool.update_waking(now)
        if endpoints.state == "gone":
            self._redirects.forget(key)
        self._forget_if_gone(pool)
        return commands

    def on_manager_lost(self, now: float) -> list[Command]:
        """Handle the final loss of the manager: pools without a replica refuse all calls, and
        paused replicas get theirs."""
        self._has_manager = False
        commands: list[Command] = []
        for pool in self.pools.values():
            pool.has_manager = False
            if pool.update_limits():
                commands += self._serve(pool, now)
            commands += self._failures.refuse_queued(pool, now)
        return commands

    def on_traffic_moved(
        self, source: str, target: str, policy: RerunPolicy | None, now: float
    ) -> list[Command]:
        """Redirect a function's calls from one revision to another.

        Calls by plain name that have not started follow it under `policy`, now and when a replica
        returns them. `policy` None: their inputs may not fit the new revision, so they stay.
        """
        self._redirects.on_traffic_moved(source, target, policy)
        old = self.pool(source)
        self._redirects.redirect_queued(old, now)
        return self._serve(old, now)

    def successor(self, key: str) -> str:
        """Return the pool that now has the traffic of `key`; `key` itself if it has not moved."""
        return self._redirects.successor(key)

    # Events of replicas

    def on_link_up(self, link: Link, now: float) -> list[Command]:
        """Add the link of a replica that connected."""
        self.links[link.id] = link
        pool = self.pool(link.pool)
        pool.add_link(link)
        pool.update_limits()
        pool.update_waking(now)
        return self._serve(pool, now)

    def on_link_lost(self, link_id: str, now: float, *, is_broken: bool = False) -> list[Command]:
        """Requeue or fail each call in flight on a link that has ended.

        `is_broken`: not all frames that the replica has sent arrived, as when the connection to its
        host breaks. Otherwise the replica closed the link, or died.
        """
        link = self.links.pop(link_id, None)
        if link is None:
            return []
        pool = self.pool(link.pool)
        del pool.links[link_id]
        commands: list[Command] = []
        if isinstance(link, ServerLink):
            self.exchanges.on_link_lost(link, pool, now, commands)
        else:
            self._fail_over(reversed(list(link.in_flight.values())), pool, now, commands, is_broken)
        commands += self._serve(pool, now)
        self._forget_if_gone(pool)
        return commands

    def on_channel_lost(
        self, link_id: str, ids: Collection[int], now: float, *, is_broken: bool
    ) -> list[Command]:
        """Requeue or fail the requests `ids` of a link that has lost one of its channels.

        The link serves on by its other channel. A WINDOW that the replica owed on the lost channel
        will not arrive, so the link does not count as full any more.
        """
        link = self.links[link_id]
        link.full = False
        pool = self.pools[link.pool]
        commands: list[Command] = []
        lost = [call for id, call in link.in_flight.items() if id in ids]
        for call in lost:
            del link.in_flight[call.id]
        self._fail_over(reversed(lost), pool, now, commands, is_broken)
        return commands + self._serve(pool, now)

    def on_started(self, link_id: str, ids: list[int], now: float) -> None:
        """Mark requests as started, as reported by the replica."""
        link = self.links[link_id]
        for id in ids:
            call = link.in_flight.get(id)
            if call is not None and call.stage is Stage.SENT:
                call.stage = Stage.STARTED
                call.started_s = now

    def on_ended(
        self, link_id: str, id: int, now: float, size: int = 0
    ) -> tuple[Call | None, list[Command]]:
        """Finish request `id`; return its call, or None if the client has disconnected.

        `size`: bytes of its answer. `on_delivered` follows one of LARGE_ANSWER or more, and sends
        queued calls. Raises KeyError for an id that is not in flight.
        """
        link = self.links[link_id]
        call = link.in_flight.pop(id)
        pool = self.pools[link.pool]
        wanted = call if call.stage is not Stage.ABANDONED else None
        if wanted is not None:
            call.stage = Stage.DONE
            self.held.bytes -= len(call.body)
            pool.answered_s.append(now)
        if size >= LARGE_ANSWER or pool.answer_bytes:
            pool.note_answer(size)
        if not pool.queue.size or size >= LARGE_ANSWER:
            return wanted, []
        return wanted, self._serve(pool, now)

    def on_delivered(self, key: str, now: float) -> list[Command]:
        """Send queued calls of a pool: a large answer was passed on, and its bytes are held now."""
        pool = self.pools.get(key)
        return [] if pool is None or not pool.queue else self._serve(pool, now)

    def on_not_started(self, link_id: str, id: int, reason: int, now: float) -> list[Command]:
        """Handle the return of request `id` by a replica that has not run it.

        Raises KeyError for an id that is not in flight.
        """
        link = self.links[link_id]
        if id in link.settled:
            link.settled.discard(id)
            return []
        call = link.in_flight.pop(id)
        commands: list[Command] = []
        pool = self.pools[link.pool]
        self._failures.on_not_started(call, link, pool, reason, now, commands)
        return commands + self._serve(pool, now)

    def on_goaway(
        self, link_id: str, last_id: int, now: float, ids: Container[int] | None = None
    ) -> list[Command]:
        """Drain a link: requests sent after `last_id` were not accepted there and are requeued.

        `ids` are the requests of the channel on which the replica sent this; None for all.
        """
        link = self.links[link_id]
        link.closing = True
        pool = self.pools[link.pool]
        commands: list[Command] = []
        for call in reversed(link.sent_after(last_id)):
            if ids is not None and call.id not in ids:
                continue
            del link.in_flight[call.id]
            link.settled.add(call.id)
            self._failures.on_not_started(call, link, pool, NotStarted.DRAINING, now, commands)
        return commands + self._serve(pool, now)

    def on_window(self, link_id: str, now: float) -> list[Command]:
        """Resume sending to a replica that has room again."""
        link = self.links[link_id]
        link.full = False
        return self._serve(self.pools[link.pool], now)

    # Time and state

    def sweep(self, now: float) -> list[Command]:
        """Fail calls past their deadline and drop pools at rest; called ten times a second."""
        self._poison.sweep(now)
        self.pools = {key: pool for key, pool in self.pools.items() if not pool.is_at_rest}
        commands: list[Command] = []
        for pool in list(self.pools.values()):
            expired = self._failures.sweep(pool, now)
            commands += expired
            # An exchange leaves its link at once, and a waiting one has room. Clients may have
            # taken answers, so that there is room for others.
            if expired or pool.queue:
                commands += self._serve(pool, now)
            pool.update_waking(now)
        return commands + self.exchanges.sweep(now)

    def loads(self, now: float) -> dict[str, Load]:
        """Return the demand of every pool that has any."""
        loads = ((key, self.load(key, now)) for key in self.pools)
        return {key: load for key, load in loads if load.busy}

    def load(self, key: str, now: float) -> Load:
        """Return the demand of one pool."""
        pool = self.pools.get(key)
        return NOTHING if pool is None else pool.load(now)

    def take_called(self) -> list[str]:
        """Return the pools that were called since the last `take_called`."""
        called, self._called = self._called, set()
        return list(called)

    @property
    def is_idle(self) -> bool:
        """Whether no call is queued or in flight."""
        pools = self.pools.values()
        return not any(pool.held or pool.in_flight or pool.detached for pool in pools)

    # Internals

    def _fail_over(
        self, calls: Iterable[Call], pool: Pool, now: float, commands: list[Command], broken: bool
    ) -> None:
        """Requeue or fail calls of a lost link or channel, the newest first."""
        decide = self._failures.on_link_broken if broken else self._failures.on_replica_died
        for call in calls:
            decide(call, pool, now, commands)

    def _serve(self, pool: Pool, now: float) -> list[Command]:
        """Send queued calls of this pool, and those that may just have moved to its successor."""
        commands = self._send_queued(pool, now)
        successor = self._redirects.successor(pool.key)
        if successor != pool.key:
            commands += self._send_queued(self.pool(successor), now)
        return commands

    def _send_queued(self, pool: Pool, now: float) -> list[Command]:
        """Send queued calls while a replica has room, each to the least loaded one, and while there
        is room for their answers.

        Exchanges that take no slot have room of their own.
        """
        commands: list[Command] = []
        while pool.queue:
            link = pool.least_loaded_link()
            if link is None or not self._has_room(pool):
                break
            commands.append(link.send(pool.queue.pop(), now))
        while pool.free_queue:
            link = pool.free_link(now)
            if link is None:
                break
            call = next(iter(pool.free_queue))
            pool.dequeue(call)
            commands.append(link.send(call, now))
        return commands

    def _has_room(self, pool: Pool) -> bool:
        """Return whether there is room for one more answer of `pool`.

        1. Clients have left so many answers that the held bytes are over their limit: no.
        2. The pool's answers are small: yes.
        3. Its large answers fit beside those under way and those that clients have not taken, in
           1/ANSWERS_PART of the limit, so that such clients do not keep others out. One always fits
           where there is no other, whatever its size.
        """
        if self.held.bytes > self.held.most:  # 1
            return False
        if not pool.answer_bytes:  # 2
            return True
        large = (each for each in self.pools.values() if each.answer_bytes)  # 3
        others = self.held.unsent + sum(each.answer_bytes * each.in_flight for each in large)
        return not others or others + pool.answer_bytes <= self.held.most // ANSWERS_PART

    def _forget_if_gone(self, pool: Pool) -> None:
        if pool.endpoints.state == "gone" and not (pool.links or pool.held or pool.detached):
            del self.pools[pool.key]
