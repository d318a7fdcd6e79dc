"""The records of requests to /v1: access log, metrics, traces and recent errors, as of others."""

from __future__ import annotations

from pathlib import Path
from random import Random

from gateway.metrics.counters import TEXT
from gateway.observing.access_log import AccessEvent
from gateway.observing.records import RequestRecord
from gateway.observing.tracing import Tracer
from registry.model.servers import ModelApi
from tests.support.modelled import CHAT, MESSAGES, ModelServer, asks, document, models, post
from tests.support.proxied import Gate

LABELS = 'function="web",namespace="default"'


def logged(one: Gate) -> list[AccessEvent]:
    """Return the events of the access log."""
    log = one.gateway.invoker.access_log
    assert log is not None
    log.flush()
    log.close()
    return one.events


def page_of(one: Gate) -> str:
    """Return the page /metrics."""
    metrics = one.gateway.invoker.metrics
    return TEXT.encode(metrics).decode()


async def test_an_answer(tmp_path: Path, is_fast: bool) -> None:
    """It counts for its function, with the sizes of both bodies as they go to and from it."""
    server = ModelServer(document(ok=1))
    async with models(tmp_path, server, is_fast=is_fast, api=ModelApi("served-m")) as one:
        await asks(one, post(CHAT, {"model": "gpt/small:1"}, "X-Request-Id: abc"))
        await one.settled()
        page = page_of(one)
        assert f'fngate_requests_total{{{LABELS},outcome="ok",reason=""}} 1.0' in page
        assert f"fngate_exchanges_open{{{LABELS}}} 0.0" in page
        assert f"fngate_first_byte_seconds_count{{{LABELS}}} 1.0" in page
        [event] = logged(one)
        assert (event.function, event.revision, event.method) == ("web", "web@1", "POST")
        assert (event.request_id, event.status, event.outcome) == ("abc", 200, "ok")
        assert event.bytes_in == len(server.asked[0].body)
        assert event.bytes_out
        assert event.first_byte_ms is not None


async def test_an_error_of_the_function(tmp_path: Path, is_fast: bool) -> None:
    """It counts for the function, and is one of its recent errors."""
    async with models(tmp_path, ModelServer(lambda _asked: None), is_fast=is_fast) as one:
        await asks(one, post(CHAT, {"model": "web"}))
        await one.settled()
        page = page_of(one)
        reason = 'outcome="failed",reason="upstream_failed"'
        assert f"fngate_requests_total{{{LABELS},{reason}}} 1.0" in page
        [event] = logged(one)
        assert (event.function, event.status, event.outcome) == ("web", 502, "upstream_failed")
        assert event.sends == 2


async def test_an_error_without_a_function(tmp_path: Path, is_fast: bool) -> None:
    """It stands in the access log, and counts for no function: names that clients
    invent are no labels."""
    async with models(tmp_path, ModelServer(document()), is_fast=is_fast) as one:
        await asks(one, post(CHAT, {"model": "invented"}))
        await asks(one, post(MESSAGES, b"nothing"))
        await asks(one, post("/v1/" + "x" * 5000, b"{}"))
        await one.settled()
        page = page_of(one)
        assert "invented" not in page
        assert "fngate_requests_total{" not in page
        assert [(event.function, event.status, event.outcome) for event in logged(one)] == [
            ("", 404, "unknown_model"),
            ("", 400, "bad_request"),
            ("", 404, "unknown"),
        ]


async def test_a_trace_goes_on_to_the_server(tmp_path: Path, is_fast: bool) -> None:
    """The server gets the gateway's span as parent, and the span is recorded."""
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    traced: list[RequestRecord] = []
    tracer = Tracer(0.0, lambda records, _left_out: traced.extend(records), Random(7))
    server = ModelServer(document(ok=1))
    async with models(tmp_path, server, is_fast=is_fast) as one:
        models_of = one.gateway.parts.models
        models_of._invoker = models_of._invoker._replace(tracer=tracer)
        await asks(one, post(CHAT, {"model": "web"}, f"traceparent: {parent}"))
        await one.settled()
        tracer.close()
        [record] = traced
        assert record.trace is not None
        assert (record.trace.parent_id, record.trace_id) == (parent[36:52], parent[3:35])
        assert server.asked[0].fields["traceparent"] == record.trace.traceparent
        assert (record.function, record.outcome) == ("web", "ok")


async def test_a_trace_is_that_of_its_request_alone(tmp_path: Path, is_fast: bool) -> None:
    """Of requests with the same head, also once that is known, each has the trace and the id that
    its client sent, if any, whatever model and form of answer it asks for."""
    ids = [f"one-{number}" for number in range(4)]
    traces = ["", *(f"00-{number}{'a' * 31}-{'b' * 16}-01" for number in range(1, 4))]
    server = ModelServer(document(ok=1))
    async with models(tmp_path, server, is_fast=is_fast) as one:
        for body in ({"model": "web"}, {"model": "web@1"}, {"model": "web", "stream": True}):
            for id, trace in zip(ids, traces, strict=True):
                sent = (f"X-Request-Id: {id}", *((f"traceparent: {trace}",) if trace else ()))
                await asks(one, post(CHAT, body, *sent))
        got = [
            (one.fields["x-request-id"], one.fields.get("traceparent", "")) for one in server.asked
        ]
        assert got == [*zip(ids, traces, strict=True)] * 3
        await one.settled()
