"""Functions under load. Each computes its own scale * x + offset, so an answer identifies its
model."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.support import models
from tests.support.caller import Caller
from tests.support.doses import amount

WIDE = 256
"""Columns of the function that takes npy bodies of 8 KiB and more."""
ROWS = 20
JSON = {"Content-Type": "application/json"}
NPY = {"Content-Type": "application/x-npy", "Accept": "application/x-npy"}
MODEL = """schema = 1
model = "affine.onnx"
[scaling]
idle_s = {idle_s}
[batching]
mode = "{batching}"
"""
HANDLER = """schema = 1
[runtime]
engine = "python"
[scaling]
idle_s = {idle_s}
[batching]
mode = "{batching}"
[limits]
retry = "always"
[input.x]
dtype = "FP32"
shape = [-1, 4]
"""
PREDICT = """
import threading

def predict(inputs, ctx):
    threading.Event().wait(0.004)
    return {{"y": inputs["x"] * {scale} + {offset}}}
"""


@dataclass(frozen=True)
class Subject:
    """One function. `share`: relative number of requests. `loops`: iterations of the model's loop,
    about 10 us each. `predict`: handler source; `limits`: further manifest text. Each request
    number gives a unique body."""

    name: str
    scale: int
    offset: int
    share: int
    loops: int = 0
    handler: bool = False
    wide: bool = False
    batching: str = "auto"
    predict: str = PREDICT
    limits: str = ""

    async def deploy(self, caller: Caller, folder: Path, idle_s: float) -> dict[str, Any]:
        """Build and deploy the function; return the operation's result."""
        settings = {"idle_s": idle_s, "batching": self.batching}
        if self.handler:
            text = self.predict.format(scale=self.scale, offset=self.offset)
            files = {"handler.py": text.encode()}
            manifest = HANDLER.format(**settings) + self.limits
            return await caller.deploy(files, name=self.name, manifest=manifest)
        width = WIDE if self.wide else models.WIDTH
        model = models.affine(folder, self.scale, self.offset, width=width, loops=self.loops)
        return await caller.deploy(model, name=self.name, manifest=MODEL.format(**settings))

    def request(self, number: int) -> tuple[bytes, dict[str, str]]:
        """Return the body and headers of request `number`."""
        x = self._input(number)
        if not self.wide:
            return json.dumps({"inputs": {"x": x.tolist()}}).encode(), JSON
        body = io.BytesIO()
        np.save(body, x)
        return body.getvalue(), NPY

    def complaint(self, number: int, body: bytes) -> str:
        """Return what is wrong with the answer to request `number`; "" if it is right."""
        want = self._input(number) * self.scale + self.offset
        try:
            got = self._output(body)
        except (ValueError, KeyError, TypeError) as error:
            return f"no answer: {error!r}"
        if got.shape == want.shape and np.array_equal(got, want):
            return ""
        return f"expected {want.reshape(-1)[:4]}..., got {got.reshape(-1)[:4]}..."

    def _input(self, number: int) -> models.Weights:
        if self.wide:
            return np.arange(number, number + ROWS * WIDE, dtype=np.float32).reshape(ROWS, WIDE)
        return np.array([[number, number % 97, number % 31, 1]], dtype=np.float32)

    def _output(self, body: bytes) -> models.Weights:
        if self.wide:
            loaded: models.Weights = np.load(io.BytesIO(body))
            return loaded
        return np.array(json.loads(body)["outputs"]["y"], dtype=np.float32)


# A trial compares runs for 5 s at most: a run of 3 ms costs a deploy 15 s of CPU, 0.4 ms 4 s.
SUBJECTS = (
    Subject("inline", 2, 3, share=5),
    Subject("slow", 3, 5, share=1, loops=amount(100, 300), batching="off"),
    Subject("handler", 5, 7, share=2, handler=True, batching="off"),
    Subject("batch", 7, 11, share=5, loops=amount(20, 100)),
    Subject("wide", 11, 13, share=3, wide=True),
    Subject("single", 13, 17, share=4, loops=10, batching="off"),
)
"""Ordered so that a small dose gets the most diverse functions."""


def chosen(count: int) -> tuple[Subject, ...]:
    """Return the first `count` functions."""
    if not 1 <= count <= len(SUBJECTS):
        raise ValueError(f"functions: expected 1 to {len(SUBJECTS)}, got {count}")
    return SUBJECTS[:count]
