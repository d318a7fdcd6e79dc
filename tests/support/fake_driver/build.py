"""Data plane of a fake build: answers FETCH with a compiled model that is none."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Final

from runtime_image.contract.compiled import (
    COMPILED_PART,
    TIMING_CACHE,
    BuildDescribed,
    BuildOrder,
    CompiledFile,
    CompiledModel,
)
from runtime_image.contract.link import Kind
from runtime_image.contract.model import ModelSpec, Part
from runtime_image.link.frames import Frame, FrameReader, LinkError, pack

KEY: Final = "fake/cpu"
"""Key of every compiled model of the fake driver."""
FETCH_MAX: Final = 1024


class FakeBuild:
    """Compiles a model to two small files: `work` is awaited before the description is sent, and
    `refusal` is the reason why there is no compiled model, "" for none."""

    def __init__(
        self,
        listener: socket.socket,
        spec: ModelSpec,
        *,
        work: Callable[[], Awaitable[None]],
        refusal: str,
    ) -> None:
        self._listener = listener
        self._work = work
        model = f"{spec.revision} compiled".encode()
        self._files = {"model_ctx.onnx": model, TIMING_CACHE: b"timings"}
        self._described = self._describe(spec.build, refusal)

    def _describe(self, order: BuildOrder | None, refusal: str) -> BuildDescribed:
        if order is None or refusal:
            return {"why_not": refusal or "there is nothing to compile"}
        files = tuple(
            CompiledFile(name, len(data), hashlib.sha256(data).hexdigest())
            for name, data in self._files.items()
        )
        compiled = CompiledModel(
            KEY, order.compiler, "context", files, order.ranges, order.keeps_ordinary
        )
        return {
            "why_not": "",
            "compiled": asdict(compiled),
            "timing_key": KEY,
            "parity": [
                {
                    "output": "y",
                    "largest_difference": 0.0,
                    "relative_difference": 0.0,
                    "cosine": 1.0,
                }
            ],
            "samples": 1,
            "build_s": order.delay_s,
            "ordinary_ms": {"1": 2.0},
            "compiled_ms": {"1": 1.0},
            "load_ms": 1.0,
            "memory_mib": 16.0,
        }

    async def serve(self) -> None:
        """Answer one connection until it ends. Raises LinkError, OSError."""
        loop = asyncio.get_running_loop()
        sock, _ = await loop.sock_accept(self._listener)
        with sock:
            sock.setblocking(False)
            reader = FrameReader(FETCH_MAX)
            while count := await loop.sock_recv_into(sock, reader.buffer()):
                for frame in reader.received(count):
                    body = await self._answer(frame)
                    pieces = [*pack(Kind.PART, frame.id, body), *pack(Kind.END, frame.id)]
                    await loop.sock_sendall(sock, b"".join(pieces))

    async def _answer(self, frame: Frame) -> bytes:
        if frame.aux == Part.DESCRIPTION:
            await self._work()
            return json.dumps(self._described).encode()
        number = frame.aux - COMPILED_PART
        if frame.kind is not Kind.FETCH or not 0 <= number < len(self._files):
            raise LinkError(f"there is no part {frame.aux}")
        return list(self._files.values())[number]
