"""One pool: its replicas, its failures and back-off, the cost of evicting it, its forecast."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, inf, log
from typing import Final, NamedTuple

from pool_manager.core.health.liveness import Silences
from pool_manager.core.ledger import Reservation
from pool_manager.core.scaling import Scaler
from pool_manager.core.starts import TOLD_AFTER_S, Awaited, awaited
from pool_manager.core.state import Contact, ParkSpec, PoolSpec, Replica, State
from registry.exchange import PoolState

SMOOTHING = 0.15
"""Weight of the newest gap between two calls in the exponential moving average."""
GAP_MIN_S = 1.0
BURST_GAPS = 3.0
"""A burst counts as over after this many typical gaps without a call."""
UNKNOWN_RELOAD_S = 1.0
"""Load time assumed for a revision that has never been loaded."""
BACKOFF_MAX_S = 60.0
PAUSE_S = 1.0
"""Pause before the next start after a loss that is not the function's fault."""
FAILING_AFTER = 5
"""Failed loads in a row after which the revision counts as failing."""
OVERDUE_FACTOR: Final = 3.0
OVERDUE_MIN_S: Final = 20.0
JUST_USED_S = 0.001
"""An idle replica refuses to drain if it was used more recently: only it sees every gateway."""
NOBODY_CALLS = "no calls"
NO_SLOT = "kept until a CPU slot is free"
REFUSED_MAX: Final = 8
"""Refusals by a host after which further ones do not make it less wanted."""
ENDED_MAX = 8
"""Deaths kept per pool for publication. Gateways with calls in flight read them at once."""
PHASE_OF: Final = {
    State.VERIFYING: "verify",
    State.UNPARKING: "wake",
    State.LOADING: "load",
    State.STANDBY: "bind",
    State.STARTING: "start",
}
"""The cold-start phase shown for a replica in each state, but for one that fetches its files. Finer
phases are known only after the replica has reported them, when they are over."""

WRONG_MAX: Final = 2
WRONG_SPAN_S: Final = 86_400.0
"""Parks of a pool are off once WRONG_MAX of them went wrong within WRONG_SPAN_S."""


@dataclass(slots=True)
class CallRate:
    """Call rate of a pool, from the geometric mean of the gaps between its calls.

    Calls come in bursts, and one long silence says little about the gaps within the next burst. An
    arithmetic mean forgets the silence only after many calls, when that burst is already over.
    """

    last_s: float = -inf
    log_gap: float | None = None

    def record_call(self, now: float) -> None:
        """Record that the pool was called in the second that ends at `now` (monotonic seconds)."""
        gap_s, self.last_s = now - self.last_s, now
        if gap_s == inf:
            return
        newest = log(max(gap_s, GAP_MIN_S))
        known = newest if self.log_gap is None else self.log_gap
        self.log_gap = known + SMOOTHING * (newest - known)

    def per_second(self, now: float) -> float:
        """Return the expected calls per second: the typical rate while a burst may be on; after
        that, a rate that falls with the square of the silence."""
        silence_s = max(now - self.last_s, GAP_MIN_S)
        if self.log_gap is None:
            return 1.0 / silence_s
        usual_s = exp(self.log_gap)
        return min(1.0, BURST_GAPS * usual_s / silence_s) ** 2 / usual_s


def eviction_cost(call_rate: CallRate, reload_s: float, now: float) -> float:
    """Return the expected seconds of cold start per second without the replica: reload time x call
    rate.

    If no gaps are known, this is the order of LRU, weighted by the reload time.
    """
    return (reload_s or UNKNOWN_RELOAD_S) * call_rate.per_second(now)


@dataclass(slots=True)
class Warming:
    """A pending request for a ready replica. `failures` is the pool's failure count when it was
    made; `beside` as in WarmRequested."""

    beside: bool
    failures: int


