"""Server history: recorded in the store, and aggregated to estimates of cold starts.

Durations are kept as quantile sketches. Their buckets grow by a constant factor, so every quantile
has a relative error of at most `ALPHA`, whatever the durations: the idea of DDSketch (Masson, Rim,
Lee: "DDSketch: a fast and fully-mergeable quantile sketch with relative-error guarantees", VLDB
2019). Each new duration reduces the weight of all earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, log
from typing import Final, NamedTuple

from admin.documents.functions import ColdStartTimes, Quantiles
from gateway.dispatch.pool import SAMPLES_ENOUGH
from pool_manager.subscribers import Subscribers
from registry.catalog import Catalog
from registry.exchange import Expected
from registry.model.devices import DeviceModel, Use
from registry.model.history import Arrivals, ColdStart, StateInterval
from registry.model.revisions import pool_key
from registry.store.history import History
from registry.usage import UsageRow
from runtime_image.contract.control import PHASES

ALPHA: Final = 0.05
"""Relative error of a quantile."""
GAMMA: Final = (1 + ALPHA) / (1 - ALPHA)
MIN_MS: Final = 0.01
MAX_MS: Final = 3_600_000.0
"""Shorter and longer durations are clamped to these limits."""
MEMORY: Final = 200
"""Number of later durations after which a duration has kept 1/e of its weight."""
WEIGHT_MIN: Final = 0.01
"""Buckets with less weight are dropped."""

_LOG_GAMMA: Final = log(GAMMA)
BUCKETS_MAX: Final = ceil(log(MAX_MS) / _LOG_GAMMA) - ceil(log(MIN_MS) / _LOG_GAMMA) + 1

POOLS_MAX = 10_000
"""Max revisions with their own durations; the oldest are dropped, as removals are not reported."""
DEFAULT_OVERHEAD_MS = {True: 20.0, False: 400.0}
"""Milliseconds of a cold start besides loading, by a standby (True) or not, before this host has
had one."""
OWN_PHASES = ("fetch", "load", "evict")
"""Phases whose durations depend on the model."""
MINUTE_S = 60
EXPECTED_MAX = 10_000
"""Max cached estimates; others are computed on each call."""


@dataclass(slots=True)
class Sketch:
    """Weights by bucket: bucket i holds durations in (GAMMA**(i - 1), GAMMA**i] milliseconds.

    `samples` is how many durations were ever added.
    """

    samples: int = 0
    _weights: dict[int, float] = field(default_factory=dict)

    def add(self, ms: float) -> None:
        """Add a duration. Raises ValueError for NaN."""
        if ms != ms:
            raise ValueError("expected a duration in milliseconds, got nan")
        bucket = ceil(log(min(MAX_MS, max(MIN_MS, ms))) / _LOG_GAMMA)
        keep = 1 - 1 / MEMORY
        kept = {i: w * keep for i, w in self._weights.items() if w * keep >= WEIGHT_MIN}
        kept[bucket] = kept.get(bucket, 0.0) + 1.0
        self._weights = kept
        self.samples += 1

    def merged(self, other: Sketch) -> Sketch:
        """Return a sketch of both, each duration with its weight."""
        weights = dict(self._weights)
        for bucket, weight in other._weights.items():
            weights[bucket] = weights.get(bucket, 0.0) + weight
        return Sketch(self.samples + other.samples, weights)

    def quantile_ms(self, share: float) -> float:
        """Return the duration that `share` of the weight does not exceed; 0 without durations.

        Raises ValueError unless 0 <= share <= 1.
        """
        if not 0 <= share <= 1:
            raise ValueError(f"expected a share between 0 and 1, got {share}")
        if not self._weights:
            return 0.0
        wanted, seen = share * sum(self._weights.values()), 0.0
        for bucket in sorted(self._weights):
            seen += self._weights[bucket]
            if seen >= wanted:
                break
        return 2 * GAMMA**bucket / (GAMMA + 1)

    @property
    def buckets(self) -> int:
        """Number of buckets with any weight."""
        return len(self._weights)


class Prior(NamedTuple):
    """Knowledge of a revision before its first cold start: the likely device kind of its next
    replica, and how long its trial took to load (0 without a trial)."""

    device_kind: str = "cpu"
    load_ms: float = 0.0


class StartKind(NamedTuple):
    """Kind of a cold start: kind of device, and whether a standby served it."""

    device_kind: str
    by_standby: bool


@dataclass(slots=True)
class Durations:
    """Durations of the cold starts of one kind: total, and per phase."""

    total: Sketch = field(default_factory=Sketch)
    phases: dict[str, Sketch] = field(default_factory=dict)

    def add(self, total_ms: float, phases: dict[str, float]) -> None:
        """Add a cold start. Unknown phases are ignored."""
        self.total.add(total_ms)
        for phase in PHASES:
            if phase in phases:
                self.phases.setdefault(phase, Sketch()).add(phases[phase])

    def phase_ms(self, phase: str, share: float) -> float:
        """Return a quantile of one phase; 0 if the phase never occurred."""
        sketch = self.phases.get(phase)
        return sketch.quantile_ms(share) if sketch is not None else 0.0


class ColdStarts:
    """Durations of the cold starts of every revision, and of the host as a whole."""

    def __init__(self) -> None:
        self._pools: dict[str, dict[StartKind, Durations]] = {}
        self._last_kind: dict[str, str] = {}
        self._host: dict[StartKind, Durations] = {}

    def add(self, record: ColdStart) -> None:
        """Add a finished cold start. Failed ones are ignored: they predict no successful ones."""
        if record.outcome != "ready":
            return
        key = pool_key(record.namespace, record.name, record.number)
        if key not in self._pools and len(self._pools) >= POOLS_MAX:
            oldest = next(iter(self._pools))
            del self._pools[oldest], self._last_kind[oldest]
        way = StartKind(record.device_kind, "start" not in record.phases)
        # A replica may report false phases; clamp them, as they also enter the host's durations.
        phases = {phase: min(ms, record.total_ms) for phase, ms in record.phases.items()}
        for ways in (self._pools.setdefault(key, {}), self._host):
            ways.setdefault(way, Durations()).add(record.total_ms, phases)
        self._last_kind[key] = record.device_kind

    def expected(self, key: str, prior: Prior) -> Expected:
        """Return the expected duration of the next cold start, with or without a standby: 10 % are
        no longer than `p10_s` even by the faster of the two ways."""
        ways = self._ways(key)
        if not ways:
            by_standby, anew = (self._guess_ms(prior, way, 0.5) for way in (True, False))
            late_ms = self._guess_ms(prior, False, 0.9)
            return Expected(by_standby / 1e3, anew / 1e3, max(anew, late_ms) / 1e3, 0)
        total = Sketch()
        for durations in ways.values():
            total = total.merged(durations.total)
        p10_ms = min(one.total.quantile_ms(0.1) for one in ways.values())
        p50_s, p90_s = (total.quantile_ms(share) / 1e3 for share in (0.5, 0.9))
        return Expected(p10_ms / 1e3, p50_s, p90_s, total.samples)

    def median_ms(self, key: str, prior: Prior, *, by_standby: bool) -> float:
        """Return the median of the cold starts by this way. If there were none, derive it from the
        other way: subtract or add the start and the imports of a process."""
        ways = self._ways(key)
        if not ways:
            return self._guess_ms(prior, by_standby, 0.5)
        kind = self._last_kind[key]
        same = ways.get(StartKind(kind, by_standby))
        if same is not None:
            return same.total.quantile_ms(0.5)
        other = ways[StartKind(kind, not by_standby)]
        total_ms = other.total.quantile_ms(0.5)
        if by_standby:
            return max(0.0, total_ms - _start_ms(other))
        launched = self._host.get(StartKind(kind, False))
        return total_ms + (_start_ms(launched) if launched else DEFAULT_OVERHEAD_MS[False])

    def table(self, key: str) -> list[ColdStartTimes]:
        """Return median and 90th percentile per way and phase of a revision, for `fnctl show`."""
        return [
            ColdStartTimes(
                device_kind=way.device_kind,
                standby=way.by_standby,
                samples=durations.total.samples,
                total=_pair(durations.total),
                phases={
                    phase: _pair(durations.phases[phase])
                    for phase in PHASES
                    if phase in durations.phases
                },
            )
            for way, durations in sorted(self._pools.get(key, {}).items())
        ]

    def _ways(self, key: str) -> dict[StartKind, Durations]:
        """Return the durations on the device kind that the revision was last started on."""
        kind = self._last_kind.get(key)
        return {way: d for way, d in self._pools.get(key, {}).items() if way.device_kind == kind}

    def _guess_ms(self, prior: Prior, by_standby: bool, share: float) -> float:
        """Estimate: loading as in the trial, all other phases as usual on this host."""
        known = self._host.get(StartKind(prior.device_kind, by_standby))
        if known is None:
            return prior.load_ms + DEFAULT_OVERHEAD_MS[by_standby]
        usual = (known.phase_ms(p, share) for p in known.phases if p not in OWN_PHASES)
        return prior.load_ms + sum(usual)


def _start_ms(durations: Durations) -> float:
    """Return the milliseconds that a standby saves: process start and imports."""
    return durations.phase_ms("start", 0.5) + durations.phase_ms("import", 0.5)


def _pair(sketch: Sketch) -> Quantiles:
    return Quantiles(*(round(sketch.quantile_ms(share), 3) for share in (0.5, 0.9)))


class ServerHistory:
    """The manager's `Recorder` and the gateway's `CallHistory`, over the store's `History`. `wall`
    returns Unix seconds, `prior` the knowledge of a pool without cold starts. `used` adds usage of
    models.

    No method blocks: records go to the history's buffer, estimates are kept in memory.
    """

    def __init__(
        self,
        history: History,
        wall: Callable[[], float],
        prior: Callable[[str], Prior],
        used: Callable[[UsageRow], None],
    ) -> None:
        self._history = history
        self._used = used
        self._wall = wall
        self._prior = prior
        self._cold_starts = ColdStarts()
        self._expected: dict[str, Expected] = {}
        self._minute_s = 0
        self._arrivals: dict[tuple[str, str], int] = {}
        self._receivers = Subscribers[[ColdStart]]()

    def subscribe(self, receiver: Callable[[ColdStart], None]) -> Callable[[], None]:
        """Call `receiver` after each cold start, when its pool's estimate is updated, until the
        returned function is called."""
        return self._receivers.subscribe(receiver)

    async def load(self) -> None:
        """Read the cold starts of earlier runs."""
        for record in await self._history.last_cold_starts():
            self._cold_starts.add(record)

    def cold_start(self, record: ColdStart) -> None:
        """Record a cold start, and update the estimate of its pool."""
        self._history.record(record)
        self._cold_starts.add(record)
        key = pool_key(record.namespace, record.name, record.number)
        self._expected.pop(key, None)
        self._receivers.notify(record)

    def state_interval(self, record: StateInterval) -> None:
        """Record how long a pool was in a state."""
        self._history.record(record)

    def use(self, record: Use) -> None:
        """Record the device-seconds and joules of replicas."""
        self._history.record(record)

    def device_model(self, record: DeviceModel) -> None:
        """Record what a device is."""
        self._history.record(record)

    def expected(self, pool: str) -> Expected:
        """Return the expected duration of a revision's next cold start."""
        known = self._expected.get(pool)
        if known is None:
            known = self._cold_starts.expected(pool, self._prior(pool))
            if known.samples and len(self._expected) < EXPECTED_MAX:
                self._expected[pool] = known
        return known

    def ready_in_ms(
        self, pool: str, state: str, since_s: float, *, by_standby: bool
    ) -> float | None:
        """Return how long a call that arrived now would wait for a replica; 0 only if one is ready.

        None if unknown: for a failing pool, and for one with fewer than SAMPLES_ENOUGH cold starts
        of its own, as a trial alone is no basis.
        The pool is in `state` since `since_s` (Unix seconds); `by_standby`: a standby will wake it.
        """
        if state == "warm":
            return 0.0
        if state == "failing" or self.expected(pool).samples < SAMPLES_ENOUGH:
            return None
        whole_ms = self._cold_starts.median_ms(pool, self._prior(pool), by_standby=by_standby)
        gone_ms = (self._wall() - since_s) * 1e3 if state == "waking" else 0.0
        return max(1.0, whole_ms - max(0.0, gone_ms))

    def table(self, pool: str) -> list[ColdStartTimes]:
        """Return median and 90th percentile of a revision's cold starts, per phase."""
        return self._cold_starts.table(pool)

    def arrived(self, namespace: str, name: str, count: int = 1) -> None:
        """Count requests that arrived within about a second."""
        if not 0 <= self._wall() - self._minute_s < MINUTE_S:
            self._begin_minute()
        self._arrivals[namespace, name] = self._arrivals.get((namespace, name), 0) + count

    def used(self, row: UsageRow) -> None:
        """Add usage of models."""
        self._used(row)

    def _begin_minute(self) -> None:
        self.flush()
        self._minute_s = int(self._wall()) // MINUTE_S * MINUTE_S

    def flush(self) -> None:
        """Record the arrivals since the last call; parts of one minute add up in the store."""
        arrivals, self._arrivals = self._arrivals, {}
        for (namespace, name), count in arrivals.items():
            self._history.record(Arrivals(namespace, name, self._minute_s, count))


def prior_of(catalog: Catalog, pool: str) -> Prior:
    """Return what the deploy of a revision measured; the default for a removed revision."""
    namespace, _, ref = pool.partition("/")
    deployed = catalog.find(ref, namespace)
    if deployed is None:
        return Prior()
    if deployed.profile is not None:
        return Prior(deployed.profile.device_kind, deployed.profile.load_ms)
    kind = deployed.revision.device.kind
    return Prior("cpu" if kind == "any" else kind)
