"""Load of gRPC calls: repeats one message on many connections, and measures its time.

`python -m benchmarks.loading.grpc_calls PLAN.json` prints one line of JSON, see `Loaded`. Messages
are written and kept as bytes, so that the load costs as little as Python's gRPC allows.
"""

from __future__ import annotations

import asyncio
import sys
import time
from array import array
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio

from benchmarks.loading.call import Loaded
from benchmarks.loading.generator import Refused, execute, planned
from benchmarks.measuring.record import percentile

METHOD = "/inference.GRPCInferenceService/ModelInfer"
GRACE_S = 30.0
CALL_S = 20.0
OPTIONS = (("grpc.use_local_subchannel_pool", 1),)
"""Every channel gets a connection of its own."""


@dataclass(frozen=True, slots=True)
class Calls:
    """A load: `connections` with one call at a time each, for `seconds`. `message` is hexadecimal,
    because a plan is JSON."""

    port: int
    message: str
    connections: int
    seconds: float
    metadata: Mapping[str, str] = field(default_factory=dict)


def infer_request(model: str, name: str, shape: Sequence[int], datatype: str, raw: bytes) -> bytes:
    """Encode a ModelInferRequest with one tensor (Protocol Buffers' wire format)."""
    tensor = _text(1, name) + _text(2, datatype) + _field(3, b"".join(map(_varint, shape)))
    return _text(1, model) + _field(5, tensor) + _field(7, raw)


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode())


def _field(number: int, data: bytes) -> bytes:
    """Encode a field of the wire type LEN."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


async def load(plan: Calls) -> Loaded:
    """Call until the time is over. Raises grpc.aio.AioRpcError for an answer that is an error."""
    target, message = f"127.0.0.1:{plan.port}", bytes.fromhex(plan.message)
    metadata = tuple(plan.metadata.items())
    times_ms: array[float] = array("d")

    async def call_on() -> None:
        async with grpc.aio.insecure_channel(target, options=OPTIONS) as channel:
            infer = channel.unary_unary(METHOD)
            await infer(message, metadata=metadata, timeout=CALL_S)
            ready.release()
            await begun.wait()
            while (now := time.perf_counter()) < until_s:
                await infer(message, metadata=metadata, timeout=CALL_S)
                times_ms.append((time.perf_counter() - now) * 1e3)

    ready, begun, until_s = asyncio.Semaphore(0), asyncio.Event(), 0.0
    async with asyncio.timeout(plan.seconds + GRACE_S), asyncio.TaskGroup() as group:
        for _ in range(plan.connections):
            group.create_task(call_on())
        for _ in range(plan.connections):
            await ready.acquire()
        began = time.perf_counter()
        until_s = began + plan.seconds
        begun.set()
    taken_s = time.perf_counter() - began
    found = sorted(times_ms)
    return Loaded(len(found), taken_s, percentile(found, 0.5), percentile(found, 0.99), 0)


def run(plan: Calls, cores: Set[int]) -> Loaded:
    """Run a load in a process of its own. Raises Refused for an answer that is an error."""
    with planned(plan, cores) as process:
        output, complaint = process.communicate(timeout=plan.seconds + 2 * GRACE_S)
    if process.returncode:
        raise Refused(f"the calls ended with {process.returncode}: {complaint[-500:]}")
    return Loaded.from_json(output)


if __name__ == "__main__":
    execute(Path(sys.argv[1]), Calls, load)
