"""Failure handling: calls whose replica dies or returns them, or whose deadline has passed."""

from __future__ import annotations

from collections import OrderedDict

from gateway.dispatch.call import (
    Attempt,
    Call,
    Command,
    End,
    Fail,
    GiveUp,
    Link,
    Recall,
    ServerLink,
    Stage,
)
from gateway.dispatch.held import HeldBytes
from gateway.dispatch.pool import Pool
from gateway.dispatch.redirects import TrafficRedirects
from registry.errors import (
    ExecutionTimeout,
    FnError,
    Poison,
    ReplicaDied,
    UpstreamFailed,
    WaitBudgetOver,
)
from runtime_image.contract.link import NotStarted

SENDS_MAX = 12
"""Max sends of one call, not counting those rejected by a full replica; more indicate a loop."""
TIMEOUT_GRACE_S = 5.0
"""Seconds beyond the timeout that the gateway waits: the replica itself ends a late run first."""
START_GRACE_S = 1.0
"""Seconds that a replica has to report the start of a call it was sent, also beyond the call's wait
budget: the report is on its way even where a budget of 0 s was enough."""
CONFIRM_S = 10.0
"""Seconds that a replica on another host has to confirm that a call has not run: more than the 8 s
after which a silent connection to a host counts as broken."""
REFUSED_S = 60.0
REFUSED_MAX = 1000


class PoisonList:
    """Digests of bodies that killed replicas: each is refused for REFUSED_S, at most REFUSED_MAX.

    `until_s`: when each digest expires, oldest first.
    """

    def __init__(self) -> None:
        self.until_s: OrderedDict[bytes, float] = OrderedDict()

    def add(self, call: Call, now: float) -> None:
        """Refuse the body of `call` from now on."""
        digest = call.digest()
        self.until_s[digest] = now + REFUSED_S
        self.until_s.move_to_end(digest)
        if len(self.until_s) > REFUSED_MAX:
            self.until_s.popitem(last=False)

    def seconds_left(self, call: Call, now: float) -> float:
        """Return how long the body of `call` is still refused; 0 if it is not."""
        if not self.until_s:
            return 0.0
        return max(0.0, self.until_s.get(call.digest(), 0.0) - now)

    def sweep(self, now: float) -> None:
        """Drop expired digests."""
        while self.until_s and next(iter(self.until_s.values())) <= now:
            self.until_s.popitem(last=False)


