"""Current state of functions, replicas, devices and hosts in the form that followers receive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeVar

import msgspec

from admin.documents.events import BeatEvent
from admin.documents.functions import BuildDetail, BuildRow, FailureRow, FunctionRow
from admin.events.log import Item
from admin.history import ServerHistory
from admin.rates import FunctionRates
from admin.views import (
    build_detail,
    build_row,
    device_row,
    first_shown,
    host_row,
    park_row,
    pool_state,
    replica_row,
    struct_of,
    whole,
)
from gateway.dispatch.pool import UNKNOWN
from gateway.metrics.samples import RateSample
from gateway.observing.errors import Failure
from gateway.openapi.answers import Readiness
from pool_manager.core.pool import PoolForecast
from pool_manager.manager import Manager
from pool_manager.parked import PoolParks
from registry.builds import Target
from registry.catalog import Catalog, Deployed
from registry.compilation import TargetState
from registry.errors import Poison, ReplicaDied, ReplicaHung
from registry.exchange import NOTHING, Load, PoolEndpoints
from registry.model.functions import NAMESPACE
from registry.model.history import Decision
from registry.model.revisions import Revision, pool_key

DEATHS: Final = frozenset({ReplicaDied.code, ReplicaHung.code, Poison.code})

JUMP_S: Final = 1.0
Row = TypeVar("Row", bound=FailureRow)
encode = msgspec.json.Encoder().encode


def pool_of(failure: Failure) -> str:
    """Return the key of the failed revision's pool."""
    number = failure.revision.rpartition("@")[2]
    return pool_key(failure.namespace, failure.function, int(number))


def failure_row(kind: type[Row], failure: Failure, decisions: Sequence[Decision]) -> Row:
    """Return an item of a function's errors, or an event about it. `decisions` are its pool's
    decisions, oldest first."""
    told = explained(failure, decisions)
    at_s = round(failure.at_s, 3)
    return struct_of(kind, msgspec.structs.replace(failure, at_s=at_s, detail=told))


def explained(failure: Failure, decisions: Sequence[Decision]) -> str:
    """Return the failure's detail; for a dead replica with the cause of its end, which only the
    pool manager learns, and later than the failure."""
    if failure.code in DEATHS and failure.replica:
        beginning = f"{failure.replica} ended: "
        for decision in reversed(decisions):
            if decision.text.startswith(beginning):
                is_told = decision.text.removeprefix(beginning) in failure.detail
                return failure.detail if is_told else f"{failure.detail}: {decision.text}"
    return failure.detail


class GatewayState(Protocol):
    """Load of all gateway processes, and the pool states as they see them."""

    async def refresh(self) -> None:
        """Return when the load is that of now; without it it may be a second old."""

    def loads(self) -> dict[str, Load]:
        """Return queued and in-flight requests of every pool that has any."""

    def states(self) -> dict[str, str]:
        """Return the state of every pool that is not at rest."""


class Builds(Protocol):
    """Builds of compiled models."""

    def states(self, deployed: Deployed) -> list[TargetState] | str:
        """Return the state of a revision for each type of device that may run it, or why it is not
        compiled."""

    def estimate_s(self, target: Target) -> float | None:
        """Return how long the build of a target will probably take, None if unknown."""