@dataclass(slots=True)
class ParkRecord:
    """The parks of one pool that went wrong. Times are monotonic seconds."""

    wrong: list[float] = field(default_factory=list)
    """When the last ones did, at most WRONG_MAX."""
    off: str = ""
    """Why its replicas are not parked any more, "" if they are."""
    retry_s: float = inf
    """When a replica that waits for host memory is to be parked."""

    def add_wrong(self, reason: str, now: float) -> None:
        """Record that a sleep or a wake went wrong."""
        self.wrong = [*self.wrong, now][-WRONG_MAX:]
        if not self.off and len(self.wrong) == WRONG_MAX and now - self.wrong[0] <= WRONG_SPAN_S:
            self.off = f"{WRONG_MAX} went wrong within a day, the last one because {reason}"


@dataclass(slots=True)
class Pool:
    """The replicas of one revision, with failures, load and scaling state. Times are monotonic.

    `retry_at_s`: the next start may be tried from then on. `waiting_since_s`: arrival of the first
    call that waits now, from which its cold start counts. `unserved_since_s`: since when calls wait
    and no replica can serve them. `blocked`: why no replica can be started. `last_used_s`: when the
    pool last had calls. `quiet_until_s`: until then, time alone changes nothing. `refuted`: why a
    batch showed that requests must not be batched, "" if none did. `unloading`: why its replicas
    are to stop as soon as they are idle, until one is started, which calls in flight do not ask
    for; "" if they are not.
    """

    spec: PoolSpec
    removed: bool = False
    failures: int = 0
    retry_at_s: float = 0.0
    last_error: str = ""
    log_tail: tuple[str, ...] = ()
    waiting_since_s: float | None = None
    unserved_since_s: float | None = None
    last_used_s: float = float("-inf")
    warm_s: float = float("-inf")
    """When it was last known to have a replica that can serve."""
    was_warm: bool = False
    """Whether it had one when its load was last observed."""
    reservation: Reservation | None = None
    warming: Warming | None = None
    blocked: str = ""
    refused: dict[str, int] = field(default_factory=dict)
    """How often in a row the engine of each host has refused one of its replicas, since one had a
    place; at most REFUSED_MAX."""
    refusals: int = 0
    """The same of all hosts together, without a limit."""
    kept_by: tuple[str, ...] = ()
    """Functions whose `min` keeps the devices that the pool waits for."""
    refuted: str = ""
    unloading: str = ""
    wanted: int = 0
    wanted_reason: str = ""
    measured_mib: float = 0.0
    reload_s: float = 0.0
    quiet_until_s: float = 0.0
    scaler: Scaler = field(default_factory=Scaler)
    call_rate: CallRate = field(default_factory=CallRate)
    replicas: dict[str, Replica] = field(default_factory=dict)
    asked: tuple[str, ...] = ()
    """Replicas that were drained besides the reservation's victims, because these finish long
    exchanges first."""
    made_room: str = ""
    """Of a trial: that replicas of its function, which was being called, made room for it."""
    longest_load_s: float = 0.0
    """The longest load since the manager's start."""
    ended: dict[str, str] = field(default_factory=dict)
    """Cause of death by id, for the last replicas that died after they had served."""
    hung: dict[str, None] = field(default_factory=dict)
    """Those of them that were replaced because they did not answer."""
    silences: Silences = field(default_factory=Silences, compare=False)
    """Silences of its servers that ended well."""
    parks: ParkRecord = field(default_factory=ParkRecord)
    """The parks of its replicas that went wrong."""

    @property
    def key(self) -> str:
        """Key of the revision or trial."""
        return self.spec.key

    @property
    def function(self) -> str:
        """The function of the revision."""
        return self.spec.function or self.key

    @property
    def memory_mib(self) -> float:
        """Memory of one replica: the larger of the stored value and the one measured since."""
        return max(self.spec.memory_mib, self.measured_mib)

    @property
    def park(self) -> ParkSpec | None:
        """What is known of the parks of its replicas, None if they are not parked."""
        return self.spec.park if not self.parks.off else None

    @property
    def start_s(self) -> float:
        """Seconds of a start, as measured; 0 if unknown."""
        return self.reload_s or self.spec.load_s

    @property
    def return_s(self) -> float:
        """Seconds until it serves again after the end of its last replica: those of a wake where an
        idle one is parked, else those of a start."""
        park = self.park if self.spec.park is not None else None
        return self.start_s if park is None else min(park.return_s, self.start_s or inf)

    @property
    def keep_s(self) -> float:
        """Seconds without calls after which a replica is stopped."""
        return JUST_USED_S if self.unloading else self.spec.idle_s

    @property
    def overdue_s(self) -> float:
        """Seconds after which a load that nobody waits for any more may be given up for another
        pool: OVERDUE_FACTOR times the longest one that was measured, at least OVERDUE_MIN_S."""
        return max(OVERDUE_MIN_S, OVERDUE_FACTOR * max(self.longest_load_s, self.spec.load_s))

    @property
    def batches(self) -> bool:
        """Whether its replicas may batch requests."""
        return self.spec.batches and not self.refuted

    @property
    def is_exclusive(self) -> bool:
        """Whether a replica must not be doubled while it may still run: its calls may not run
        twice, or it is a server, which may have state."""
        spec = self.spec
        return spec.role == "serve" and (spec.is_server or not spec.may_rerun)

    def counts(self, replica: Replica) -> bool:
        """Whether a replica counts against `max` and the wanted number: it serves, is becoming
        ready, or returns from a revoked drain. One that may run on an unreachable host counts if
        the pool is exclusive."""
        if replica.contact is Contact.GONE:
            return False
        if replica.contact is Contact.UNREACHABLE and not self.is_exclusive:
            return False
        return replica.is_present or (replica.may_run and self.is_exclusive)

    def count(self) -> int:
        """Return the number of replicas that count."""
        return sum(self.counts(replica) for replica in self.replicas.values())

    def doubtful(self) -> Replica | None:
        """Return a replica that counts only because it may run, None if there is none: its host is
        unreachable, or it was given up there without a proof of its end."""
        for one in self.replicas.values():
            is_doubtful = one.contact is Contact.UNREACHABLE or one.may_run
            if is_doubtful and self.counts(one):
                return one
        return None

    def staying(self) -> int:
        """Return the number of replicas that are READY or becoming ready; draining ones are not
        counted, even if they may refuse, nor those on unreachable hosts."""
        return sum(
            (r.is_unready or r.state is State.READY)
            and r.contact not in (Contact.UNREACHABLE, Contact.GONE)
            for r in self.replicas.values()
        )

    def ready(self) -> int:
        """Return the number of replicas that can serve now."""
        return sum(replica.can_serve for replica in self.replicas.values())

    @property
    def is_making_room(self) -> bool:
        """Whether a replica finishes its open calls to make room for another pool."""
        return any(
            (one.is_quiesced and one.condemned is None) or one.is_yielding
            for one in self.replicas.values()
        )

    @property
    def has_paused(self) -> bool:
        """Whether a replica is paused."""
        return any(one.is_paused for one in self.replicas.values())

    @property
    def is_warm(self) -> bool:
        """Whether a replica can serve now."""
        return any(replica.can_serve for replica in self.replicas.values())

    def idle_s(self, replica: Replica, now: float) -> float:
        """Return the seconds since a replica was last used, as far as gateways have reported."""
        return now - max(self.last_used_s, replica.last_used_s)

    def record_call(self, now: float) -> None:
        """Record that the pool was called in the last second; the call may be over already."""
        self.call_rate.record_call(now)
        self.last_used_s = max(self.last_used_s, now)

    def observe_load(self, queued: int, in_flight: int, oldest_wait_s: float, now: float) -> None:
        """Record the load at `now`: updates the last use and since when calls wait."""
        is_busy = queued + in_flight > 0
        if is_busy:
            self.last_used_s = now
        is_warm = self.is_warm
        # A replica's end is observed in the same event: until then, a warm pool stayed warm.
        if is_warm or self.was_warm:
            self.warm_s = now
        self.was_warm = is_warm
        if not queued or is_warm:
            self.waiting_since_s = None
        elif self.waiting_since_s is None:
            # The wait in the queue of a busy replica is not part of a cold start.
            self.waiting_since_s = max(now - oldest_wait_s, self.warm_s)
        is_needed = queued or self.spec.role == "trial"
        if not is_needed or is_warm:
            self.unserved_since_s = None
        elif self.unserved_since_s is None:
            self.unserved_since_s = now

    def record_death(self, id: str, cause: str) -> None:
        """Keep the cause of death of a replica that had served; the oldest entry is dropped."""
        self.ended[id] = cause
        if len(self.ended) > ENDED_MAX:
            oldest = next(iter(self.ended))
            del self.ended[oldest]
            self.hung.pop(oldest, None)

    def record_failure(
        self, reason: str, log_tail: tuple[str, ...], now: float, *, is_lasting: bool = False
    ) -> None:
        """Count a failed start or load. The back-off is 1 s, doubled with every failure in a row,
        at most BACKOFF_MAX_S. One that is lasting counts as FAILING_AFTER of them at once."""
        self._forget_refusals()
        self.failures = max(self.failures + 1, FAILING_AFTER if is_lasting else 0)
        self.last_error = reason
        self.log_tail = log_tail
        # The exponent is bounded: a pool with `min` retries for ever, and 2.0**1024 overflows.
        self.retry_at_s = now + min(BACKOFF_MAX_S, 2.0 ** min(self.failures - 1, 10))

    def record_refusal(self, host: str, reason: str) -> None:
        """Count that the engine of a host has refused a replica, which is no failure."""
        self.refused[host] = min(REFUSED_MAX, self.refused.get(host, 0) + 1)
        self.refusals += 1
        self.last_error = reason

    def delay_retry(self, reason: str, now: float) -> None:
        """Delay the next start by PAUSE_S without counting a failure."""
        self._forget_refusals()
        self.last_error = reason
        self.retry_at_s = max(self.retry_at_s, now + PAUSE_S)

    def forget_failures(self) -> None:
        """Reset failures, refusals and back-off, after a load or when their cause was removed."""
        self._forget_refusals()
        self.failures = 0
        self.retry_at_s = 0.0
        self.last_error = ""
        self.log_tail = ()

    def _forget_refusals(self) -> None:
        """The last replica had a place."""
        self.refused.clear()
        self.refusals = 0

    def is_failing(self, now: float) -> bool:
        """Whether calls are refused at once until the next try."""
        return self.failures >= FAILING_AFTER and now < self.retry_at_s

    def awaited(self, now: float) -> Awaited | None:
        """Return how far a fetch of the pool is, what the engine of its host does for a start, what
        a starting server is waited for, or the room that a trial waits for; None if that is not to
        be told."""
        if self.spec.role == "trial" and self.blocked and self.unserved_since_s is not None:
            seconds = now - self.unserved_since_s
            told = Awaited("waiting for room", seconds, self.blocked)
            return told if seconds >= TOLD_AFTER_S else None
        coming = [one for one in self.replicas.values() if one.is_coming]
        return next(filter(None, (_awaited(one, now) for one in coming)), None)

    def describe(self, held: int, now: float) -> tuple[PoolState, str]:
        """Return state and reason as published to gateways, listed and shown on the dashboard."""
        if self.is_warm:
            trouble = next((r.trouble for r in self.replicas.values() if r.trouble), "")
            return "warm", f"not answering: {trouble}" if trouble else self.wanted_reason
        if self.is_failing(now):
            return "failing", self.last_error
        if any(one.is_coming or one.is_expected for one in self.replicas.values()):
            return "waking", str(self.awaited(now) or self.wanted_reason)
        if held and not self.removed and (self.wanted or not self.unloading):
            quiesced = next((r.why for r in self.replicas.values() if r.is_quiesced), "")
            return "waking", quiesced or self.blocked or self.last_error or self.wanted_reason
        if any(one.is_ready and one.is_paused for one in self.replicas.values()):
            return "warm", NO_SLOT
        if (park := self.spec.park) is not None and any(
            one.is_parked for one in self.replicas.values()
        ):
            return "parked", f"asleep in host memory, wakes in about {park.return_s:.1f} s"
        leaving = next((r.why for r in self.replicas.values() if r.is_reachable), None)
        if leaving is not None:
            return "draining", leaving
        away = {one.host: None for one in self.replicas.values()}
        if away:
            return "cold", f"{' and '.join(away)} cannot be reached"
        return "cold", self.last_error or NOBODY_CALLS