class CallFailures:
    """Fails calls or requeues them; each method appends to `commands`.

    `retries`: how often a call that had started may run again. `held` counts the bodies of all
    calls that have not ended.
    """

    def __init__(
        self, retries: int, redirects: TrafficRedirects, poison: PoisonList, held: HeldBytes
    ) -> None:
        self._retries = retries
        self._redirects = redirects
        self._poison = poison
        self.held = held

    def on_replica_died(self, call: Call, pool: Pool, now: float, commands: list[Command]) -> None:
        """Requeue or fail a call whose replica died, or whose link broke.

        1. The client has disconnected: nothing to do.
        2. It had started and may not run twice: ReplicaDied.
        3. It had started, and more than `retries` replicas died while running it: Poison. Its body
           is refused for REFUSED_S.
        4. It had started: it runs again, alone.
        5. It had not started: it is sent again. The send is counted, the death is not.
        """
        if call.stage is Stage.ABANDONED:  # 1
            return
        if call.stage is Stage.STARTED:
            call.deaths += 1
            if not call.may_rerun:  # 2
                text = "the replica died while it ran this request, which may not be run again"
                self.fail(call, ReplicaDied(text), commands)
                return
            if call.deaths > self._retries:  # 3
                self._poison.add(call, now)
                text = f"{call.deaths} replicas died while they ran this request"
                self.fail(call, Poison(text), commands)
                return
            call.run_alone(now)  # 4
        self.requeue(call, pool, now, commands, has_died=True)  # 4, 5

    def on_link_broken(self, call: Call, pool: Pool, now: float, commands: list[Command]) -> None:
        """Requeue or fail a call that was sent on a connection to another host, which broke.

        The request may have arrived, and its answer may be lost: every call that was sent counts as
        started.

        1. The client has disconnected: nothing to do.
        2. It may not run twice: ReplicaDied.
        3. It had started: it runs again, alone, as the replica may have died of it. Over TLS that
           cannot be told from a break. This is no death: it does not count towards poison.
        4. Else it is sent again, with the wait budget of a second start.
        """
        if call.stage is Stage.ABANDONED:  # 1
            return
        if not call.may_rerun:  # 2
            text = (
                "the connection to the replica's host broke; this request may have run,"
                " and may not be run again"
            )
            self.fail(call, ReplicaDied(text), commands)
            return
        if call.stage is Stage.STARTED:
            call.run_alone(now)  # 3
        else:
            call.extend_wait(now)  # 4
        self.requeue(call, pool, now, commands, has_died=True)

    def on_not_started(
        self, call: Call, link: Link, pool: Pool, reason: int, now: float, commands: list[Command]
    ) -> None:
        """Requeue or fail a call that its replica returned without an answer.

        1. The replica is full: nothing is sent to it until WINDOW. This send is not counted: other
           gateway processes fill replicas too, so it does not indicate a loop.
        2. The replica drains: nothing is sent to it any more.
        3. The batch timed out because of another request: this one must run alone.
        4. The client has disconnected: nothing to do.
        5. The replica had reported its start, and it may not run twice: ExecutionTimeout.
        6. Otherwise it is sent again.
        """
        if reason == NotStarted.FULL:  # 1
            link.full = True
            call.sends -= 1
        elif reason == NotStarted.DRAINING:  # 2
            link.closing = True
        else:  # 3
            call.run_alone(now)
        if call.stage is Stage.ABANDONED:  # 4
            return
        has_started = call.stage is Stage.STARTED and (link.marks_started or call.alone)
        if has_started and not call.may_rerun:  # 5
            text = "its batch was stopped after it had started, and it may not be run again"
            self.fail(call, ExecutionTimeout(text), commands)
            return
        self.requeue(call, pool, now, commands, has_died=False)  # 6

    def requeue(
        self, call: Call, pool: Pool, now: float, commands: list[Command], *, has_died: bool
    ) -> None:
        """Requeue a call, or fail it.

        1. The function's traffic has moved: use the pool of the revision that has it now.
        2. That pool refuses calls: its error.
        3. The call was sent SENDS_MAX times: ReplicaDied.
        4. Insert it at its old position.
        """
        attempt = Attempt(call.link, call.sent_s, now, has_died)
        # Sends rejected by a full replica are unbounded, so only the last attempts are kept.
        call.attempts = (*call.attempts[1 - SENDS_MAX :], attempt)
        pool = self._redirects.redirect(call, pool, now)  # 1
        error = pool.refusal(now)  # 2
        if error is None and call.sends >= SENDS_MAX:  # 3
            error = ReplicaDied(f"sent {call.sends} times without an answer")
        if error is not None:
            self.fail(call, error, commands)
            return
        call.stage = Stage.QUEUED  # 4
        pool.requeue(call)

    def sweep(self, pool: Pool, now: float) -> list[Command]:
        """Fail every call of a pool whose deadline has passed.

        1. No replica is left and none can be started: all queued calls are refused.
        2. A call is queued beyond its wait budget, or was sent, has not started beyond it, and was
           not sent within START_GRACE_S: WaitBudgetOver. On another host, a call that may not run
           twice is recalled first: the report of its start may be held up with the connection.
           Unless that is confirmed within CONFIRM_S: ReplicaDied.
        3. A call runs TIMEOUT_GRACE_S beyond its timeout: ExecutionTimeout. The replica has another
           TIMEOUT_GRACE_S to release it.
        4. A recalled call may be part of a run that continues for other calls: the replica has the
           time of one run to release it.
        5. The replica does not release it: the link is closed. Otherwise the call would occupy the
           link for good, and its pool would never be idle.

        The proxy times running exchanges, so 3 to 5 do not apply to them.
        """
        commands = [] if pool.has_manager else self.refuse_queued(pool, now)  # 1
        expired = [each for each in pool.queued() if now >= each.wait_until_s]  # 2
        self._expire(expired, pool, now, commands)
        for link in pool.links.values():
            if isinstance(link, ServerLink):
                sent = [*link.in_flight.values(), *link.free.values()]
                expired = [call for call in sent if _is_unstarted(call, now)]  # 2
                self._expire(expired, pool, now, commands)
                continue
            for call in link.in_flight.values():
                if _is_unstarted(call, now):  # 2
                    if link.host and not call.may_rerun:
                        self._expire_unconfirmed(call, link, pool, now, commands)
                    else:
                        self._expire([call], pool, now, commands)
                elif call.stage is Stage.STARTED and (
                    now >= call.started_s + call.timeout_s + TIMEOUT_GRACE_S  # 3
                ):
                    whose = f" of its replica on host {link.host}" if link.host else ""
                    text = f"no answer{whose} {TIMEOUT_GRACE_S:g} s after its timeout of"
                    self.drop(call, pool, commands)
                    call.overdue_s = now + TIMEOUT_GRACE_S
                    error = ExecutionTimeout(f"{text} {call.timeout_s:g} s")
                    commands.append(Fail(call, error))
                if call.stage is Stage.ABANDONED and not call.overdue_s:  # 4
                    call.overdue_s = now + call.timeout_s + TIMEOUT_GRACE_S
                elif call.stage is Stage.ABANDONED and now >= call.overdue_s and not link.given_up:
                    link.given_up = link.closing = True  # 5
                    commands.append(GiveUp(link.id, "the replica does not release a request"))
        return commands

    def refuse_queued(self, pool: Pool, now: float) -> list[Command]:
        """Fail every queued call of a pool that refuses calls."""
        commands: list[Command] = []
        error = pool.refusal(now)
        if error is not None:
            pool.wake_until_s = 0.0
            for call in pool.clear_queues():
                self.fail(call, error, commands)
        return commands

    def drop(self, call: Call, pool: Pool, commands: list[Command]) -> None:
        """Remove a call that was answered or whose client has disconnected; recall it if sent."""
        if call.stage is Stage.QUEUED:
            pool.dequeue(call)
            call.stage = Stage.DONE
        elif call.is_exchange and call.stage is not Stage.DONE:
            self._release(call, pool, commands)
        elif call.stage in (Stage.SENT, Stage.STARTED):
            call.stage = Stage.ABANDONED
            commands.append(Recall(call.link, call.id))
        else:
            return
        self.held.bytes -= len(call.body)

    def fail(self, call: Call, error: FnError, commands: list[Command]) -> None:
        """Fail a call that is neither queued nor in flight."""
        call.stage = Stage.DONE
        self.held.bytes -= len(call.body)
        commands.append(Fail(call, error))

    def _release(self, call: Call, pool: Pool, commands: list[Command]) -> None:
        """Remove an exchange from its link, if that has not ended; the sidecar does not answer."""
        call.stage = Stage.DONE
        if call in pool.detached:
            del pool.detached[call]
            return
        link = pool.links[call.link]
        assert isinstance(link, ServerLink)
        link.release(call)
        commands.append(End(link.id, call.id, kept=False))

    def _expire_unconfirmed(
        self, call: Call, link: Link, pool: Pool, now: float, commands: list[Command]
    ) -> None:
        """Recall a call whose start was not reported in time, or fail it CONFIRM_S later."""
        if not call.overdue_s:
            call.overdue_s = now + CONFIRM_S
            commands.append(Recall(link.id, call.id))
        elif now >= call.overdue_s:
            text = f"its replica on host {link.host} has not confirmed within {CONFIRM_S:g} s that"
            self.drop(call, pool, commands)
            call.overdue_s = now + call.timeout_s + TIMEOUT_GRACE_S
            error = ReplicaDied(f"{text} this request did not start; it may have run")
            commands.append(Fail(call, error))

    def _expire(self, calls: list[Call], pool: Pool, now: float, commands: list[Command]) -> None:
        """Fail calls that did not start within their wait budgets."""
        if not calls:
            return
        # The same for all of them, and takes time in proportion to the open exchanges.
        how = f"{pool.endpoints.state}: {pool.endpoints.told}{pool.open_text(now)}"
        kept_by = pool.endpoints.kept_by
        told = {"kept_by": [one.rpartition("/")[2] for one in kept_by]} if kept_by else None
        for call in calls:
            waited_s = now - call.arrived_s
            retry_s = pool.retry_after_s(now)
            self.drop(call, pool, commands)
            text = f"not started within {waited_s:.1f} s; the function is {how}"
            error: FnError = WaitBudgetOver(text, retry_after_s=retry_s, admin_detail=told)
            if call.refusal:
                error = refused_error(call, how, now)
            commands.append(Fail(call, error))


def refused_error(call: Call, how: str, now: float) -> FnError:
    """Return the error of a call whose server accepted no connection in its wait budget; `how` is
    the state of its function."""
    waited_s = now - call.arrived_s
    text = f"the function's server {call.refusal} within {waited_s:.1f} s; the function is {how}"
    return UpstreamFailed(text)


def cancelled_error(call: Call, now: float) -> FnError:
    """Return the error of a call that its replica has cancelled although its client waits.

    1. It was not recalled: ReplicaDied.
    2. It was recalled because its start was not reported in time, and it had not started:
       WaitBudgetOver.
    3. It had started meanwhile: ReplicaDied.
    """
    if not call.overdue_s:  # 1
        return ReplicaDied("the replica cancelled the request")
    if call.started_s == call.sent_s:  # 2
        return WaitBudgetOver(f"not started within {now - call.arrived_s:.1f} s", retry_after_s=1.0)
    text = "it started after its wait budget was over, and was stopped; it may have run in part"
    return ReplicaDied(text)  # 3


def _is_unstarted(call: Call, now: float) -> bool:
    """Return whether a call was sent and should have started by now."""
    latest_s = max(call.wait_until_s, call.sent_s + START_GRACE_S)
    return call.stage is Stage.SENT and now >= latest_s
