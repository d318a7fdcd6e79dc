"""Tests of whole benchmark runs: servers, references, loads, tables, JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.loading import chats, generator, grpc_calls, streams
from benchmarks.loading.call import Call, Load
from benchmarks.loading.chats import Chats
from benchmarks.loading.generator import Refused
from benchmarks.loading.streams import Streams
from benchmarks.references import servers, v2_servers

ROOT = Path(__file__).parent.parent.parent
TIMEOUT_S = 120

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TIMEOUT_S + 30)]


def test_a_quick_run_gives_tables_and_json(tmp_path: Path) -> None:
    """A quick run measures warm calls through a real server and the references, and writes tables
    and JSON."""
    report = tmp_path / "report.json"
    words = ["plain", "--quick", "--json", str(report), "--models", str(tmp_path / "models")]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr + done.stdout
    [plain] = json.loads(report.read_text())["benchmarks"]
    by_metric = {part["metric"]: part for part in plain["parts"] if "metric" in part}
    cost = by_metric["us of CPU per request, server"]
    assert cost["reference"] == "aiohttp hello"
    assert {"aiohttp hello", "fngate, aiohttp path"} <= {case["case"] for case in cost["cases"]}
    assert all(value > 0 for case in cost["cases"] for value in case["values"])
    assert "| aiohttp hello |" in done.stdout


@pytest.mark.parametrize("own", [False, True])
def test_large_bodies_get_their_answers(own: bool) -> None:
    """Each load generator gets answers to large bodies."""
    cores = generator.everywhere()
    with servers.hello("/fn/x", answer=600_000) as hello:
        call = Call(hello.port, "/fn/x", bytes(10_000_000))
        loaded = generator.run(Load(call, 2, 1), cores, own=own)
        counted = generator.run(Load(call, 3, each=2), cores, detailed=True)

    assert (loaded.errors, counted.requests, len(counted.ended_s)) == (0, 6, 6)
    assert 0 < loaded.p50_ms <= loaded.p99_ms
    assert counted.last_ms >= max(ms for _, ms in counted.ended_s)


@pytest.mark.parametrize("own", [False, True])
def test_answers_that_are_errors_are_no_result(own: bool) -> None:
    """Error answers are no result: a server that refuses must not look fast."""
    with servers.hello("/fn/x") as hello:
        load = Load(Call(hello.port, "/fn/other", b"{}"), 2, 1)
        with pytest.raises(Refused, match="errors"):
            generator.run(load, generator.everywhere(), own=own)


def test_streams_are_counted_to_their_last_event() -> None:
    """The load of streams counts every event through a proxy, and measures its delay."""
    plan = Streams(0, "/sse", count=20, events=5, period_ms=10)
    with servers.upstream() as behind, servers.aiohttp_proxy(behind.port) as proxy:
        plan = replace(plan, port=proxy.port)
        with generator.planned(plan, generator.everywhere()) as process:
            found = streams.figures(process, plan)

    assert (found.whole, found.events) == (20, 100)
    assert 0 < found.p50_ms <= found.p99_ms


def test_streams_that_are_none_are_no_result() -> None:
    """An answer without events is no result: a proxy that cuts streams must not look fast."""
    with servers.hello("/sse") as hello:
        plan = Streams(hello.port, "/sse", count=2, events=1, period_ms=10)
        with (
            generator.planned(plan, generator.everywhere()) as process,
            pytest.raises(Refused, match="0 of 2"),
        ):
            streams.figures(process, plan)


def test_chats_are_counted_to_their_last_token() -> None:
    """The load of chats counts every token of streams that follow each other, and measures the time
    to the first one; a stream that ends early is no result."""
    cores = generator.everywhere()
    with servers.chat_upstream() as behind:
        plan = Chats(behind.port, "/v1/chat/completions", "m", 4, tokens=5, period_ms=10, each=2)
        found = chats.run(plan, cores)
    with servers.hello("/v1/chat/completions") as hello, pytest.raises(Refused, match="0 of 8"):
        chats.run(replace(plan, port=hello.port), cores)

    assert (found.whole, found.tokens, found.usages) == (8, 40, 0)
    assert 0 < found.delay_p50_ms <= found.delay_p99_ms
    assert found.first_p50_ms > 0


def test_grpc_calls_are_counted() -> None:
    """The load of gRPC counts answers on all its connections; an error is no result."""
    message = grpc_calls.infer_request("digits", "image", (1, 8, 8), "FP32", bytes(256)).hex()
    cores = generator.everywhere()
    with v2_servers.bare("grpc", ROOT / "functions/digits/digits.onnx") as server:
        plan = grpc_calls.Calls(server.port, message, 2, 0.2)
        found = grpc_calls.run(plan, cores)
    with servers.hello("/") as hello, pytest.raises(Refused, match="UNAVAILABLE"):
        grpc_calls.run(replace(plan, port=hello.port), cores)

    assert found.requests > 2
    assert 0 < found.p50_ms <= found.p99_ms