def _awaited(replica: Replica, now: float) -> Awaited | None:
    """Return what a replica that starts is waited for, None if that is not to be told."""
    if replica.fetching is not None:
        return replica.fetching.awaited
    if replica.engine_step is not None:
        return replica.engine_step.awaited(now)
    return awaited(replica.probing, now)


class PoolForecast(NamedTuple):
    """What is about to happen to a pool.

    `phase`: the cold-start phase of a pool with calls, else None. `sleeps_in_s`: seconds until its
    next replica has been idle for `idle_s`, None if no replica will be. `devices`: the devices of
    its replicas. `awaited`: as `Pool.awaited`. `eta_s`: seconds until a replica that sleeps or
    wakes serves, as its trial measured it, or one that fetches its files; None if none does, or no
    call waits.
    """

    phase: str | None
    sleeps_in_s: float | None
    devices: tuple[str, ...]
    awaited: Awaited | None = None
    eta_s: float | None = None


AT_REST: Final = PoolForecast(None, None, ())


def forecast(pool: Pool, busy: int, now: float) -> PoolForecast:
    """Return the forecast of a pool at `now`; `busy` is the number of requests held or in
    flight."""
    if not (pool.replicas or busy):
        return AT_REST
    devices = {device: None for one in pool.replicas.values() for device in one.devices}
    phase, sleeps_in_s = _phase(pool, busy), _sleeps_in_s(pool, busy, now)
    eta_s = _wake_eta_s(pool, busy, now) if pool.spec.park is not None else None
    if eta_s is None and busy:
        eta_s = _fetch_eta_s(pool)
    return PoolForecast(phase, sleeps_in_s, tuple(devices), pool.awaited(now), eta_s)


