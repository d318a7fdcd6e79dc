"""One request whose handler takes more memory than its container may have."""

from __future__ import annotations

from tests.chaos.calls import client
from tests.chaos.containers.calling import Front
from tests.chaos.ledger import Ledger
from tests.chaos.subjects import Subject

GREED = -1.0
"""In the first place of an input; the others' are numbers of requests."""
CAP_MIB = 256
CHUNKS = 48
"""Of 64 MiB each: more than even a standby may have, whose limit is not set yet."""
PREDICT = f"""
def predict(inputs, ctx):
    if inputs["x"][0, 0] == {GREED}:
        hoard = [b"x" * (64 << 20) for _ in range({CHUNKS})]
    return {{{{"y": inputs["x"] * {{scale}} + {{offset}}}}}}
"""
LIMITS = f"[device]\nmemory_mib = {CAP_MIB}\n"
HOG = Subject("hog", 19, 23, share=1, handler=True, batching="off", predict=PREDICT, limits=LIMITS)


class Hog:
    """Asks for too much, time and again."""

    def __init__(self, front: Front, ledger: Ledger) -> None:
        self._front = front
        self._ledger = ledger
        self._number = 0

    async def eat(self) -> None:
        """It alone gets 502, and is told why."""
        self._number += 1
        # Another body each time: one that is known to kill is refused without a try.
        body = {"inputs": {"x": [[GREED, self._number, 0, 0]]}}
        async with client(self._front.server) as caller:
            answer = await caller.call(HOG.name, body)
        is_poison = answer.status == 502 and answer.problem["code"] == "poison"
        self._ledger.require(is_poison, f"the greedy request got {answer.status} {answer.body!r}")
        self._ledger.figures.setdefault("what a greedy request is told", answer.body.decode())
