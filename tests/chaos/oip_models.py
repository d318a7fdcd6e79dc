"""Many models on few slots, loaded and unloaded by two clients at once while others call them; and
a crowd of clients at a cold model. Everything by the Open Inference Protocol."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from tests.chaos.footprint import pause, until
from tests.chaos.ledger import Ledger
from tests.support import models
from tests.support.process_server import ServerProcess, server_process

WORKERS = 2
AT_ONCE = 3
"""Deployments at once."""
TIMEOUT_S = 120.0
AGAIN_S = 0.1
NAMED = {429: {"queue_full"}, 503: {"no_room", "wait_budget_over"}}
"""Codes of refusals that clients may get while models move. Each carries Retry-After."""
NAMED_CODES = {"StatusCode.RESOURCE_EXHAUSTED", "StatusCode.UNAVAILABLE"}
"""The same over gRPC."""
FORMS = ("JSON", "binary", "gRPC")
KINDS = ("load", "unload", *(f"right, {form}" for form in FORMS))
"""Kinds of events; a result is valid if each has happened."""
UNIT = "/v2/models/{}/infer"
CONTROL = "/v2/repository/models/{}/{}"


@dataclass(frozen=True)
class Dose:
    """Parameters of a run. `think_s`: bounds of the pause of a caller and of a controller."""

    seed: int
    seconds: float = 300.0
    models: int = 20
    slots: int = 4
    callers: int = 32
    controllers: int = 2
    think_s: tuple[float, float] = (0.0, 0.02)
    control_s: tuple[float, float] = (0.0, 0.2)


@dataclass
class Scene:
    """One server, and what its clients got. `grpc`: an asynchronous client of Triton."""

    server: ServerProcess
    grpc: Any
    dose: Dose
    ledger: Ledger
    counts: Counter[str] = field(default_factory=Counter)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def names(self) -> list[str]:
        """Names of the models."""
        return [f"model-{place}" for place in range(self.dose.models)]

    async def has_all(self) -> bool:
        """Return whether everything happened that must."""
        return all(self.counts[kind] for kind in KINDS)

    async def call_on(self, session: aiohttp.ClientSession, numbers: Iterator[int]) -> None:
        """Call random models until the end."""
        chance = random.Random(f"{self.dose.seed}/{next(numbers)}")
        while not self.ended.is_set():
            await pause(chance.uniform(*self.dose.think_s))
            await self.call(session, next(numbers), chance.randrange(self.dose.models), chance)

    async def call(
        self, session: aiohttp.ClientSession, number: int, place: int, chance: random.Random
    ) -> bool:
        """Make one call in any form; return whether its answer was right."""
        value, form = number % 100_000, chance.choice(FORMS)
        what = f"#{number}: {form}"
        if form == "gRPC":
            got = await self._infer(what, self.names[place], value)
        else:
            body, fields = _request(value, is_binary=form == "binary")
            url = f"{self.server.url}{UNIT.format(self.names[place])}"
            answer = await self._send(session, what, url, body, fields)
            got = None if answer is None else _first(answer, is_binary=form == "binary")
        if got is None:
            return False
        if got != factor(place) * value + place:
            self.ledger.violated(f"{what}: wrong: x = {value} of model {place}: {got}")
        self.counts[f"right, {form}"] += 1
        return True

    async def control_on(self, session: aiohttp.ClientSession, place: int) -> None:
        """Load and unload random models until the end: every other controller over gRPC."""
        chance = random.Random(f"{self.dose.seed}/controller {place}")
        first = iter(("unload", "load"))
        while not self.ended.is_set():
            await pause(chance.uniform(*self.dose.control_s))
            verb = next(first, "") or chance.choice(("load", "load", "unload"))
            name = chance.choice(self.names)
            if place % 2:
                controls = {"load": self.grpc.load_model, "unload": self.grpc.unload_model}
                is_done = await self._grpc(f"{verb} of {name}", controls[verb], name)
            else:
                url = f"{self.server.url}{CONTROL.format(name, verb)}"
                answer = await self._send(session, f"{verb} of {name}", url, b"", {})
                is_done = answer is not None
                self.ledger.require(not answer, f"{verb} of {name}: {answer!r:.200}")
            self.counts[verb] += is_done

    async def _infer(self, what: str, name: str, value: int) -> float | None:
        """Return the first element of an answer over gRPC."""
        kind = importlib.import_module("tritonclient.grpc")
        tensor = kind.InferInput("x", [1, 4], "FP32")
        tensor.set_data_from_numpy(np.array([[value, 0, 0, 0]], np.float32))
        found: list[Any] = []

        async def infer(name: str) -> None:
            found.append(await self.grpc.infer(name, [tensor], client_timeout=TIMEOUT_S))

        if not await self._grpc(what, infer, name):
            return None
        return float(found[0].as_numpy("y")[0][0])

    async def _grpc(self, what: str, call: Callable[[str], Awaitable[None]], name: str) -> bool:
        """Make a call over gRPC; return False for a refusal by the rules or a violation."""
        failed: type[Exception] = importlib.import_module(
            "tritonclient.utils"
        ).InferenceServerException
        try:
            await call(name)
        except failed as error:
            code = str(error.status())  # type: ignore[attr-defined]  # of tritonclient
            self.counts[code] += 1
            if code not in NAMED_CODES:
                self.ledger.violated(f"{what}: {code}: {error!s:.300}")
            await pause(AGAIN_S)
            return False
        return True

    async def _send(
        self,
        session: aiohttp.ClientSession,
        what: str,
        url: str,
        body: bytes,
        fields: dict[str, str],
    ) -> bytes | None:
        """Return the body of a success, None for a refusal by the rules or a violation."""
        began = time.monotonic()
        try:
            async with session.post(url, data=body, headers=fields) as response:
                data = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            taken_s = time.monotonic() - began
            self.ledger.violated(f"{what}: {error!r} after {taken_s:.1f} s")
            return None
        if response.status == 200:
            return data
        code = response.headers.get("Fn-Problem", "")
        self.counts[f"{response.status} {code}"] += 1
        if code not in NAMED.get(response.status, ()) or not _is_error(data):
            self.ledger.violated(f"{what}: {response.status} {code}: {data[:300]!r}")
        elif "Retry-After" not in response.headers:
            self.ledger.violated(f"{what}: {response.status} {code} without Retry-After")
        await pause(AGAIN_S)
        return None


def factor(place: int) -> int:
    """Return the factor of a model; each has its own."""
    return 3 + place


def _request(value: int, *, is_binary: bool) -> tuple[bytes, dict[str, str]]:
    tensor: dict[str, Any] = {"name": "x", "shape": [1, 4], "datatype": "FP32"}
    if not is_binary:
        return json.dumps({"inputs": [{**tensor, "data": [value, 0, 0, 0]}]}).encode(), {}
    raw = struct.pack("<4f", value, 0, 0, 0)
    sized = {**tensor, "parameters": {"binary_data_size": len(raw)}}
    head = json.dumps({"inputs": [sized], "parameters": {"binary_data_output": True}}).encode()
    return head + raw, {"Inference-Header-Content-Length": str(len(head))}


def _first(answer: bytes, *, is_binary: bool) -> float:
    """Return the first element of an answer."""
    if is_binary:
        [got, *_] = struct.unpack("<4f", answer[-16:])
        return float(got)
    return float(json.loads(answer)["outputs"][0]["data"][0])


def _is_error(data: bytes) -> bool:
    """Whether a body is the protocol's error object."""
    try:
        document = json.loads(data)
    except ValueError:
        return False
    return list(document) == ["error"] and bool(document["error"])


