"""Joins the watch to what it tells of."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, Final

from admin.api.side import AdminSide
from admin.events.failures import failure_json, pool_of
from admin.events.lines import Lines
from admin.events.rates import Rates
from admin.events.scene import Scene, function_of
from admin.events.watch import Watch
from admin.settings import Settings
from admin.views import operation_json
from gateway.metrics.series import SECONDS
from gateway.observing.failures import Failure
from pool_manager.telling.journal import Decision
from registry.model import ColdStart, Operation

wall: Final = time.time  # noqa: TID251 - the shell passes the clock in


def server_facts(settings: Settings) -> dict[str, Any]:
    """What does not change while a server runs."""
    return {
        "version": version("fngate"),
        "driver": settings.driver,
        "workers": settings.workers,
        "started_s": round(wall(), 3),
    }


def make_lines(side: AdminSide) -> Lines:
    """Functions as they are now."""
    rates = Rates(SECONDS)
    return Lines(side.manager, side.held, side.past, rates, time.monotonic, wall)


def open_watch(side: AdminSide, scene: Scene, stack: AsyncExitStack) -> Watch:
    """A watch that hears of everything. It is closed before what it looks at."""
    watch = Watch(scene, side.store.catalog, server_facts(side.settings), time.monotonic)
    stack.push_async_callback(watch.close)
    stack.callback(side.manager.subscribe(watch.pools))
    side.manager.watch_decisions(lambda pool, decision: _decision(watch, pool, decision))
    side.past.on_record = lambda record: _cold_start(watch, record)
    side.deploys.runner.on_change = lambda operation: _operation(watch, operation)
    side.failures.on_added = lambda several: _errors(watch, side, several)
    watch.open()
    return watch


def _decision(watch: Watch, pool: str, decision: Decision) -> None:
    name = function_of(pool)
    watch.happened(
        "decision",
        name,
        {
            "function": name,
            "revision": pool.partition("/")[2] if name else "",
            "at_s": round(decision.at_s, 3),
            "text": decision.text,
        },
    )


def _errors(watch: Watch, side: AdminSide, several: list[Failure]) -> None:
    for one in several:
        about = {"function": one.function}
        shown = failure_json(one, side.manager.decisions(pool_of(one)))
        watch.happened("error", one.function, {**about, **shown})


def _cold_start(watch: Watch, record: ColdStart) -> None:
    watch.happened("cold_start", record.name, asdict(record))


def _operation(watch: Watch, operation: Operation) -> None:
    watch.happened("operation", operation.name, operation_json(operation))
