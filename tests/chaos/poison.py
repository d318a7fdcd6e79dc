"""One request among many that kills its replica on every run."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from tests.chaos.calls import Row, answers, complaint, served, states_until
from tests.chaos.ledger import Ledger

MARK = -424242.0
HANDLER = f"""
import os
import signal

def predict(inputs, ctx):
    if (inputs["x"][:, 0] == {MARK}).any():
        os.kill(os.getpid(), signal.SIGKILL)
    return {{"y": inputs["x"] * 5 + 7}}
"""
MANIFEST = """schema = 1
[runtime]
engine = "python"
[batching]
mode = "{batching}"
[limits]
retry = "always"
[input.x]
dtype = "FP32"
shape = [-1, 4]
"""


async def run(data: Path, seed: int, requests: int = 1000) -> Ledger:
    """All other requests get right answers, the poison gets a 502, the function never fails."""
    ledger = Ledger("one request that kills", {"requests": requests})
    chance = random.Random(seed)
    async with served(data, cpu_slots=2) as (server, caller):
        for batching in ("always", "off"):
            name = f"deadly-{batching}"
            manifest = MANIFEST.format(batching=batching)
            await caller.deploy({"handler.py": HANDLER.encode()}, name=name, manifest=manifest)
            rows: list[Row] = [[float(i), 1.0, 2.0, 3.0] for i in range(requests)]
            culprit = chance.randrange(requests)
            rows[culprit][0] = MARK
            ended = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(states_until(caller, name, ended))
                got = await answers(caller, name, rows)
                ended.set()
            last = got.pop(culprit)
            del rows[culprit]
            wrong = [text for a, r in zip(got, rows, strict=True) if (text := complaint(a, r))]
            for text in wrong:
                ledger.violated(f"{name}: {text}")
            ledger.require(
                last.status == 502 and last.problem["code"] == "poison",
                f"{name}: the request that kills got {last.status} {last.body!r}",
            )
            ledger.require("failing" not in watch.result(), f"{name}: was {watch.result()}")
            ledger.figures[name] = {
                "right": len(got) - len(wrong),
                "poison": last.body.decode("utf-8", "replace"),
                "states": sorted(watch.result()),
            }
        for line in server.complaints:
            ledger.violated(f"the server's log: {line.rstrip()}")
    return ledger
