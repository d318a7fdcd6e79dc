"""Event stream of the admin API (`GET /events`) and the subscriptions that feed it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from importlib.metadata import version
from typing import Final

from aiohttp import web

from admin.api.context import AdminContext
from admin.api.streaming import Stream, Streams
from admin.documents.events import DecisionEvent, ErrorEvent, ServerFacts
from admin.events.hosts import HostChanges
from admin.events.snapshot import FunctionRows, StateReader, failure_row, function_of, pool_of
from admin.events.sse import Position, position
from admin.events.watch import EventWatch
from admin.rates import FunctionRates, Rates
from admin.settings import Settings
from admin.views import operation_row
from gateway.metrics import exchanges
from gateway.metrics.requests import SECONDS
from gateway.observing.errors import Failure
from registry.model.history import ColdStart, Decision
from registry.model.operations import Operation
from registry.names import check_name

FOLLOWERS_MAX: Final = 100

wall: Final = time.time  # noqa: TID251 - the shell passes the clock in


class EventRoutes:
    """Event stream for dashboards, `fnctl top` and other clients. `clock` returns seconds."""

    def __init__(self, watch: EventWatch, clock: Callable[[], float]) -> None:
        self._watch = watch
        self.streams = Streams(clock, FOLLOWERS_MAX)

    async def follow(self, request: web.Request) -> web.StreamResponse:
        """Stream the events after `Last-Event-ID`, or a full snapshot first. `?function=NAME`
        limits it to one function. Ends when the client disconnects or the server shuts down."""
        last = position(request.headers.get("Last-Event-ID", "")[:100])
        name = request.query.get("function", "")
        about = check_name(name) if name else ""
        return await self.streams.serve(request, partial(self._tell, last, about))

    async def _tell(self, last: Position | None, about: str, stream: Stream) -> None:
        with self._watch.follow(last, about) as follower:
            while True:
                await follower.news()
                for piece in follower.take():
                    await stream.write(piece)
                    # A fast reader never blocks `write`: yield, so that calls get the event loop.
                    await asyncio.sleep(0)


def server_facts(settings: Settings) -> ServerFacts:
    """Return the facts that do not change while a server runs."""
    return ServerFacts(
        version("fngate"), settings.driver, settings.workers, started_s=round(wall(), 3)
    )


def make_rows(context: AdminContext) -> FunctionRows:
    """Return the reader of the functions' current rows."""
    return FunctionRows(
        context.manager,
        context.gateways,
        context.history,
        FunctionRates(Rates(SECONDS), Rates(exchanges.SECONDS)),
        context.builds,
        context.deploys.pins.reserved_user,
        time.monotonic,
        wall,
    )


def open_watch(context: AdminContext, reader: StateReader, stack: AsyncExitStack) -> EventWatch:
    """Return a watch that is subscribed to all sources. It is closed before its sources."""
    watch = EventWatch(
        reader, context.store.catalog, server_facts(context.settings), time.monotonic
    )
    stack.callback(watch.close)
    stack.callback(context.manager.subscribe(watch.pools))
    stack.callback(context.manager.subscribe_decisions(partial(_decision, watch)))
    changes = HostChanges(context.manager.hosts(), wall)
    stack.callback(context.manager.subscribe_hosts(partial(_host, watch, context, changes)))
    stack.callback(context.builds.subscribe(watch.function))
    stack.callback(context.history.subscribe(partial(_cold_start, watch)))
    stack.callback(context.deploys.runner.subscribe(partial(_operation, watch)))
    stack.callback(context.failures.subscribe(partial(_errors, watch, context)))
    return watch


def _decision(watch: EventWatch, pool: str, decision: Decision) -> None:
    name = function_of(pool)
    ref = pool.partition("/")[2] if name else ""
    watch.record("decision", name, DecisionEvent(name, ref, round(decision.at_s, 3), decision.text))


def _host(watch: EventWatch, context: AdminContext, changes: HostChanges, name: str) -> None:
    if occurrence := changes.change(name, context.manager.host(name)):
        watch.record("host", "", occurrence)
    watch.refresh()


def _errors(watch: EventWatch, context: AdminContext, several: list[Failure]) -> None:
    for one in several:
        decisions = context.manager.decisions(pool_of(one))
        watch.record("error", one.function, failure_row(ErrorEvent, one, decisions))


def _cold_start(watch: EventWatch, record: ColdStart) -> None:
    watch.record("cold_start", record.name, record)


def _operation(watch: EventWatch, operation: Operation) -> None:
    watch.record("operation", operation.name, operation_row(operation))
