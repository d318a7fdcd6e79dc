"""How long the next cold start of a revision takes, from its own past or from its neighbours'."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from admin.estimates.sketch import Sketch
from registry.exchange import Expected
from registry.model import ColdStart, pool_key
from runtime_image.contract.control import PHASES

POOLS_MAX = 10_000
"""Revisions remembered; a removed one is not told of, so the oldest make room."""
UNHURRIED_MS = {True: 20.0, False: 400.0}
"""What a cold start takes beside loading, with a standby or without, before this host has shown
any."""
OWN_PHASES = ("load", "evict")
"""Phases of which other models say nothing."""


class Prior(NamedTuple):
    """What is known of a revision before its first cold start: the device kind its next replica
    most likely goes to, and how long its trial took to load, 0 where it had none."""

    device_kind: str = "cpu"
    load_ms: float = 0.0


class Way(NamedTuple):
    """How a cold start went: on what kind of device, and whether a standby was there for it."""

    device_kind: str
    by_standby: bool


@dataclass(slots=True)
class Durations:
    """Of the cold starts that went one way: in all, and of each phase."""

    total: Sketch = field(default_factory=Sketch)
    phases: dict[str, Sketch] = field(default_factory=dict)

    def add(self, total_ms: float, phases: dict[str, float]) -> None:
        """One more. Phases that are none of ours do not count."""
        self.total.add(total_ms)
        for phase in PHASES:
            if phase in phases:
                self.phases.setdefault(phase, Sketch()).add(phases[phase])

    def phase_ms(self, phase: str, share: float) -> float:
        """A quantile of one phase, 0 where there was none."""
        sketch = self.phases.get(phase)
        return sketch.quantile_ms(share) if sketch is not None else 0.0


class ColdStarts:
    """The past of every revision, and of this host as a whole."""

    def __init__(self) -> None:
        self._pools: dict[str, dict[Way, Durations]] = {}
        self._last_kind: dict[str, str] = {}
        self._host: dict[Way, Durations] = {}

    def add(self, record: ColdStart) -> None:
        """Take a cold start that ended; one that failed says nothing about those that do not."""
        if record.outcome != "ready":
            return
        key = pool_key(record.namespace, record.name, record.number)
        if key not in self._pools and len(self._pools) >= POOLS_MAX:
            oldest = next(iter(self._pools))
            del self._pools[oldest], self._last_kind[oldest]
        way = Way(record.device_kind, "start" not in record.phases)
        # What a replica says of its own phases may be a lie, and is to mislead nobody else.
        phases = {phase: min(ms, record.total_ms) for phase, ms in record.phases.items()}
        for ways in (self._pools.setdefault(key, {}), self._host):
            ways.setdefault(way, Durations()).add(record.total_ms, phases)
        self._last_kind[key] = record.device_kind

    def expected(self, key: str, prior: Prior) -> Expected:
        """What the next cold start takes, whether or not a standby will be there: 10 % take no
        longer than `p10_s` even the shorter way."""
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
        """What half of the cold starts that go this way take at most. Where none did yet: those
        that went the other way, with or without the start and the imports of a process."""
        ways = self._ways(key)
        if not ways:
            return self._guess_ms(prior, by_standby, 0.5)
        kind = self._last_kind[key]
        same = ways.get(Way(kind, by_standby))
        if same is not None:
            return same.total.quantile_ms(0.5)
        other = ways[Way(kind, not by_standby)]
        total_ms = other.total.quantile_ms(0.5)
        if by_standby:
            return max(0.0, total_ms - _start_ms(other))
        launched = self._host.get(Way(kind, False))
        return total_ms + (_start_ms(launched) if launched else UNHURRIED_MS[False])

    def table(self, key: str) -> list[dict[str, Any]]:
        """Medians and 90th percentiles of a revision, per way and phase; for `fnctl show`."""
        return [
            {
                "device_kind": way.device_kind,
                "standby": way.by_standby,
                "samples": durations.total.samples,
                "total": _pair(durations.total),
                "phases": {
                    phase: _pair(durations.phases[phase])
                    for phase in PHASES
                    if phase in durations.phases
                },
            }
            for way, durations in sorted(self._pools.get(key, {}).items())
        ]

    def _ways(self, key: str) -> dict[Way, Durations]:
        """Of the device kind that the revision was last started on."""
        kind = self._last_kind.get(key)
        return {way: d for way, d in self._pools.get(key, {}).items() if way.device_kind == kind}

    def _guess_ms(self, prior: Prior, by_standby: bool, share: float) -> float:
        """Loading as its trial did, all else as is usual here."""
        known = self._host.get(Way(prior.device_kind, by_standby))
        if known is None:
            return prior.load_ms + UNHURRIED_MS[by_standby]
        usual = (known.phase_ms(p, share) for p in known.phases if p not in OWN_PHASES)
        return prior.load_ms + sum(usual)


def _start_ms(durations: Durations) -> float:
    """What a standby saves."""
    return durations.phase_ms("start", 0.5) + durations.phase_ms("import", 0.5)


def _pair(sketch: Sketch) -> dict[str, float]:
    return {f"p{share}_ms": round(sketch.quantile_ms(share / 100), 3) for share in (50, 90)}
