"""Routes for recorded history: timelines, and advice on idle times."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aiohttp import web

from admin.advice.advice import RecordedSpan, weigh
from admin.advice.process import Advisor
from admin.api.answers import json_answer, whole_number
from admin.documents import history as documents
from admin.documents.history import (
    BucketArrivals,
    DeviceBucketUse,
    DeviceUse,
    FunctionTimeline,
    FunctionUse,
    Timeline,
    TimelineState,
    TimelineTotals,
)
from admin.documents.requests import HOURS, HOURS_MAX
from admin.store import Store
from pool_manager.manager import Manager
from registry.catalog import Deployed
from registry.exchange import Expected
from registry.model.history import StateInterval
from registry.store.history import LIST_MAX
from registry.store.timeline import BucketUse, Seconds, Span, total


class TimelineRoutes:
    """Handlers that aggregate the history. `wall` returns Unix seconds."""

    def __init__(self, store: Store, manager: Manager, wall: Callable[[], float]) -> None:
        self._catalog = store.catalog
        self._timeline = store.timeline
        self._manager = manager
        self._wall = wall

    async def of_function(self, request: web.Request) -> web.Response:
        """Return a function's states (with the current one), device-seconds and requests."""
        deployed = self._catalog.resolve(request.match_info["name"])
        name, span = deployed.function.name, self._span(request)
        use = await self._timeline.use(name, span)
        arrivals = await self._timeline.arrivals(name, span)
        states = [_state_row(one) for one in await self._timeline.states(name, span)]
        whole = total([one.seconds for one in use])
        return json_answer(
            FunctionTimeline(
                from_s=span.from_s,
                to_s=round(span.to_s, 3),
                bucket_s=span.bucket_s,
                states=[*states, *self._now(deployed, span)],
                use=[
                    DeviceBucketUse(*_rounded(one.seconds), at_s=one.at_s, device=one.device)
                    for one in use
                ],
                arrivals=[BucketArrivals(at_s, count) for at_s, count in arrivals],
                totals=TimelineTotals(
                    *_rounded(whole),
                    cold_starts=await self._timeline.cold_starts(name, span),
                    requests=sum(count for _, count in arrivals),
                ),
            )
        )

    async def of_all(self, request: web.Request) -> web.Response:
        """Return the functions with the most device-seconds, and each device's use by bucket."""
        span = self._span(request)
        functions = [
            FunctionUse(*_rounded(seconds), name=name, requests=requests)
            for name, seconds, requests in await self._timeline.functions(span)
        ]
        devices: dict[str, list[BucketUse]] = {}
        for one in await self._timeline.devices(span):
            devices.setdefault(one.device, []).append(one)
        shown = [_device_row(id, use) for id, use in sorted(devices.items())]
        to_s = round(span.to_s, 3)
        return json_answer(Timeline(span.from_s, to_s, span.bucket_s, functions, shown))

    def _span(self, request: web.Request) -> Span:
        hours = whole_number(request.query, "hours", 1, HOURS_MAX)
        return Span.of_hours(hours, self._wall())

    def _now(self, deployed: Deployed, span: Span) -> Iterable[TimelineState]:
        """Yield the current state of each revision, except old revisions that are cold."""
        for one in self._catalog.revisions(deployed.function.name):
            pool = self._manager.pool(one.revision.key)
            is_old = one.revision.number != deployed.function.revision
            if pool is None or (is_old and pool[0].state == "cold"):
                continue
            shown, _, since_s = pool
            yield TimelineState(
                min(since_s, span.to_s), span.to_s, shown.state, shown.reason, one.revision.ref
            )


def _state_row(one: StateInterval) -> TimelineState:
    ref = f"{one.name}@{one.number}"
    return TimelineState(one.from_s, one.to_s, one.state, one.reason, ref)


def _device_row(id: str, use: list[BucketUse]) -> DeviceUse:
    whole = total([one.seconds for one in use])
    buckets = [documents.BucketUse(*_rounded(one.seconds), at_s=one.at_s) for one in use]
    return DeviceUse(*_rounded(whole), id=id, use=buckets)


def _rounded(seconds: Seconds) -> Seconds:
    return Seconds(*(round(value, 3) for value in seconds))


class AdviceRoutes:
    """Handler for advice from recorded traffic. `expected` returns the expected duration of a
    pool's next cold start, `wall` returns Unix seconds."""

    def __init__(
        self,
        store: Store,
        expected: Callable[[str], Expected],
        wall: Callable[[], float],
    ) -> None:
        self._store = store
        self._expected = expected
        self._wall = wall
        self.advisor = Advisor()

    async def of_function(self, request: web.Request) -> web.Response:
        """Return rows for several idle times, the current one among them. With too little data
        there are no rows, and a note says so."""
        deployed = self._store.catalog.resolve(request.match_info["name"])
        hours = whole_number(request.query, "hours", HOURS, HOURS_MAX)
        span, name = Span.of_hours(hours, self._wall()), deployed.function.name
        history, timeline = self._store.history, self._store.timeline
        minutes = await history.arrivals(name, span.from_s)
        recorded = RecordedSpan(
            [(one.minute_s, one.count) for one in minutes],
            await timeline.arrivals(name, span),
            await timeline.use(name, span),
            await history.cold_starts(name, LIST_MAX),
            self._expected(deployed.revision.key).p50_s,
        )
        advice, case = weigh(deployed, span, recorded)
        if case is not None:
            advice.rows = await self.advisor.rows(case)
        return json_answer(advice)
