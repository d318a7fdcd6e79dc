"""A crowd of Triton's clients, with their default timeouts of 60 s, at a cold model."""

from __future__ import annotations

import asyncio
import importlib
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import ClientSession
from prometheus_client.parser import text_string_to_metric_families

from tests.chaos.calls import OFFSET, SCALE
from tests.chaos.ledger import Ledger
from tests.support.process_server import ServerProcess, server_process

NAME = "late"
STARTS = "fngate_replica_starts"
CONNECTIONS = 100
"""Connections of the blocking client, which makes all its calls over one object."""
HANDLER = """
import threading

def load(ctx):
    threading.Event().wait({start_s})

def predict(inputs, ctx):
    return {{"y": inputs["x"] * {scale} + {offset}}}
"""
MANIFEST = f"""schema = 1
name = "{NAME}"

[runtime]
engine = "python"

[input.x]
dtype = "FP32"
shape = [-1, 4]

[limits]
queue = 1000
wait_s = 55
"""


@dataclass(frozen=True)
class Dose:
    """Parameters of a run. `clients`: calls at once of each kind; `start_s`: of the cold start."""

    clients: int = 100
    start_s: float = 20.0
    workers: int = 2


def _tensor(kind: Any, number: int, **options: Any) -> Any:
    made = kind.InferInput("x", [1, 4], "FP32")
    made.set_data_from_numpy(np.full((1, 4), number, np.float32), **options)
    return made


def _is_right(number: int, result: Any) -> bool:
    return bool((result.as_numpy("y") == SCALE * number + OFFSET).all())


def blocking_calls(address: str, numbers: Sequence[int]) -> Iterator[bool]:
    """Call with `tritonclient.http`, all at once; yield whether each answer is right."""
    http = importlib.import_module("tritonclient.http")
    with http.InferenceServerClient(address, concurrency=CONNECTIONS) as client:
        asked = [client.async_infer(NAME, [_tensor(http, one)]) for one in numbers]
        for number, one in zip(numbers, asked, strict=True):
            yield _is_right(number, one.get_result())
    # A thread's hub keeps its descriptors.
    importlib.import_module("gevent").get_hub().destroy(destroy_loop=True)


async def asynchronous_calls(kind: Any, address: str, numbers: Sequence[int]) -> list[bool]:
    """Call with an asynchronous client of Triton, one object for each call, all at once."""

    async def call(number: int) -> bool:
        async with kind.InferenceServerClient(address) as client:
            return _is_right(number, await client.infer(NAME, [_tensor(kind, number)]))

    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(call(number)) for number in numbers]
    return [one.result() for one in asked]


def clients(http: str, grpc: str) -> dict[str, Callable[[Sequence[int]], Awaitable[list[bool]]]]:
    """Return the kinds of clients: each makes calls with these numbers."""

    async def blocking(numbers: Sequence[int]) -> list[bool]:
        return await asyncio.to_thread(lambda: list(blocking_calls(http, numbers)))

    def asynchronous(module: str, address: str) -> Callable[[Sequence[int]], Awaitable[list[bool]]]:
        kind = importlib.import_module(module)
        return lambda numbers: asynchronous_calls(kind, address, numbers)

    return {
        "tritonclient.http": blocking,
        "tritonclient.http.aio": asynchronous("tritonclient.http.aio", http),
        "tritonclient.grpc.aio": asynchronous("tritonclient.grpc.aio", grpc),
    }


async def run(data: Path, dose: Dose) -> Ledger:
    """Every answer is right, none came before the start, and one replica was started."""
    ledger = Ledger("a crowd of clients at a cold model", {"start s": dose.start_s})
    bundle = data / "bundle"
    bundle.mkdir()
    source = HANDLER.format(start_s=dose.start_s, scale=SCALE, offset=OFFSET)
    (bundle / "handler.py").write_text(source)
    (bundle / "function.toml").write_text(MANIFEST)
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = int(reserved.getsockname()[1])
    options = ("--workers", str(dose.workers), "--cpu-slots", "4", "--grpc-port", str(port))
    with server_process(data / "data", *options, environment={"FN_STANDBYS": "0"}) as server:
        server.fnctl_json("deploy", str(bundle), "--trust")
        before = await _starts(server)
        began = time.monotonic()
        kinds = clients(server.url.removeprefix("http://"), f"127.0.0.1:{port}")
        async with asyncio.TaskGroup() as group:
            asked = {
                name: group.create_task(call(range(place, place + dose.clients)))  # type: ignore[arg-type]
                for place, (name, call) in enumerate(kinds.items())
            }
        taken_s = time.monotonic() - began
        started = await _starts(server) - before
        for name, one in asked.items():
            right = sum(one.result())
            ledger.figures[name] = right
            ledger.require(right == dose.clients, f"{name}: {right} right of {dose.clients}")
        ledger.figures |= {"seconds": round(taken_s, 1), "starts": dict(started)}
        ledger.require(taken_s >= dose.start_s, f"all were answered after {taken_s:.1f} s")
        ledger.require(started.total() == 1, f"starts of replicas: {dict(started)}")
        for line in server.complaints:
            ledger.violated(f"the server's log: {line.rstrip()}")
    return ledger


async def _starts(server: ServerProcess) -> Counter[str]:
    """Return the starts of replicas so far, by kind and outcome."""
    async with (
        ClientSession(headers=server.headers) as session,
        session.get(f"{server.url}/metrics") as response,
    ):
        page = await response.text()
    return Counter(
        {
            f"{one.labels['kind']} {one.labels['outcome']}": int(one.value)
            for family in text_string_to_metric_families(page)
            if family.name == STARTS
            for one in family.samples
            if one.name == f"{STARTS}_total"
        }
    )
