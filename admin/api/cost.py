"""Route for costs, by function or by key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from aiohttp import web

from admin.api.answers import json_answer
from admin.api.usage import DEFAULT, by_of, since_s
from admin.cost import BY_NO_KEY, Cost, costs, costs_by_key, total
from admin.documents.history import CostItem, Costs, CostSums
from admin.prices import Prices
from admin.store import Store
from admin.views import note_of, struct_of
from registry.names import check_name
from registry.store.usage import GROUPS_MAX, By
from registry.usage import IDLE, OTHERS, bucket_of

_DIGITS: Final = 6


class CostRoutes:
    """Handler for costs. `wall` returns Unix seconds."""

    def __init__(self, store: Store, prices: Prices, wall: Callable[[], float]) -> None:
        self._store = store
        self._prices = prices
        self._wall = wall

    async def get_cost(self, request: web.Request) -> web.Response:
        """Return device-seconds, joules and costs by function or by key, and their sum."""
        by, query = by_of(request.query.get("by", "function")), request.query
        function = query.get("function", "")
        if function:
            check_name(function)
        to_s, store = self._wall(), self._store
        # The history has no more: a longer span would show the sum of a shorter one.
        from_s = since_s(query.get("since", DEFAULT), to_s)
        from_s = max(from_s, bucket_of(to_s - store.settings.history_keep_s))
        # Of all functions: whether a GPU has an energy counter shows in all that was counted of it.
        found = costs(await store.device_times.list(from_s, to_s), self._prices)
        if function:
            found = {name: one for name, one in found.items() if name == function}
        whole = total(found.values())
        if by == "key":
            found = costs_by_key(found, await store.usage.busy(from_s, to_s, function))
        ranked = sorted(found.items(), key=lambda item: (-(item[1].cost or 0), -item[1].held_s))
        return json_answer(
            Costs(
                by=by,
                from_s=from_s,
                to_s=round(to_s, 3),
                currency=self._prices.currency if self._prices else None,
                items=[self._item(by, id, one) for id, one in ranked[:GROUPS_MAX]],
                left_out=max(0, len(ranked) - GROUPS_MAX),
                total=sums_of(whole),
                next=None,
            )
        )

    def _item(self, by: By, id: str, cost: Cost) -> CostItem:
        ring, numbers = self._store.ring, msgspec.structs.asdict(sums_of(cost))
        if by == "function":
            is_gone = id != IDLE and self._store.catalog.find(id) is None
            return CostItem(**numbers, function=id, removed=is_gone)
        is_gone = id not in ("", IDLE, BY_NO_KEY, OTHERS) and ring.with_id(id) is None
        return CostItem(**numbers, key=id, note=note_of(id, ring), removed=is_gone)


def sums_of(cost: Cost) -> CostSums:
    """Return all numbers of a cost, rounded."""
    sums = struct_of(CostSums, cost)
    for name, value in msgspec.structs.asdict(sums).items():
        setattr(sums, name, value if value is None else round(value, _DIGITS))
    return sums