def _wake_eta_s(pool: Pool, busy: int, now: float) -> float | None:
    """Return the seconds until the replica that is furthest along a park serves calls that wait, if
    its devices are free; None if there is none."""
    park = pool.spec.park
    if park is None or not busy or pool.is_warm:
        return None
    left_s = {
        State.VERIFYING: (park.verify_s, 0.0),
        State.UNPARKING: (park.wake_s, park.verify_s),
        State.PARKED: (0.0, park.return_s),
        State.PROVING: (0.0, park.return_s),
        State.PARKING: (park.sleep_s, park.return_s),
    }
    for state, (lasts_s, then_s) in left_s.items():
        for one in pool.replicas.values():
            if one.state is state and not one.is_unknown:
                return max(0.0, lasts_s - (now - one.since_s)) + then_s
    return None


def _fetch_eta_s(pool: Pool) -> float | None:
    """Return the seconds until the first replica that fetches its files has loaded them, None if
    that cannot be told."""
    fetches = (one.fetching for one in pool.replicas.values() if one.is_coming)
    left_s = [one.left_s for one in fetches if one is not None and one.left_s is not None]
    return min(left_s) + pool.spec.load_s if left_s and not pool.is_warm else None


def _phase(pool: Pool, busy: int) -> str | None:
    if pool.is_warm or pool.removed:
        return None
    # The replica that is furthest along will serve first.
    for state in PHASE_OF:
        found = [one for one in pool.replicas.values() if one.state is state and one.is_coming]
        if found and all(one.fetching is not None for one in found):
            return "fetch"
        if found:
            return PHASE_OF[state]
    if not busy or pool.blocked == "":
        return None
    return "place"


def _sleeps_in_s(pool: Pool, busy: int, now: float) -> float | None:
    serving = [one for one in pool.replicas.values() if one.can_serve]
    if busy or len(serving) <= pool.spec.min:
        return None
    return max(0.0, pool.keep_s - max(pool.idle_s(one, now) for one in serving))
