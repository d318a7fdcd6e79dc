"""`POST /fn/{name}`: the whole way of a request on one screen."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import NamedTuple

import structlog
from aiohttp import web

from gateway import problems
from gateway.access import Access
from gateway.cold_check import ColdCheck
from gateway.delivery import Delivery
from gateway.http import preferences
from gateway.http.bodies import read_body
from gateway.metrics import Metrics
from gateway.outcome import Delivered, HeldCall, Outcome
from gateway.ports import Past
from gateway.receipt import Receipt, server_timing
from gateway.settings import MIB, GatewaySettings
from gateway.traffic import may_rerun
from registry.catalog import Catalog, Deployed
from registry.errors import BadRequest, FnError, ShuttingDown
from registry.model import Revision
from runtime_image.contract.errors import RequestError
from runtime_image.link.meta import RequestMeta

log = structlog.get_logger()


class Invoker(NamedTuple):
    """What invoking needs."""

    settings: GatewaySettings
    access: Access
    catalog: Catalog
    delivery: Delivery
    cold_check: ColdCheck
    metrics: Metrics
    past: Past


class Door:
    """Counts who is inside, and is shut when the server goes."""

    def __init__(self) -> None:
        self.is_open = True
        self.inside = 0
        self._empty = asyncio.Event()

    def __enter__(self) -> None:
        if not self.is_open:
            raise ShuttingDown("the server is shutting down", retry_after_s=5)
        self.inside += 1

    def __exit__(self, *_: object) -> None:
        self.inside -= 1
        if not self.inside:
            self._empty.set()

    async def shut(self) -> None:
        """Let nobody in any more; returns when the last one has left."""
        self.is_open = False
        while self.inside:
            self._empty.clear()
            await self._empty.wait()


async def invoke(invoker: Invoker, door: Door, request: web.Request) -> web.Response:
    """Answer one invocation; every error of the tree becomes a problem document."""
    began = monotonic()
    deployed: Deployed | None = None
    try:
        with door:
            invoker.access.check_host(request.host)
            invoker.access.check_origin(request.headers, request.host)
            ref = request.match_info["ref"]
            authorization = request.headers.get("Authorization")
            invoker.access.check(authorization, "invoke", ref.partition("@")[0])
            deployed = invoker.catalog.resolve(ref)
            response = await _answer(invoker, deployed, request)
            outcome = "ok"
    except RequestError as error:
        outcome, response = error.code, problems.answer(problems.from_request_error(error))
    except FnError as error:
        is_admin = invoker.access.is_admin(request.headers.get("Authorization"))
        outcome, response = error.code, problems.answer(error, for_admin=is_admin)
    except Exception:  # the border: a defect must not show its insides
        log.exception("a request failed", path=request.path)
        outcome, response = FnError.code, problems.answer(FnError("see the server's log"))
    if deployed is not None:
        function = deployed.function
        seconds = monotonic() - began
        invoker.metrics.answered(function.namespace, function.name, outcome, seconds)
        if invoker.settings.access_log:
            log.info("request", function=function.name, outcome=outcome, ms=round(seconds * 1e3, 3))
    return response


async def _answer(invoker: Invoker, deployed: Deployed, request: web.Request) -> web.Response:
    function, revision = deployed.function, deployed.revision
    settings, headers = invoker.settings, request.headers
    wait_s, applied = preferences.wait_s(
        headers.get("Prefer"), function.limits.wait_s, settings.wait_max_s
    )
    body = await read_body(request, function.limits.body_mib * MIB, settings.body_read_s)
    meta = _meta(request)
    invoker.past.arrived(function.namespace, function.name)
    await _check(invoker, revision, meta, body)
    loop = asyncio.get_running_loop()
    now = monotonic()
    answer: asyncio.Future[Outcome] = loop.create_future()
    call = HeldCall(
        revision.key,
        meta,
        body,
        arrived_s=now,
        wait_until_s=now + wait_s,
        timeout_s=function.limits.timeout_s,
        priority=preferences.priority(headers.get("Priority")),
        may_rerun=may_rerun(deployed),
        queue_max=function.limits.queue,
        pinned="@" in request.match_info["ref"],
        done=lambda outcome: None if answer.done() else answer.set_result(outcome),
    )
    invoker.delivery.submit(call)
    try:
        outcome = await answer
    except asyncio.CancelledError:
        invoker.delivery.leave(call)
        raise
    invoker.metrics.sent(function.namespace, function.name, call.sends, call.deaths)
    if not isinstance(outcome, Delivered):
        raise outcome
    return _response(invoker, deployed, call, outcome, applied)


async def _check(invoker: Invoker, revision: Revision, meta: RequestMeta, body: bytes) -> None:
    """Raise what speaks against the request: bad input where that would wake a device, or
    UnknownFunction or UnknownRevision where the revision went while the body came. Nobody would
    ever start that one, and the request would be held in vain."""
    if invoker.delivery.is_cold(revision.key):
        await invoker.cold_check.check(meta, body, revision)
    if invoker.catalog.find(revision.ref, revision.namespace) is None:
        invoker.catalog.resolve(revision.ref, revision.namespace)


def _response(
    invoker: Invoker, deployed: Deployed, call: HeldCall, delivered: Delivered, applied: str
) -> web.Response:
    is_cold = call.was_held and delivered.up_s > call.arrived_s
    # Not the one that was asked first: the call may have followed its function's traffic.
    ref = call.pool.partition("/")[2]
    receipt = Receipt(
        ref,
        delivered.replica,
        delivered.device,
        (call.sent_s - call.arrived_s) * 1e3,
        delivered.phases if is_cold else {},
        delivered.is_first,
        delivered.meta,
    )
    function = deployed.function
    invoker.metrics.received(function.namespace, function.name, receipt)
    headers = {
        "Content-Type": delivered.meta.content_type,
        "Fn-Revision": ref,
        "Server-Timing": server_timing(receipt),
    }
    if delivered.json_length:
        headers["Inference-Header-Content-Length"] = str(delivered.json_length)
    if applied:
        headers["Preference-Applied"] = applied
    return web.Response(body=delivered.body, headers=headers)


def _meta(request: web.Request) -> RequestMeta:
    headers = request.headers
    length = headers.get("Inference-Header-Content-Length", "")
    if length and not (length.isdecimal() and len(length) < 12):
        raise BadRequest(f"Inference-Header-Content-Length: expected a number, got {length[:40]!r}")
    return RequestMeta(
        headers.get("Content-Type", ""),
        headers.get("Accept", ""),
        int(length) if length else -1,
        headers.get("traceparent", ""),
    )