class FunctionRows:
    """Reader of functions' rows. `reserved_user` returns which reserved user id a revision's
    server may have. `clock` is the clock of `rates`, `wall` returns Unix seconds."""

    def __init__(  # noqa: PLR0913 - the collaborators of a row
        self,
        manager: Manager,
        gateways: GatewayState,
        history: ServerHistory,
        rates: FunctionRates,
        builds: Builds,
        reserved_user: Callable[[Revision], str],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._builds = builds
        self._reserved_user = reserved_user
        self.manager = manager
        self.gateways = gateways
        self._history = history
        self.rates = rates
        self.clock = clock
        self.wall = wall

    def row(self, deployed: Deployed, loads: Mapping[str, Load]) -> FunctionRow:
        """Return the row of one function; `loads` as returned by `gateways.loads`."""
        function, revision, key = deployed.function, deployed.revision, deployed.revision.key
        manager, load = self.manager, loads.get(key, NOTHING)
        shown, wanted, since_s = manager.pool(key) or (UNKNOWN, 0, 0.0)
        forecast, parks = manager.forecast(key), manager.parks(key)
        expected = self._history.expected(key)
        name, now, wall_s = (function.namespace, function.name), self.clock(), self.wall()
        rates = self.rates.answers.response_rate(name, now)
        first_bytes = self.rates.first_bytes.response_rate(name, now)
        sleeps_in_s = forecast.sleeps_in_s
        is_waking = shown.state == "waking"
        return FunctionRow(
            name=function.name,
            oip_name=function.oip_name,
            revision=revision.ref,
            engine=revision.engine,
            state=pool_state(shown),
            reason=shown.reason,
            phase=forecast.phase if is_waking else None,
            awaited=str(forecast.awaited) if is_waking and forecast.awaited else None,
            ready=len(shown.replicas),
            wanted=wanted,
            held=load.queued,
            in_flight=load.in_flight,
            rate=rates.rate,
            p50_ms=rates.p50_ms,
            p95_ms=rates.p95_ms,
            first_byte_p50_ms=first_bytes.p50_ms,
            first_byte_p95_ms=first_bytes.p95_ms,
            min=function.scaling.min,
            max=function.scaling.max,
            idle_s=function.scaling.idle_s,
            labels=function.labels,
            devices=list(forecast.devices),
            since_s=since_s,
            sleeps_at_s=None if sleeps_in_s is None else round(wall_s + sleeps_in_s, 1),
            cold_start_ms=round(expected.p50_s * 1e3, 1) if expected.samples else None,
            ready_in_ms=whole(self._ready_in_ms(key, shown, since_s, forecast, parks)),
            created_s=function.created_s,
            build=self._build_row(deployed),
            reserved_user=self._reserved_user(revision),
            golden=manager.golden.verdict(key)[0],
            trouble=manager.trouble(key),
            park=park_row(deployed, parks, wall_s - now),
        )

    def _ready_in_ms(
        self,
        key: str,
        shown: PoolEndpoints,
        since_s: float,
        forecast: PoolForecast,
        parks: PoolParks | None,
    ) -> float | None:
        """Return the milliseconds until a replica is ready: 0 if one is, None if unknown."""
        if forecast.eta_s is not None:
            return max(1.0, forecast.eta_s * 1e3)
        if shown.state == "parked" and parks is not None:
            return max(1.0, parks.wake_s * 1e3)
        by_standby = self.manager.wakes_by_standby(key)
        return self._history.ready_in_ms(key, shown.state, since_s, by_standby=by_standby)

    def _build_row(self, deployed: Deployed) -> BuildRow | None:
        found = self._builds.states(deployed)
        if isinstance(found, str):
            return build_row(found, None) if found else None
        one = first_shown(found)
        is_building = one.build.state == "building"
        return build_row(one, self._builds.estimate_s(one.target) if is_building else None)

    def builds(self, deployed: Deployed) -> tuple[BuildDetail | None, list[BuildDetail]]:
        """Return all about the build of a function, None for one that is not compiled, and a list
        with one for each type of device. The first is one of these that is not done, if any."""
        found = self._builds.states(deployed)
        if isinstance(found, str):
            return build_detail(found, None, self.wall()) if found else None, []
        rows = [
            build_detail(one, self._builds.estimate_s(one.target), self.wall()) for one in found
        ]
        return rows[found.index(first_shown(found))], rows


class StateReader:
    """Reader of functions, replicas, devices and hosts as items. `reasons` returns the
    degradations of `/readyz`."""

    def __init__(
        self,
        catalog: Catalog,
        rows: FunctionRows,
        reasons: Callable[[], list[str]],
    ) -> None:
        self._catalog = catalog
        self._rows = rows
        self._manager, self._clock, self._wall = rows.manager, rows.clock, rows.wall
        self._reasons = reasons
        self._boot_s = rows.wall() - rows.clock()

    def tick(self) -> None:
        """Notice a wall clock that was set. Call once per second."""
        boot_s = self._wall() - self._clock()
        # Keep one offset: with a fresh one each second, all times would seem to change.
        if abs(boot_s - self._boot_s) > JUMP_S:
            self._boot_s = boot_s

    def count_answers(self, several: Iterable[RateSample]) -> None:
        """Add requests that were answered within about the last second."""
        now = self._clock()
        for one in several:
            for rates, counts in zip(self._rows.rates, (one.counts, one.first_bytes), strict=True):
                if counts:
                    rates.add((one.namespace, one.name), counts, now)

    def busy_functions(self) -> set[str]:
        """Return the functions whose rate or load may change without a change of their pools."""
        now = self._clock()
        names = {name for rates in self._rows.rates for _, name in rates.active(now)}
        pools = [*self._rows.gateways.loads(), *_waking(self._rows.gateways.states())]
        return names | {function_of(pool) for pool in pools}

    def functions(self, names: Iterable[str]) -> tuple[list[Item], list[str]]:
        """Return the items of the named functions, and the names that do not exist."""
        loads = self._rows.gateways.loads()
        there, gone = [], []
        for name in names:
            deployed = self._catalog.find(name, NAMESPACE)
            if deployed is None:
                gone.append(name)
            else:
                there.append(Item(name, name, encode(self._rows.row(deployed, loads))))
        return there, gone

    def replicas(self) -> Iterator[Item]:
        """Yield every replica that is not stopped yet."""
        for one in self._manager.replicas():
            charge = self._manager.charge(one.id)
            shown = replica_row(one, self._boot_s + one.since_s, charge)
            yield Item(one.id, shown.function, encode(shown))

    def devices(self) -> Iterator[Item]:
        """Yield every device."""
        for one in self._manager.occupancies():
            shown = device_row(one, self._manager.busy(one.device.id))
            yield Item(one.device.id, "", encode(shown))

    def hosts(self) -> Iterator[Item]:
        """Yield every host, the local one first."""
        for one in self._manager.hosts():
            yield Item(one.name, "", encode(host_row(one)))

    def beat(self) -> BeatEvent:
        """Return the totals of the server."""
        loads = self._rows.gateways.loads().values()
        reasons = self._reasons()
        return BeatEvent(
            at_s=round(self._wall(), 3),
            held=sum(load.queued for load in loads),
            in_flight=sum(load.in_flight for load in loads),
            rate=self._rows.rates.answers.rate(self._clock()),
            readyz=Readiness("degraded" if reasons else "ok", reasons),
        )


def function_of(pool: str) -> str:
    """Return the name of a pool's function; "" for a pool of standbys."""
    namespace, _, ref = pool.partition("/")
    return ref.partition("@")[0] if namespace == NAMESPACE else ""


def _waking(states: dict[str, str]) -> list[str]:
    return [pool for pool, state in states.items() if state == "waking"]
