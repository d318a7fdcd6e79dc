"""Exchanges with functions' servers: events of sidecars and of the proxy in, commands out. Pure.

A sidecar grants connections to a server, as many as the server takes at once over all gateways. A
gateway requests one (OPEN) and tells when an exchange is over (END), which is not acknowledged. A
request beyond the limit is returned (FULL), and the link enters the sidecar's rotation: from then
on it requests a connection only for a slot that the sidecar offers, until it declines an offer.

Invariants: an exchange is in one queue, on one link, detached, or done; a detached one has lost its
link and belongs to the proxy. A link that waits in the rotation keeps no idle connections.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gateway.dispatch.call import (
    Call,
    CloseIdle,
    Command,
    Decline,
    End,
    Link,
    Quiesced,
    ServerLink,
    Stage,
    TellTunnel,
)
from gateway.dispatch.failures import CallFailures, refused_error
from gateway.dispatch.pool import Pool
from registry.errors import FnError, WaitBudgetOver
from runtime_image.contract.link import NotStarted

REFUSED_S: Final = 0.05
"""Seconds for which a link is not used after its server refused a connection. They end at a sweep,
so that a server that refuses all connections costs each link at most ten requests a second."""


UNUSABLE: Final = 0
"""Reason of a connection that this process could not open or take: the server refused nothing."""
REFUSED: Final = "accepted no connection (connection refused)"
"""What a call met whose connection was refused."""
HUNG_UP: Final = "closed each connection before the request was sent"
"""What a call met whose connections were accepted by the kernel, and not by the server."""
QUIET_MAX: Final = 1000
"""Max quiet WebSockets of a link that take no slot. Others count as open exchanges."""


class Exchanges:
    """Decisions about exchanges; part of one dispatcher, whose `links` and pools it works on.

    `pool` returns a pool by key. `serve` sends queued calls of a pool.
    """

    def __init__(
        self,
        links: dict[str, Link],
        pool: Callable[[str], Pool],
        failures: CallFailures,
        serve: Callable[[Pool, float], list[Command]],
    ) -> None:
        self._links = links
        self._pool = pool
        self._failures = failures
        self._serve = serve
        self._backing_off: set[ServerLink] = set()

    # Events of the proxy

    def on_ended(self, call: Call, now: float, *, kept: bool) -> list[Command]:
        """Finish an exchange that had a connection; `kept`: that connection may be used again.

        1. It has ended before: nothing to do.
        2. Its link was lost: nobody has to be told.
        3. No other link waits for its slot, and its own link stays in use: the connection is kept.
        4. Otherwise the slot is given back.
        """
        if call.stage is not Stage.STARTED:  # 1
            return []
        pool = self._pool(call.pool)
        call.stage = Stage.DONE
        self._failures.held.bytes -= len(call.body)
        pool.answered_s.append(now)
        if call in pool.detached:  # 2
            del pool.detached[call]
            return []
        link = self._link(call.link)
        link.release(call)
        is_kept = kept and not (call.is_free or link.full or link.closing or link.recalled)  # 3, 4
        if link.recalled and not call.is_free:
            link.recalled -= 1
        commands: list[Command] = [End(link.id, call.id, is_kept)]
        if pool.queue or pool.free_queue:
            commands += self._serve(pool, now)
        return commands

    def retry(self, call: Call, now: float, *, was_refused: bool = False) -> list[Command]:
        """Queue an exchange again whose connection is gone.

        `was_refused`: the connection had ended before the request was sent. The server's kernel
        accepted it, the server did not.

        1. It has ended before: nothing to do.
        2. `was_refused`: the send is not counted, the proxy bounds the tries. The link, if it still
           exists, is not used for REFUSED_S: the next connection would end like this one.
        3. Its wait budget is over: WaitBudgetOver, after a refusal UpstreamFailed.
        4. It is requeued at its old place, or fails with the error of its pool.
        """
        commands: list[Command] = []
        if call.stage is not Stage.STARTED:  # 1
            return commands
        pool = self._pool(call.pool)
        has_died = call in pool.detached
        if was_refused:  # 2
            call.sends -= 1
        call.refusal = HUNG_UP if was_refused else ""
        if has_died:
            del pool.detached[call]
        else:
            link = self._link(call.link)
            link.release(call)
            commands.append(End(link.id, call.id, kept=False))
            if was_refused:  # 2
                self._back_off(link, now)
        if now >= call.wait_until_s:  # 3
            text = f"the connection was lost {now - call.arrived_s:.1f} s after the request"
            error: FnError = WaitBudgetOver(text, retry_after_s=pool.retry_after_s(now))
            if was_refused:
                error = refused_error(call, f"{pool.endpoints.state}: {pool.endpoints.told}", now)
            self._failures.fail(call, error, commands)
        else:  # 4
            self._failures.requeue(call, pool, now, commands, has_died=has_died)
        return commands + self._serve(pool, now)

    def on_tunnel(self, call: Call, now: float, *, is_quiet: bool) -> list[Command]:
        """Note that an exchange is a WebSocket, which is quiet or in use.

        1. It has ended, or lost its link: nothing to do.
        2. It takes no slot in any case, or there are too many quiet ones: only the sidecar learns
           that the exchange has no limit of time.
        3. Its slot is free for others while it is quiet.
        """
        pool = self._pool(call.pool)
        if call.stage is not Stage.STARTED or call in pool.detached:  # 1
            return []
        link = self._link(call.link)
        was_quiet = call.id in link.quiet
        if call.is_free and not was_quiet:  # 2
            return [TellTunnel(link.id, call.id, is_quiet=False)]
        is_quiet = is_quiet and (was_quiet or len(link.quiet) < QUIET_MAX)
        if is_quiet is not was_quiet:  # 3
            link.set_quiet(call, is_quiet=is_quiet)
        commands: list[Command] = [TellTunnel(link.id, call.id, is_quiet=is_quiet)]
        if is_quiet and pool.queue:
            commands += self._serve(pool, now)
        return commands

    def is_stopping(self, call: Call) -> bool:
        """Return whether the replica of an opened exchange is to stop, or was when it ended."""
        detached = self._pool(call.pool).detached
        if call in detached:
            return detached[call]
        return call.stage is Stage.STARTED and self._link(call.link).closing

    # Events of sidecars

    def on_opened(self, link_id: str, id: int, now: float) -> Call | None:
        """Start exchange `id`, whose connection has arrived; None if it has ended meanwhile."""
        call = self._link(link_id).find(id)
        if call is None or call.stage is not Stage.SENT:
            return None
        self.start(call, now)
        return call

    def start(self, call: Call, now: float) -> None:
        """Start an exchange that was sent: it has a connection."""
        call.stage = Stage.STARTED
        call.started_s = now

    def on_not_started(self, link_id: str, id: int, reason: int, now: float) -> list[Command]:
        """Handle a request for a connection that was not granted.

        1. The exchange has ended meanwhile: nothing to do. If the link is in the rotation now, the
           next request is returned, or the next offer declined.
        2. All slots are taken: the link waits for offers, and gives its idle connections back.
           The send is not counted: other gateway processes take slots, too.
        3. The replica has its maximum of exchanges without a slot: no more for REFUSED_S.
        4. The server refuses connections, or this process has no room (UNUSABLE): the link is not
           used for REFUSED_S. The send is not counted: the wait budget bounds the requests.
        5. The replica drains: the link is not used any more.
        6. The exchange is queued again at its place.
        """
        link = self._link(link_id)
        call = link.find(id)
        if call is None or call.stage is not Stage.SENT:  # 1
            return []
        commands: list[Command] = []
        call.refusal = REFUSED if reason == NotStarted.REFUSED else ""
        if reason == NotStarted.DRAINING:  # 5
            link.closing = True
        else:
            call.sends -= 1
            if reason != NotStarted.FULL:  # 4
                self._back_off(link, now)
            elif call.is_free:  # 3
                self._back_off(link, now, free_only=True)
            else:  # 2
                link.is_waiting = link.full = True
                commands.append(CloseIdle(link_id))
        link.release(call)
        pool = self._pool(link.pool)
        self._failures.requeue(call, pool, now, commands, has_died=False)  # 6
        return commands + self._serve(pool, now)

    def on_window(self, link_id: str, offered: int, now: float) -> list[Command]:
        """Handle room at a sidecar.

        1. No slot is offered in particular: the link is neither full nor closing any more.
        2. A slot is offered, an exchange is queued, and the link may be used: send exactly one.
        3. Otherwise decline the slot, which takes the link out of the rotation. This includes links
           whose server refuses connections: slot after slot would be offered and refused.
        """
        link = self._link(link_id)
        pool = self._pool(link.pool)
        if not offered:  # 1
            link.is_waiting = link.closing = False
            link.recalled = 0
            link.full = link.retry_s > 0
            pool.update_waking(now)
            return self._serve(pool, now)
        is_usable = not (link.closing or link.retry_s or len(link.in_flight) >= link.limit)
        if pool.queue and is_usable:  # 2
            return [link.send(pool.queue.pop(), now)]
        link.is_waiting = False  # 3
        link.full = link.retry_s > 0
        return [Decline(link_id)]

    def on_recall_missed(self, link_id: str) -> None:
        """Give back a slot at the next end: the recalled connection had been reused before.

        Otherwise a link with a long queue would reuse its connections for ever, and other gateway
        processes would wait for ever.
        """
        link = self._link(link_id)
        link.recalled = min(link.recalled + 1, len(link.in_flight))

    def on_quiesce(self, link_id: str) -> list[Command]:
        """Stop using a link until WINDOW, and tell how many of its exchanges are not over."""
        link = self._link(link_id)
        link.closing = True
        return [CloseIdle(link_id), Quiesced(link_id, len(link.in_flight))]

    def on_link_lost(
        self, link: ServerLink, pool: Pool, now: float, commands: list[Command]
    ) -> None:
        """Requeue the exchanges of a lost link that had no connection; the others are detached.

        The proxy reads the end of their connections, and ends or retries them.
        """
        self._backing_off.discard(link)
        for call in [*reversed(link.in_flight.values()), *link.free.values()]:
            if call.stage is Stage.SENT:
                self._failures.requeue(call, pool, now, commands, has_died=True)
            else:
                pool.detached[call] = link.closing

    def sweep(self, now: float) -> list[Command]:
        """Use links again whose server refused connections REFUSED_S ago."""
        commands: list[Command] = []
        for link in list(self._backing_off):
            if link.retry_s and now >= link.retry_s:
                link.retry_s = 0.0
                link.full = link.is_waiting
            if now >= link.free_retry_s:
                link.free_retry_s = 0.0
            if not (link.retry_s or link.free_retry_s):
                self._backing_off.discard(link)
            commands += self._serve(self._pool(link.pool), now)
        return commands

    def _back_off(self, link: ServerLink, now: float, *, free_only: bool = False) -> None:
        link.free_retry_s = now + REFUSED_S
        if not free_only:
            link.retry_s = link.free_retry_s
            link.full = True
        self._backing_off.add(link)

    def _link(self, link_id: str) -> ServerLink:
        link = self._links[link_id]
        assert isinstance(link, ServerLink)
        return link