def deploy_all(server: ServerProcess, folder: Path, count: int) -> None:
    """Deploy the models."""

    def deploy(place: int) -> None:
        own = folder / f"model-{place}"
        own.mkdir()
        model = models.affine(own, factor(place), place)
        server.fnctl_json("deploy", str(model), "--name", own.name)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(deploy, range(count)))


async def run(data: Path, dose: Dose) -> Ledger:
    """While models move, every answer is right or a refusal that the contract names; afterwards
    every model answers."""
    figures = {"seed": dose.seed, "models": dose.models, "slots": dose.slots}
    ledger = Ledger("models are loaded and unloaded under load", figures)
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = str(reserved.getsockname()[1])
    options = ("--workers", str(WORKERS), "--cpu-slots", str(dose.slots), "--grpc-port", port)
    with server_process(data / "data", *options) as server:
        deploy_all(server, data, dose.models)
        triton = importlib.import_module("tritonclient.grpc.aio")
        async with triton.InferenceServerClient(f"127.0.0.1:{port}") as grpc:
            scene = Scene(server, grpc, dose, ledger)
            await _play(scene)
        for line in server.complaints:
            ledger.violated(f"the server's log: {line.rstrip()}")
    ledger.require(not server.replica_pids(), "replicas are left")
    for kind in KINDS:
        ledger.require(scene.counts[kind] > 0, f"nothing happened: {kind}")
    ledger.figures |= dict(sorted(scene.counts.items()))
    return ledger


async def _play(scene: Scene) -> None:
    """Call, load and unload for the time of the dose; then call every model once."""
    dose, numbers = scene.dose, itertools.count()
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0)
    headers = {**scene.server.headers, "Content-Type": "application/octet-stream"}
    async with aiohttp.ClientSession(
        timeout=timeout, connector=connector, headers=headers
    ) as session:
        async with asyncio.TaskGroup() as group:
            for _ in range(dose.callers):
                group.create_task(scene.call_on(session, numbers))
            for place in range(dose.controllers):
                group.create_task(scene.control_on(session, place))
            await pause(dose.seconds)
            # On a busy machine, a small dose may be over before the first load is.
            await until(scene.has_all, TIMEOUT_S)
            scene.ended.set()
        chance = random.Random(dose.seed)
        for place in range(dose.models):
            is_right = await scene.call(session, next(numbers), place, chance)
            scene.ledger.require(is_right, f"model {place} does not answer after the load")
