"""What another idle time would have cost and saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from aiohttp import web

from admin.advice.advisor import Advisor
from admin.advice.evidence import Evidence, Past, weigh
from admin.advice.rows import Row
from admin.api.paging import whole_number
from admin.api.watching.timeline import HOURS_MAX
from admin.store import Store
from gateway.problems import json_answer
from registry.exchange import Expected
from registry.store.history import LIST_MAX
from registry.store.timeline import Span

HOURS: Final = 24


class AdviceRoutes:
    """Advice by what was recorded. `expected` says what a pool's next cold start takes, `wall`
    gives Unix seconds."""

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
        """Rows for several idle times, the present one among them; none where too little is known,
        and a note that says so."""
        deployed = self._store.catalog.resolve(request.match_info["name"])
        hours = whole_number(request.query, "hours", HOURS, HOURS_MAX)
        span, name = Span.of_hours(hours, self._wall()), deployed.function.name
        history, timeline = self._store.history, self._store.timeline
        recorded = await history.arrivals(name, span.from_s)
        past = Past(
            [(one.minute_s, one.count) for one in recorded],
            await timeline.arrivals(name, span),
            await timeline.use(name, span),
            await history.cold_starts(name, LIST_MAX),
            self._expected(deployed.revision.key).p50_s,
        )
        evidence = weigh(deployed, span, past)
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
