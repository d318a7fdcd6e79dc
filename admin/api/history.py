"""Routes for recorded history: timelines, and advice on idle times."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, Final

from aiohttp import web

from admin.advice.advice import Evidence, RecordedSpan, Row, weigh
from admin.advice.process import Advisor
from admin.api.functions import whole_number
from admin.store import Store
from gateway.problems import json_answer
from pool_manager.manager import Manager
from registry.catalog import Deployed
from registry.exchange import Expected
from registry.model.history import StateInterval
from registry.store.history import LIST_MAX
from registry.store.timeline import BucketUse, Seconds, Span, total

HOURS_MAX: Final = 24 * 7

HOURS: Final = 24


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
        states = [_state_json(one) for one in await self._timeline.states(name, span)]
        whole = total([one.seconds for one in use])
        return json_answer(
            {
                **_span_json(span),
                "states": [*states, *self._now(deployed, span)],
                "use": [_use_json(one, device=one.device) for one in use],
                "arrivals": [{"at_s": at_s, "count": count} for at_s, count in arrivals],
                "totals": {
                    **_seconds_json(whole),
                    "cold_starts": await self._timeline.cold_starts(name, span),
                    "requests": sum(count for _, count in arrivals),
                },
            }
        )

    async def of_all(self, request: web.Request) -> web.Response:
        """Return the functions with the most device-seconds, and each device's use by bucket."""
        span = self._span(request)
        functions = [
            {"name": name, **_seconds_json(seconds), "requests": requests}
            for name, seconds, requests in await self._timeline.functions(span)
        ]
        devices: dict[str, list[BucketUse]] = {}
        for one in await self._timeline.devices(span):
            devices.setdefault(one.device, []).append(one)
        shown = [_device_json(id, use) for id, use in sorted(devices.items())]
        return json_answer({**_span_json(span), "functions": functions, "devices": shown})

    def _span(self, request: web.Request) -> Span:
        hours = whole_number(request.query, "hours", 1, HOURS_MAX)
        return Span.of_hours(hours, self._wall())

    def _now(self, deployed: Deployed, span: Span) -> Iterable[dict[str, Any]]:
        """Yield the current state of each revision, except old revisions that are cold."""
        for one in self._catalog.revisions(deployed.function.name):
            pool = self._manager.pool(one.revision.key)
            is_old = one.revision.number != deployed.function.revision
            if pool is None or (is_old and pool[0].state == "cold"):
                continue
            shown, _, since_s = pool
            yield {
                "from_s": min(since_s, span.to_s),
                "to_s": span.to_s,
                "state": shown.state,
                "reason": shown.reason,
                "revision": one.revision.ref,
            }


def _span_json(span: Span) -> dict[str, Any]:
    return {"from_s": span.from_s, "to_s": round(span.to_s, 3), "bucket_s": span.bucket_s}


def _state_json(one: StateInterval) -> dict[str, Any]:
    return {
        "from_s": one.from_s,
        "to_s": one.to_s,
        "state": one.state,
        "reason": one.reason,
        "revision": f"{one.name}@{one.number}",
    }


def _device_json(id: str, use: list[BucketUse]) -> dict[str, Any]:
    whole = total([one.seconds for one in use])
    return {"id": id, **_seconds_json(whole), "use": [_use_json(one) for one in use]}


def _use_json(one: BucketUse, **fields: str) -> dict[str, Any]:
    return {"at_s": one.at_s, **fields, **_seconds_json(one.seconds)}


def _seconds_json(seconds: Seconds) -> dict[str, float]:
    return {name: round(value, 3) for name, value in seconds._asdict().items()}


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
        evidence = weigh(deployed, span, recorded)
        rows = await self.advisor.rows(evidence.case) if evidence.case else []
        return json_answer(_advice_json(evidence, rows, deployed.function.scaling.idle_s))


def _advice_json(evidence: Evidence, rows: list[Row], idle_s: float) -> dict[str, Any]:
    return {
        "from_s": evidence.from_s,
        "to_s": evidence.to_s,
        "requests": evidence.requests,
        "idle_s": idle_s,
        "basis": {
            "cold_start_ms": round(evidence.cold_s * 1e3, 1),
            "run_ms": round(evidence.run_s * 1e3, 3),
            "cold_starts_seen": evidence.cold_starts_seen,
        },
        "rows": [asdict(row) for row in rows],
        "notes": evidence.notes,
    }
