"""Test-controlled counterparts of a gateway: a manager, and replicas' data sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway.data_links import HeldCall, Outcome
from gateway.delivery import Delivery
from gateway.dispatch.dispatcher import Limits
from gateway.ports import ModelControl
from registry.catalog import Deployed
from registry.errors import FnError
from registry.exchange import (
    Demand,
    Endpoints,
    Expected,
    PoolEndpoints,
    ReplicaEndpoint,
    decode_demand,
    encode,
)
from registry.usage import UsageRow
from runtime_image.contract.link import VERSION, Kind
from runtime_image.link.frames import Frame, pack
from runtime_image.link.meta import AnswerMeta, RequestMeta, pack_answer
from runtime_image.link.stream import FrameStream

KEY = "default/digits@1"
META = RequestMeta("application/json", "", -1, "")
ANSWER = pack_answer(AnswerMeta("application/json", 10, 20, 30, 40, 1))


class ListeningManager:
    """Fake `Pools` port that stores the reports it receives, in order."""

    def __init__(self) -> None:
        self.demands: asyncio.Queue[Demand] = asyncio.Queue(1000)
        self.lost: list[str] = []

    def receive_demand(self, data: bytes) -> None:
        """Store a Demand."""
        self.demands.put_nowait(decode_demand(data))

    def worker_lost(self, worker: str) -> None:
        """Store the id of a lost worker."""
        self.lost.append(worker)

    async def heard(self, key: str = KEY) -> Demand:
        """Return the next Demand that contains `key`."""
        while True:
            demand = await self.demands.get()
            if key in demand.revisions:
                return demand


class KnownPast:
    """Fake `Past` port: every cold start on record took `cold_s`."""

    def __init__(self, cold_s: float = 0.0, samples: int = 0) -> None:
        self.cold_s = cold_s
        self.samples = samples
        self.arrivals: list[tuple[str, str]] = []
        self.usage: list[UsageRow] = []

    def expected(self, pool: str) -> Expected:
        """Return the same history for every pool."""
        return Expected(self.cold_s, self.cold_s, self.cold_s, self.samples)

    def arrived(self, namespace: str, name: str, count: int = 1) -> None:
        """Record the called function."""
        self.arrivals += [(namespace, name)] * count

    def used(self, row: UsageRow) -> None:
        """Record the usage of a call."""
        self.usage.append(row)


class KnownModels(ModelControl):
    """Fake port `ModelControl`: loads end at once, with `error` if it is set, unless `is_slow`."""

    def __init__(self) -> None:
        self.loaded: list[tuple[str, float]] = []
        self.unloaded: list[str] = []
        self.left: list[str] = []
        self.error: FnError | None = None
        self.is_slow = False

    async def load(self, deployed: Deployed, wait_s: float) -> None:
        """Record the wait."""
        self.loaded.append((deployed.revision.ref, wait_s))
        try:
            if self.is_slow:
                await asyncio.Event().wait()
        finally:
            self.left.append(deployed.revision.ref)
        if self.error is not None:
            raise self.error

    async def unload(self, deployed: Deployed) -> None:
        """Record the function."""
        self.unloaded.append(deployed.function.name)


class Peer:
    """A replica's data socket. `frames`: frames received from gateways; `lost`: how links ended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.frames: asyncio.Queue[Frame] = asyncio.Queue(1000)
        self.lost: asyncio.Queue[str] = asyncio.Queue(100)
        self._streams: list[FrameStream] = []

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Peer]:
        """Accept links while the block runs."""
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(self._accept, str(self.path))
        try:
            yield self
        finally:
            server.close()
            for stream in self._streams:
                stream.abort("the peer closes")
            await server.wait_closed()
            await asyncio.sleep(0)

    def _accept(self) -> FrameStream:
        stream = FrameStream(self.frames.put_nowait, self.lost.put_nowait, "peer")
        self._streams.append(stream)
        return stream

    async def next(self, kind: Kind) -> Frame:
        """Return the next frame; assert its kind."""
        frame = await self.frames.get()
        assert frame.kind is kind, frame
        return frame

    async def greet(self, link: int = VERSION) -> None:
        """Receive a gateway's HELLO of a link version and answer it."""
        hello = await self.next(Kind.HELLO)
        assert hello.aux == link
        self.send(Kind.HELLO, aux=link)

    def send(self, kind: Kind, id: int = 0, body: bytes = b"", **fields: Any) -> None:
        """Send a frame over the newest link."""
        self._streams[-1].send(pack(kind, id, body, **fields))

    def answer(self, id: int, body: bytes = b"{}", **fields: Any) -> None:
        """Send a well-formed RESPONSE."""
        self.send(Kind.RESPONSE, id, body, **{"meta": ANSWER, **fields})

    def hang_up(self) -> None:
        """Close the newest link, as the replica's death does."""
        self._streams[-1].abort("hung up")

    def endpoint(self, **changes: Any) -> ReplicaEndpoint:
        """Return the manager's endpoint record of this replica."""
        fields: dict[str, Any] = {
            "id": self.path.stem,
            "path": str(self.path),
            "limit": 2,
            "marks_started": True,
            "devices": ("cpu:0",),
            "phases": {"load": 5.0},
        }
        return ReplicaEndpoint(**{**fields, **changes})


class Client:
    """Caller that records the outcomes of its calls in order of arrival."""

    def __init__(self) -> None:
        self.outcomes: asyncio.Queue[Outcome] = asyncio.Queue(100)

    def call(self, body: bytes = b"{}", **changes: Any) -> HeldCall:
        """Return a call with ample wait budget and timeout."""
        now = asyncio.get_running_loop().time()
        fields: dict[str, Any] = {
            "pool": KEY,
            "meta": META,
            "body": body,
            "arrived_s": now,
            "wait_until_s": now + 60,
            "timeout_s": 60.0,
        }
        return HeldCall(**{**fields, **changes}, done=self.outcomes.put_nowait)


@asynccontextmanager
async def delivering(
    manager: ListeningManager, past: KnownPast | None = None, **limits: Any
) -> AsyncIterator[Delivery]:
    """Run a gateway's delivery; it closes with the block."""
    delivery = Delivery(Limits(**limits), "worker", manager, past or KnownPast())
    delivery.open()
    try:
        yield delivery
        assert delivery.balance().missing == 0, "a call is nowhere, or in two places"
    finally:
        await delivery.close()
        await asyncio.sleep(0)


def published(
    *replicas: ReplicaEndpoint, full: bool = False, key: str = KEY, **fields: Any
) -> bytes:
    """Return the manager's Endpoints for one pool."""
    state = "warm" if replicas else "waking"
    shown = PoolEndpoints(list(replicas), **{"state": state, "reason": "test", **fields})
    return encode(Endpoints(1, full, {key: shown}))


def nothing_left() -> bytes:
    """Return the manager's full Endpoints without any pool."""
    return encode(Endpoints(2, True, {}))


def failed(**problem: str) -> bytes:
    """Return the body of a FAILED frame."""
    return json.dumps(problem).encode()
