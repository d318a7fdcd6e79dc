"""One request of a full batch that runs into the execution timeout."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.chaos.calls import OFFSET, SCALE, Row, answers, complaint, served
from tests.chaos.ledger import Ledger
from tests.support import models
from tests.support.caller import Caller

BATCH = 8
LATE = 8_000_000.0
"""Iterations of the model's loop: more than a minute."""
LIMITS = f"""
[batching]
mode = "always"
max_size = {BATCH}
wait_ms = 1000
[limits]
timeout_s = {{timeout_s}}
retry = "always"
"""
MODEL = f'schema = 1\nmodel = "affine_by_input.onnx"\n{LIMITS}'
THREAD = f"{MODEL}[sample]\nx = [[300, 0, 0, 0]]\n"
"""Manifest with a sample that takes milliseconds, so that runs go to the worker thread."""
HANDLER = f"""
import threading

def predict(inputs, ctx):
    if (inputs["x"][:, 0] == {LATE}).any():
        threading.Event().wait(60)
    return {{"y": inputs["x"] * {SCALE} + {OFFSET}}}
"""
PYTHON = f"""schema = 1
[runtime]
engine = "python"
{LIMITS}
[input.x]
dtype = "FP32"
shape = [-1, 4]
"""


async def run(data: Path, rounds: Sequence[tuple[float, int]] = ((0.5, 5), (6.0, 1))) -> Ledger:
    """Run batches with one late request. It must get a 504, the rest of its batch right answers.
    Covers a model that runs in the worker thread, one with a sample so short that it runs inline,
    and a Python handler.

    `rounds`: pairs of execution timeout in seconds and number of rounds. A timeout above 5 s shows
    whether the rest of the batch gets a run of its own after the late request used up two timeouts.
    """
    ledger = Ledger("one late request in a full batch", {"rounds": rounds})
    async with served(data, cpu_slots=2) as (server, caller):
        model = models.affine_by_input(data, SCALE, OFFSET)
        handler = {"handler.py": HANDLER.encode()}
        kinds: list[tuple[str, Path | Mapping[str, bytes], str]] = [
            ("thread", model, THREAD),
            ("inline", model, MODEL),
            ("handler", handler, PYTHON),
        ]
        for timeout_s, count in rounds:
            for kind, source, manifest in kinds:
                name = f"{kind}-{timeout_s * 1000:.0f}"
                text = manifest.format(timeout_s=timeout_s)
                deployed = await caller.deploy(source, name=name, manifest=text)
                size = deployed["batch_max"]
                ledger.require(size >= BATCH, f"{name}: batches of {size}, which are too small")
                took_s = [await _round(caller, name, number, ledger) for number in range(count)]
                ledger.figures[name] = f"seconds of each round: {took_s}"
        for line in server.complaints:
            ledger.violated(f"the server's log: {line.rstrip()}")
    return ledger


async def _round(caller: Caller, name: str, number: int, ledger: Ledger) -> float:
    """Send one full batch whose late request is at another index in each round. The function is
    warm; a batch from the queue of a cold function would test the same."""
    [warm] = await answers(caller, name, [[1.0, 0.0, 0.0, 0.0]])
    ledger.require(warm.status == 200, f"{name}: {warm.status} {warm.body!r}")
    rows: list[Row] = [[float(i), 1.0, 2.0, float(number)] for i in range(BATCH)]
    rows[number % BATCH][0] = LATE
    began = time.monotonic()
    got = await answers(caller, name, rows)
    for answer, row in zip(got, rows, strict=True):
        if row[0] == LATE:
            ledger.require(
                answer.status == 504 and answer.problem["code"] == "execution_timeout",
                f"{name}: the late request got {answer.status} {answer.body!r}",
            )
        elif text := complaint(answer, row):
            ledger.violated(f"{name}: {text}")
    return round(time.monotonic() - began, 2)
