"""Route for the usage of models, by key or by function."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from aiohttp import web

from admin.api.answers import json_answer
from admin.documents.history import Usage, UsageItem, UsageSums
from admin.store import Store
from admin.views import note_of
from registry.errors import BadRequest
from registry.names import check_name
from registry.store.usage import By, Sums
from registry.usage import HOUR_S, bucket_of

DEFAULT: Final = "24h"
_UNITS: Final = {"h": HOUR_S, "d": 24 * HOUR_S}
_SPAN: Final = re.compile(r"([1-9][0-9]{0,4})([hd])")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


class UsageRoutes:
    """Handler for usage. `wall` returns Unix seconds."""

    def __init__(self, store: Store, wall: Callable[[], float]) -> None:
        self._store = store
        self._wall = wall

    async def get_usage(self, request: web.Request) -> web.Response:
        """Return the usage of models by key or by function, and its sum. Removed ones are part of
        it."""
        by, query = by_of(request.query.get("by", "function")), request.query
        function = query.get("function", "")
        if function:
            check_name(function)
        to_s = self._wall()
        from_s = since_s(query.get("since", DEFAULT), to_s)
        report = await self._store.usage.report(by, from_s, to_s, function)
        return json_answer(
            Usage(
                by=by,
                from_s=from_s,
                to_s=round(to_s, 3),
                items=[self._item(by, id, sums) for id, sums in report.groups],
                left_out=report.found - len(report.groups),
                total=UsageSums(*report.total),
                next=None,
            )
        )

    def _item(self, by: By, id: str, sums: Sums) -> UsageItem:
        ring, catalog = self._store.ring, self._store.catalog
        if by == "function":
            return UsageItem(*sums, function=id, removed=catalog.find(id) is None)
        removed = bool(id) and ring.with_id(id) is None
        return UsageItem(*sums, key=id, note=note_of(id, ring), removed=removed)


def by_of(text: str) -> By:
    """Return a grouping by its name. Raises BadRequest."""
    if text == "key":
        return "key"
    if text == "function":
        return "function"
    raise BadRequest(f"by: expected key or function, got {text[:40]!r}")


def since_s(text: str, now_s: float) -> int:
    """Return the beginning of the first hour of a span that ends at `now_s` (Unix seconds).

    `text`: hours or days, such as 24h or 7d, or a date in UTC. Raises BadRequest.
    """
    if span := _SPAN.fullmatch(text):
        return max(0, bucket_of(now_s - int(span[1]) * _UNITS[span[2]]))
    try:
        at_s = _date_s(text)
    except ValueError:
        raise BadRequest(
            "since: expected hours, days or a date, such as 24h, 7d or 2026-11-01,"
            f" got {text[:40]!r}"
        ) from None
    if at_s > now_s:
        raise BadRequest(f"since: expected a date that has come in UTC, got {text}")
    return max(0, bucket_of(at_s))


def _date_s(text: str) -> float:
    if not _DATE.fullmatch(text):
        raise ValueError(text)
    return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
