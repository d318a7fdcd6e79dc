"""The admin API, put together."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from admin.api.backup import BackupRoutes
from admin.api.functions import FunctionRoutes
from admin.api.keys import KeyRoutes
from admin.api.operate import OperateRoutes
from admin.api.output.errors import ErrorRoutes
from admin.api.output.logs import LogRoutes
from admin.api.pools import PoolRoutes
from admin.api.routes import AdminApi, Handlers
from admin.api.side import AdminSide
from admin.api.uploads import UploadRoutes
from admin.api.watching.advice import AdviceRoutes
from admin.api.watching.events import EventRoutes
from admin.api.watching.timeline import TimelineRoutes
from admin.events.lines import Lines
from admin.events.opening import make_lines, open_watch, server_facts
from admin.events.scene import Scene
from admin.events.watch import Watch
from admin.ui.files import read_files
from admin.ui.pages import UiPages
from admin.ui.session import SessionRoutes
from gateway.http.app import Border
from gateway.metrics.pulse import Answered

wall: Final = time.time  # noqa: TID251 - the shell passes the clock in


@dataclass(frozen=True, slots=True)
class Admin:
    """The admin API of a server. `scene` is to be told what other processes have answered;
    `reasons` says what is wrong with the server."""

    side: AdminSide
    lines: Lines
    scene: Scene
    watch: Watch
    reasons: Callable[[], list[str]]

    def add_routes(self, app: web.Application, border: Border) -> AdminApi:
        """Its routes and the dashboard's, as those of `app`; whoever waits is answered when that
        shuts down."""
        side = self.side
        store, manager, deploys = side.store, side.manager, side.deploys
        operate = OperateRoutes(store.catalog, manager, deploys, time.monotonic)
        advice = AdviceRoutes(store, side.past.expected, wall)
        logs = LogRoutes(store.catalog, manager, time.monotonic)
        events = EventRoutes(self.watch, time.monotonic)
        handlers = Handlers(
            FunctionRoutes(store, manager, self.lines, deploys, side.past),
            operate,
            UploadRoutes(store.blobs, deploys, border.access, side.settings.driver),
            KeyRoutes(store.keys, store.ring, wall),
            PoolRoutes(store.catalog, manager, time.monotonic, wall),
            TimelineRoutes(store, manager, wall),
            advice,
            logs,
            ErrorRoutes(store.catalog, manager, side.failures),
            events,
            SessionRoutes(border.access, server_facts(side.settings)),
            BackupRoutes(store.backups),
        )
        api = AdminApi(border.access, handlers)
        api.add_routes(app, border)
        UiPages(border, read_files()).add_routes(app)
        waiting = (deploys.runner, operate, events.streams, logs.streams)
        app.on_shutdown.extend(one.stop_waiting for one in waiting)
        app.on_shutdown.append(advice.advisor.close)
        return api


def open_admin(
    side: AdminSide,
    take_answered: Callable[[], list[Answered]],
    reasons: Callable[[], list[str]],
    stack: AsyncExitStack,
) -> Admin:
    """Begin to watch. `take_answered` gives what this process has answered since it was asked
    last, `reasons` what is wrong with the server."""
    lines = make_lines(side)
    scene = Scene(side.store.catalog, lines, take_answered, reasons)
    watch = open_watch(side, scene, stack)
    return Admin(side, lines, scene, watch, reasons)
