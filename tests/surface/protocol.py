"""Sections of the surface: problems, routes, `Server-Timing`, traces and the log."""

from __future__ import annotations

import json
import subprocess
import sys
from unittest.mock import MagicMock

from aiohttp import web
from msgspec import to_builtins

from admin.api.app import AdminApi
from admin.api.openapi import DocumentPages
from admin.api.table import Handlers
from admin.documents.routes import PREFIX, ROUTES
from admin.ui.files import UiPages
from gateway.dispatch.call import Attempt
from gateway.http.app import Gateway, StatePages
from gateway.http.boundary import ErrorBoundary
from gateway.observing.access_log import AccessEvent
from gateway.observing.tracing import spans_of
from gateway.problems import document
from gateway.replies import Receipt, server_timing
from gateway.settings import GatewaySettings
from gateway.statuses import STATUS
from registry.errors import FnError
from runtime_image.contract.control import PHASES
from runtime_image.contract.errors import REQUEST_CODES, RequestError
from runtime_image.link.meta import AnswerMeta
from tests.support.records import RECEIPT, TRACED
from tests.surface import log_line, source
from tests.surface.shapes import JsonShape, fields_of


def problems() -> list[str]:
    """List code, status and type of each problem, and the keys that all documents have."""
    shape = JsonShape()
    found = []
    for kind in _tree(FnError):
        shown = to_builtins(document(kind("text", retry_after_s=1.0), for_admin=True))
        shape.add("problem", shown)
        found.append(f"{kind.code} {STATUS[kind]} {shown['type']}")
    return [*found, *shape.lines()]


def _tree(kind: type[FnError]) -> set[type[FnError]]:
    return {kind}.union(*(_tree(one) for one in kind.__subclasses__() if one in STATUS))


def request_errors() -> list[str]:
    """List codes and keys of the errors that replicas send in FAILED frames."""
    shape = JsonShape()
    error = RequestError("bad_input", "text", input="x", expected="a", got="b")
    shape.add("failed", error.to_json())
    return [*(f"code {one}" for one in REQUEST_CODES), *shape.lines()]


def routes() -> list[str]:
    """List every route of a server by method and path, those of the admin API with their scopes."""
    app, boundary = web.Application(), ErrorBoundary(MagicMock())
    handlers = Handlers(*(MagicMock() for _ in Handlers._fields))
    AdminApi(MagicMock(), handlers).add_routes(app, boundary)
    DocumentPages(boundary).add_routes(app)
    Gateway(MagicMock(settings=GatewaySettings())).add_routes(app)
    UiPages(boundary, {}).add_routes(app)
    StatePages(boundary, MagicMock(), list, lambda: True).add_routes(app)
    found = []
    for route in app.router.routes():
        path = route.resource.canonical if route.resource else ""
        about = ROUTES.get(f"{route.method} {path.removeprefix(PREFIX)}")
        found.append(" ".join([route.method, path, *([about.need] if about else [])]))
    return found


def timings() -> list[str]:
    """List names and parameters of `Server-Timing`, for a cold start and for a first run."""
    meta = AnswerMeta("application/json", 1, 1, 1, 1, 1)
    phases = dict.fromkeys(PHASES, 1.0)
    found = []
    for is_first, there in ((True, phases), (False, {})):
        header = server_timing(Receipt("f@1", "r", ("cpu:0",), 1.0, there, is_first, meta, "h"))
        for entry in header.split(", "):
            name, *parameters = entry.split(";")
            found.append(" ".join([name, *(one.partition("=")[0] for one in parameters)]))
    return found


def log() -> list[str]:
    """List the fields of the access log and of any log line, and the log's events."""
    command = [sys.executable, "-m", log_line.__name__]
    line = subprocess.run(command, cwd=source.ROOT, capture_output=True, check=True).stderr
    every = [f"line.{key}" for key in json.loads(line)]
    return [*fields_of("access", AccessEvent), *every, *source.log_events()]


def traces() -> list[str]:
    """List the spans, with attributes, of a request that was sent twice and waited for a cold
    start."""
    receipt = RECEIPT._replace(phases=dict.fromkeys(PHASES, 10.0), is_first=True, host="h")
    died = Attempt("r0", 9.1, 9.3, has_died=True)
    journey = TRACED.journey._replace(sent_s=9.52, connected_s=9.51, attempts=(died,))
    found = [*(f"attribute {one}" for one in source.attributes())]
    for shown in (receipt, receipt._replace(is_first=False)):
        for span in spans_of(TRACED._replace(receipt=shown, journey=journey), lambda: "0" * 16):
            found += [f"span {span.name}", *(f"span {span.name} {one}" for one in span.attributes)]
    return found
