"""Trial replicas that offer a prepared model, honestly or not."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from runtime_image.contract.link import Kind
from runtime_image.contract.model import PART_MAX, Part
from runtime_image.contract.precision import RULES
from runtime_image.link.frames import Frame, FrameReader, pack
from tests.support.nouns import COLUMN

GRAPH: Final = b"a graph"
WEIGHTS: Final = bytes(range(256)) * 5000
"""Weights slightly larger than one part."""
TIMES: Final = {"load_ms": 1.0, "first_ms": 2.0, "cpu_ms": {"1": 0.5, "8": 2.0}}
DESCRIPTION: Final[dict[str, Any]] = {
    "why_not": "",
    "preparation": {
        "key": "onnx-1/cpu-x",
        "quick": {"file": ".prepared/graph.onnx", "optimise": False, "prepack": False},
        "fast": {"file": "model.onnx", "optimise": True, "prepack": True},
    },
    "sizes": [len(GRAPH), len(WEIGHTS)],
    "original": TIMES,
    "quick": TIMES,
    "fast": TIMES,
}

CANDIDATE: Final = b"candidate"
ROW: Final[dict[str, Any]] = {
    "why_not": "",
    "latency_ms": {"1": 1.0, "8": 4.0},
    "memory_mib": 30.0,
    "file_bytes": len(CANDIDATE),
    "cosine": 0.9995,
    "largest_difference": 0.02,
    "same_label": 0.995,
    "column": COLUMN,
    "batchable": True,
}
"""Measurements of a candidate, as a trial reports them."""

Answer = Callable[[Frame], Iterable[bytes]]
"""Returns the frames for one question; no frames close the connection."""


def description(**changes: Any) -> bytes:
    """Return an honest description with `changes`, which name fields: `preparation__key`."""
    data = copy.deepcopy(DESCRIPTION)
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = data
        for parent in parents:
            place = place[parent]
        place[last] = value
    return json.dumps(data).encode()


def precision_report(**changes: Any) -> dict[str, Any]:
    """Return an honest table with the original and an INT8 candidate, which was chosen."""
    original = {"name": "original", "why_not": "", "latency_ms": {"1": 2.0, "8": 9.0}}
    candidates = [original, {"name": "int8", **copy.deepcopy(ROW)}]
    table = {"chosen": "int8", "candidates": candidates, "tolerance": 0.01, "source": "samples"}
    table["rules"] = RULES
    return {**table, "calibrated": 32, "judged": 200, "size": len(CANDIDATE), **changes}


def frame(kind: Kind, id: int, body: bytes = b"") -> bytes:
    """Return one frame as bytes."""
    return b"".join(bytes(piece) for piece in pack(kind, id, body))


def honest(question: Frame, described: bytes = b"") -> Iterable[bytes]:
    """Return an honest replica's answer."""
    body = {
        Part.DESCRIPTION: described or description(),
        Part.GRAPH: GRAPH,
        Part.WEIGHTS: WEIGHTS,
        Part.OPTIMISED: CANDIDATE,
    }[Part(question.aux)]
    for start in range(0, len(body), PART_MAX):
        yield frame(Kind.PART, question.id, body[start : start + PART_MAX])
    yield frame(Kind.END, question.id)


@asynccontextmanager
async def offering(path: Path, answer: Answer = honest) -> AsyncIterator[list[Frame]]:
    """Run a trial replica that listens at `path`; yield the questions received."""
    questions: list[Frame] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader()
        try:
            while data := await reader.read(65536):
                frames.buffer()[: len(data)] = data
                for question in frames.received(len(data)):
                    questions.append(question)
                    pieces = list(answer(question))
                    writer.writelines(pieces)
                    await writer.drain()
                    if not pieces:
                        return
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_unix_server(serve, str(path))
    try:
        yield questions
    finally:
        server.close()
        await server.wait_closed()
