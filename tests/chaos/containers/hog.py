"""A request whose handler allocates more memory than its container may use."""

from __future__ import annotations

from tests.chaos.calls import client
from tests.chaos.containers.calling import Front
from tests.chaos.ledger import Ledger
from tests.chaos.subjects import Subject

GREED = -1.0
"""First input value that makes the handler allocate. Other requests carry their number there."""
CAP_MIB = 256
CHUNKS = 48
"""Chunks of 64 MiB: more than the container limit, even that of a standby, whose memory is not
limited yet."""
PREDICT = f"""
def predict(inputs, ctx):
    if inputs["x"][0, 0] == {GREED}:
        hoard = [b"x" * (64 << 20) for _ in range({CHUNKS})]
    return {{{{"y": inputs["x"] * {{scale}} + {{offset}}}}}}
"""
LIMITS = f"[device]\nmemory_mib = {CAP_MIB}\n"
HOG = Subject("hog", 19, 23, share=1, handler=True, batching="off", predict=PREDICT, limits=LIMITS)


class Hog:
    """Sender of requests that exceed the memory limit."""

    def __init__(self, front: Front, ledger: Ledger) -> None:
        self._front = front
        self._ledger = ledger
        self._number = 0

    async def eat(self) -> None:
        """Send one such request: only it may fail, with a 502 `poison`."""
        self._number += 1
        # The body differs each time: a body known to kill is refused without a run.
        body = {"inputs": {"x": [[GREED, self._number, 0, 0]]}}
        async with client(self._front.server) as caller:
            answer = await caller.call(HOG.name, body)
        is_poison = answer.status == 502 and answer.problem["code"] == "poison"
        self._ledger.require(is_poison, f"the greedy request got {answer.status} {answer.body!r}")
        self._ledger.figures.setdefault("answer to a greedy request", answer.body.decode())
