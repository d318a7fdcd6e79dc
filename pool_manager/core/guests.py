"""Who may have to go for others, and what that would cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pool_manager.core.host import Host
from pool_manager.core.policy.placement import Guest
from pool_manager.core.policy.value import cost
from pool_manager.core.pool import Pool
from pool_manager.core.state import State

RESIDENCY_S = 10.0
"""A replica that has just become ready may serve so long before it gives way."""
REFUSAL_S = 1.0
"""A replica that was asked to go and was busy is not asked again for so long."""
SURPLUS_DISCOUNT = 1e-3
"""Taking one of several replicas slows a pool; taking the only one stops it."""


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
