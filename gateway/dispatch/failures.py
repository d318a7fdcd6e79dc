"""What becomes of calls that a replica, their time or their client gave up."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b

from gateway.dispatch.call import Attempt, Call, Command, Fail, GiveUp, Link, Recall, Stage
from gateway.dispatch.pool import Pool, refusal
from gateway.dispatch.redirects import Moves
from registry.errors import ExecutionTimeout, FnError, Poison, ReplicaDied, WaitBudgetOver

SENDS_MAX = 12
"""A call that was handed back unrun so often is given up: something loops."""
TIMEOUT_GRACE_S = 5.0
"""The replica itself ends a late run; this much later the gateway stops waiting for it."""


class Endings:
    """Ends calls or puts them back in line, and counts the bytes of those that have not ended.

    `retries` is how often a call that had started may be run again.
    """

    def __init__(self, retries: int, moves: Moves) -> None:
        self._retries = retries
        self._moves = moves
        self.poison = PoisonList()
        self.held_bytes = 0

    def fail(self, call: Call, error: FnError, commands: list[Command]) -> None:
        """Answer a call that is nowhere any more."""
        call.stage = Stage.DONE
        self.held_bytes -= len(call.body)
        commands.append(Fail(call, error))

    def drop(self, call: Call, pool: Pool, commands: list[Command]) -> None:
        """Nobody waits for this call any more, wherever it is."""
        if call.stage is Stage.QUEUED:
            pool.waiting.remove(call)
            call.stage = Stage.DONE
        elif call.stage in (Stage.SENT, Stage.STARTED):
            call.stage = Stage.ABANDONED
            commands.append(Recall(call.link, call.id))
        else:
            return
        self.held_bytes -= len(call.body)

    def hand_back(
        self, call: Call, link: Link, pool: Pool, now: float, commands: list[Command]
    ) -> None:
        """The replica will not finish this call; what it said to have started counts as begun."""
        begun = call.stage is Stage.STARTED and (link.marks_started or call.alone)
        if begun and not call.may_rerun:
            text = "its batch was stopped after it had started, and it may not be run again"
            self.fail(call, ExecutionTimeout(text), commands)
        else:
            _came_back(call, now, has_died=False)
            self._requeue(call, pool, now, commands)

    def bereave(self, call: Call, pool: Pool, now: float, commands: list[Command]) -> None:
        """The replica that had this call is gone."""
        if call.stage is not Stage.STARTED:
            _came_back(call, now, has_died=True)
            self._requeue(call, pool, now, commands)
            return
        call.deaths += 1
        if not call.may_rerun:
            text = "the replica died while it ran this request, which may not be run again"
            self.fail(call, ReplicaDied(text), commands)
        elif call.deaths > self._retries:
            self.poison.add(call.pool, call.body, now)
            text = f"{call.deaths} replicas died while they ran this request"
            self.fail(call, Poison(text), commands)
        else:
            call.run_alone(now)
            _came_back(call, now, has_died=True)
            self._requeue(call, pool, now, commands)

    def refuse_waiting(self, pool: Pool, now: float) -> list[Command]:
        """Answer everything that waits for a pool where nothing may wait any more."""
        commands: list[Command] = []
        error = refusal(pool, now)
        if error is not None:
            pool.wanted_until_s = 0.0
            for call in pool.waiting.clear():
                self.fail(call, error, commands)
        return commands

    def sweep(self, pool: Pool, now: float) -> list[Command]:
        """End every call of a pool whose time is over, or that waits for nothing."""
        commands = [] if pool.has_manager else self.refuse_waiting(pool, now)
        for call in [c for c in pool.waiting if now >= c.wait_until_s]:
            self._expire(call, pool, now, commands)
        for link in pool.links.values():
            for call in list(link.in_flight.values()):
                self._sweep_sent(call, pool, now, commands)
                if call.stage is Stage.ABANDONED:
                    self._sweep_abandoned(call, link, now, commands)
        return commands

    def _requeue(self, call: Call, pool: Pool, now: float, commands: list[Command]) -> None:
        """Back to its place in the line, uncounted; where nobody may wait it is answered.

        If traffic has moved meanwhile, that is the line of the revision which has it now.
        """
        if call.stage is Stage.ABANDONED:
            return
        pool = self._moves.readdress(call, pool, now)
        error = refusal(pool, now)
        if error is None and call.sends >= SENDS_MAX:
            error = ReplicaDied(f"sent {call.sends} times, never run")
        if error is not None:
            self.fail(call, error, commands)
            return
        call.stage = Stage.QUEUED
        pool.waiting.put_back(call)

    def _expire(self, call: Call, pool: Pool, now: float, commands: list[Command]) -> None:
        waited_s = now - call.arrived_s
        retry_s = pool.retry_after_s(now)
        self.drop(call, pool, commands)
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
            self.drop(call, pool, commands)
            call.overdue_s = now + TIMEOUT_GRACE_S
            commands.append(Fail(call, ExecutionTimeout(text)))

    @staticmethod
    def _sweep_abandoned(call: Call, link: Link, now: float, commands: list[Command]) -> None:
        """A call keeps its place on the link until the replica lets go of it. One that never does
        would leave a link on which nothing is answered, and a pool that is never idle."""
        if not call.overdue_s:
            # It may be part of a run that goes on for others.
            call.overdue_s = now + call.timeout_s + TIMEOUT_GRACE_S
        elif now >= call.overdue_s and not link.given_up:
            link.given_up = link.closing = True
            commands.append(GiveUp(link.id, "the replica does not let go of a request"))


def _came_back(call: Call, now: float, *, has_died: bool) -> None:
    """Remember a time that was in vain. What is turned away for lack of room is sent again without
    being counted, so only the last are kept."""
    attempt = Attempt(call.link, call.sent_s, now, has_died)
    call.attempts = (*call.attempts[1 - SENDS_MAX :], attempt)


REFUSED_S = 60.0
KEPT_MAX = 1000


class PoisonList:
    """Digests of bodies per pool. Costs nothing while it is empty."""

    def __init__(self) -> None:
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until)

    def add(self, pool: str, body: bytes | bytearray | memoryview, now: float) -> None:
        """Refuse this body for a minute."""
        digest = _digest(pool, body)
        self._until[digest] = now + REFUSED_S
        self._until.move_to_end(digest)
        if len(self._until) > KEPT_MAX:
            self._until.popitem(last=False)

    def seconds_left(self, pool: str, body: bytes | bytearray | memoryview, now: float) -> float:
        """How long this body is still refused; 0 if it is not."""
        if not self._until:
            return 0.0
        return max(0.0, self._until.get(_digest(pool, body), 0.0) - now)

    def sweep(self, now: float) -> None:
        """Forget what is over."""
        while self._until and next(iter(self._until.values())) <= now:
            self._until.popitem(last=False)


def _digest(pool: str, body: bytes | bytearray | memoryview) -> bytes:
    return blake2b(
        body, digest_size=16, key=blake2b(pool.encode(), digest_size=16).digest()
    ).digest()
