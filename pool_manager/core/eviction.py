"""Eviction: frees a device for a pool by stopping the cheapest replicas, in fair turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf

from pool_manager.core.commands import Command, Note
from pool_manager.core.host import Host
from pool_manager.core.ledger import Claim, Need
from pool_manager.core.placement import Clearing, Guest, clear, find, why_not
from pool_manager.core.pool import Pool, cost
from pool_manager.core.replicas import ReplicaEvents
from pool_manager.core.state import Replica, State

RESIDENCY_S = 10.0
"""A replica that has just become ready may serve so long before it gives way."""
REFUSAL_S = 1.0
"""A replica that was asked to go and was busy is not asked again for so long."""
SURPLUS_DISCOUNT = 1e-3
"""Taking one of several replicas slows a pool; taking the only one stops it."""
SWAP_AFTER_S = 5.0
"""A waiter that nobody serves for so long may have a busy replica drained."""
TRIAL_SWAP_AFTER_S = 30.0
"""A deploy is in less of a hurry than a caller."""
JUST_USED_S = 0.001
"""An evicted replica refuses if it was used since: its gateways know more than the ledger."""

EVICTED, GAVE_WAY = "evicted", "gives way: drained"
"""How the reason of a release begins that made room: of an idle replica, and of a busy one."""


class Guests:
    """Who may go, worked out once per event, since many pools may ask; anew for pools whose
    replicas changed since."""

    def __init__(self, host: Host, of: Callable[[Pool, float], dict[str, Guest]]) -> None:
        self._host = host
        self._of = of
        self._known: dict[str, Guest] | None = None

    def forget(self) -> None:
        """Time went by or something happened: look again at everybody."""
        self._known = None

    def all(self, now: float) -> Mapping[str, Guest]:
        """Every replica that may go."""
        if self._known is None:
            self._known = {}
            keys = list(self._host.live)
        else:
            keys = sorted(self._host.changed & self._host.live.keys())
        for key in keys:
            pool = self._host.pools[key]
            for id in pool.replicas:
                self._known.pop(id, None)
            self._known |= self._of(pool, now)
        return self._known


class Guestbook:
    """The replicas that may go, by how hard one has to press. `look_again(at_s, now)` is called
    with the time from which another one may."""

    def __init__(self, host: Host, look_again: Callable[[float, float], None]) -> None:
        self._host = host
        self._look_again = look_again
        self.idle = Guests(host, self._idle_of)
        self.resident = Guests(host, self._resident_of)
        self.eventual = Guests(host, self._eventual_of)

    def forget(self) -> None:
        """Time went by or something happened: look again at who may go."""
        self.idle.forget()
        self.resident.forget()
        self.eventual.forget()

    def _idle_of(self, pool: Pool, now: float) -> dict[str, Guest]:
        """Idle replicas of a pool; its last one is worth what loading it again would cost."""
        if pool.spec.role != "serve":
            return self._standbys_of(pool)
        spare = pool.staying() - pool.spec.min
        if spare <= 0 or self._host.demand.is_busy(pool.key):
            return {}
        reload_s = pool.reload_s or pool.spec.load_s
        value = cost(pool.uses, reload_s, now)
        stay_s = min(RESIDENCY_S, reload_s)
        ready = []
        for one in pool.replicas.values():
            free_s = max(one.ready_s + stay_s, one.refused_s + REFUSAL_S)
            if one.state is State.READY and now >= free_s:
                ready.append(one)
            elif one.state is State.READY:
                self._look_again(free_s, now)
        last = ready[0] if ready and not pool.spec.min else None
        return {
            one.id: Guest(pool.key, value if one is last else value * SURPLUS_DISCOUNT, spare)
            for one in ready
        }

    def _resident_of(self, pool: Pool, now: float) -> dict[str, Guest]:
        """Idle or not, whoever has served longest past its residency is cheapest."""
        if pool.spec.role != "serve":
            return self._standbys_of(pool)
        spare = pool.staying() - pool.spec.min
        if spare <= 0:
            return {}
        discount = SURPLUS_DISCOUNT if pool.staying() > 1 else 1.0
        return {
            one.id: Guest(pool.key, discount / (now - one.ready_s), spare)
            for one in pool.replicas.values()
            if one.state is State.READY and now - one.ready_s >= RESIDENCY_S
        }

    def _eventual_of(self, pool: Pool, now: float) -> dict[str, Guest]:
        """Whoever will be past its residency some time; the sooner, the cheaper."""
        if pool.spec.role != "serve":
            return self._standbys_of(pool)
        spare = pool.staying() - pool.spec.min
        if spare <= 0:
            return {}
        served_s = {
            one.id: now - one.ready_s if one.state is State.READY else 0.0
            for one in pool.replicas.values()
            if one.is_coming or one.state is State.READY
        }
        return {id: Guest(pool.key, 1.0 / (1.0 + s), spare) for id, s in served_s.items()}

    def _standbys_of(self, pool: Pool) -> dict[str, Guest]:
        """A standby costs nothing. A trial is not to be had."""
        if pool.spec.role == "trial":
            return {}
        standbys = self._host.standbys(pool.key)
        return {one.id: Guest(pool.key, 0.0, len(standbys)) for one in standbys}


class Room:
    """Finds a device for a pool, or begins to clear one."""

    def __init__(self, host: Host, replicas: ReplicaEvents) -> None:
        self._host = host
        self._replicas = replicas
        self.due_s = inf
        self.guests = Guestbook(host, self.look_again)

    def look_again(self, at_s: float, now: float) -> None:
        """A pool waits for something that will be so at `at_s`; `due_s` is the next such time."""
        if self.due_s <= now or at_s < self.due_s:
            self.due_s = at_s

    def find(self, pool: Pool, now: float, commands: list[Command]) -> str | None:
        """A device to start a replica of `pool` on now. None: `pool.blocked` says why."""
        need = self._host.need(pool)
        crowd, is_full = self._crowd(pool)
        if not is_full:
            device = find(need, self._host.ledger, self._replaced())
            if device is not None:
                self.let_go(pool)
                return device
        if pool.claim is not None and self._is_clearing(pool.claim):
            return None
        self.let_go(pool)
        if is_full:
            self._thin_out(pool, need, crowd, now, commands)
        else:
            self._make_room(pool, need, now, commands)
        return None

    def drop_claim(self, pool: Pool) -> None:
        """The pool wants nothing any more: what was cleared for it is anybody's."""
        self.let_go(pool)
        self.unblock(pool)

    def let_go(self, pool: Pool) -> None:
        """What was cleared for the pool is anybody's."""
        self._host.unclaim(pool)

    def unblock(self, pool: Pool) -> None:
        """Nothing keeps the pool from starting."""
        pool.blocked = ""
        self._host.blocked.discard(pool.key)

    def block(self, pool: Pool, reason: str, commands: list[Command]) -> None:
        """The pool waits for room, or for something else, for this reason."""
        if pool.blocked != reason:
            commands.append(Note(pool.key, f"cannot start yet: {reason}"))
        pool.blocked = reason
        self._host.blocked.add(pool.key)

    def _is_clearing(self, claim: Claim) -> bool:
        """Whether victims are still on their way out. One that refused clears nothing, nor does
        one that cannot be got rid of."""
        victims = [self._host.find(id) for id in claim.victims]
        return any(one is not None and one.is_leaving for one in victims)

    def _replaced(self) -> tuple[str, ...]:
        """The standbys that a new replica would be made of, wherever it is put: their memory is
        there for it."""
        following = (self._host.next_standby(device) for device in self._host.standby_devices)
        return tuple(standby.id for standby in following if standby)

    def _crowd(self, pool: Pool) -> tuple[list[Replica], bool]:
        """Replicas of sibling revisions, and whether the function has as many as it may.

        A place that is being cleared for a sibling is taken, or who left it would be back first.
        What is being released serves nobody: were it counted, one that cannot be got rid of would
        bar all.
        """
        if pool.spec.role != "serve" or (self._is_beside(pool) and not pool.count()):
            return [], False
        claims = sum(other.claim is not None for other in self._host.siblings(pool))
        others = [
            one
            for other in self._host.siblings(pool)
            for one in other.replicas.values()
            if one.role == "serve" and one.state is not State.RELEASING
        ]
        is_full = len(others) + claims + pool.count() >= pool.spec.max
        return others, is_full and bool(others or claims)

    def _thin_out(
        self, pool: Pool, need: Need, crowd: list[Replica], now: float, commands: list[Command]
    ) -> None:
        """One of `crowd` has to go; if one is going already, nobody else is asked."""
        leaving = [one for one in crowd if one.state is State.DRAINING]
        if leaving:
            self.block(pool, f"waits for {leaving[0].id} of {leaving[0].pool} to go", commands)
            return
        guests = self._but_siblings(pool, self.guests.idle.all(now))
        if_idle_s: float | None = JUST_USED_S
        there = [one.id for one in crowd if one.id in guests]
        if not there and self._may_swap(pool, now):
            guests, if_idle_s = self._but_siblings(pool, self.guests.resident.all(now)), None
            there = [one.id for one in crowd if one.id in guests]
        if not there:
            text = f"max is {pool.spec.max}, other revisions have as many replicas"
            self.block(pool, text, commands)
            return
        victim = min(there, key=lambda id: (guests[id].cost, id))
        device = self._host.ledger.charged(victim).device
        is_fit = self._host.ledger.fits_kind(device, need)
        clearing = Clearing(device if is_fit else "", (victim,))
        self._begin(pool, need, clearing, if_idle_s, now, commands)

    def _make_room(self, pool: Pool, need: Need, now: float, commands: list[Command]) -> None:
        """Ask idle replicas to go; after a while have busy ones drained."""
        ledger, replaced = self._host.ledger, self._replaced()
        clearing = clear(
            need, ledger, self._but_siblings(pool, self.guests.idle.all(now)), replaced
        )
        if clearing is not None:
            self._begin(pool, need, clearing, JUST_USED_S, now, commands)
            return
        if self._may_swap(pool, now):
            guests = self._but_siblings(pool, self.guests.resident.all(now))
            clearing = clear(need, ledger, guests, replaced)
            if clearing is None:
                self._reserve(pool, need, now)
        if clearing is not None:
            self._begin(pool, need, clearing, None, now, commands)
            return
        self.block(pool, why_not(need, ledger), commands)

    def _reserve(self, pool: Pool, need: Need, now: float) -> None:
        """Who needs several to give way may never find all past their residency at once, if those
        who need but one take turns with each of them: the device is kept until all are."""
        guests = self._but_siblings(pool, self.guests.eventual.all(now))
        clearing = clear(need, self._host.ledger, guests, self._replaced())
        if clearing is not None:
            pool.claim = Claim(need, clearing.device, clearing.victims, now)
            self._host.ledger.claim(pool.claim)

    def _begin(
        self,
        pool: Pool,
        need: Need,
        clearing: Clearing,
        if_idle_s: float | None,
        now: float,
        commands: list[Command],
    ) -> None:
        """Reserve the device and ask its victims to go."""
        pool.claim = Claim(need, clearing.device, clearing.victims, now)
        self._host.ledger.claim(pool.claim)
        names = set()
        how = EVICTED if if_idle_s is not None else GAVE_WAY
        for id in clearing.victims:
            victim = self._host.find(id)
            assert victim is not None
            names.add(victim.pool)
            self._replicas.drain(victim, if_idle_s, f"{how} for {pool.key}", now, commands)
        where = f" on {clearing.device}" if clearing.device else ""
        text = f"waits for {' and '.join(sorted(names))} to make room{where}"
        self.block(pool, text, commands)

    def _may_swap(self, pool: Pool, now: float) -> bool:
        """Only a pool that nobody serves may stop another one, and only after a wait."""
        if pool.count() or pool.unserved_since_s is None:
            return False
        patience = TRIAL_SWAP_AFTER_S if pool.spec.role == "trial" else SWAP_AFTER_S
        return now - pool.unserved_since_s >= patience

    @staticmethod
    def _is_beside(pool: Pool) -> bool:
        return pool.warming is not None and pool.warming.beside

    def _but_siblings(self, pool: Pool, guests: Mapping[str, Guest]) -> Mapping[str, Guest]:
        """What is warmed beside its siblings never costs them a replica."""
        if not self._is_beside(pool):
            return guests
        kept = {other.key for other in self._host.siblings(pool)}
        return {id: guest for id, guest in guests.items() if guest.pool not in kept}
