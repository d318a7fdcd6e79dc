"""Asks of a server that serves: whether it still answers its golden sample right.

An ask takes no slot and counts as no use. It runs in a thread, so that exchanges and PINGs go on
while a server hangs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from runtime_image.contract.samples import (
    REASON_MAX,
    GoldenRule,
    GoldenSample,
    Sampled,
    SampleVerdict,
)
from runtime_image.replica.loop import Loop
from runtime_image.server.connecting import Server

REFUSED_FOR_NOW: Final = frozenset({429, 503})
"""Statuses of a server that has too much to do: they say nothing about its answers."""


def outcome(verdict: SampleVerdict, reason: str = "", ms: float = 0.0) -> Sampled:
    """Return the body of SAMPLED."""
    return {"verdict": verdict, "ms": round(ms, 3), "reason": reason[:REASON_MAX]}


class GoldenAsks:
    """Asks of one server, one at a time."""

    def __init__(
        self, loop: Loop, sample: GoldenSample | None, server: Server, folder: Path
    ) -> None:
        """`folder` has the files of the bundle."""
        self._loop = loop
        self._sample = sample
        self._server = server
        self._folder = folder
        self.is_asking = False
        """Whether the sample is being asked."""

    def begin(self, done: Callable[[Sampled], None], *, waits: bool) -> None:
        """Ask once; `done` is called in the loop's thread. `waits`: the server has one slot, which
        is taken, so that no answer in time says nothing."""
        if self._sample is None:
            done(outcome(SampleVerdict.NONE, "it has no golden sample"))
        elif self.is_asking:
            done(outcome(SampleVerdict.NONE, "its golden sample is being asked"))
        else:
            self.is_asking = True
            work = partial(self._work, self._sample, done, waits=waits)
            threading.Thread(target=work, name="golden sample", daemon=True).start()

    def _work(self, sample: GoldenSample, done: Callable[[Sampled], None], *, waits: bool) -> None:
        try:
            found = asked(sample, self._server, self._folder, waits=waits)
        except Exception as error:  # noqa: BLE001 - a thread's error would be lost
            found = outcome(SampleVerdict.NONE, f"it could not be asked: {error!r}")
        self._loop.post(partial(self._over, found, done))

    def _over(self, found: Sampled, done: Callable[[Sampled], None]) -> None:
        self.is_asking = False
        done(found)


def asked(
    sample: GoldenSample, server: Server, folder: Path, *, waits: bool, limit_s: float = 0.0
) -> Sampled:
    """Ask a golden sample, and compare the answer. Blocks, at most twice the sample's limit, or
    `limit_s` if that is longer. Text is wrong if it is another one twice: of two words that are as
    likely, either may come."""
    # Their imports take as long as a start.
    from runtime_image.server.asking import SampleError, ask
    from runtime_image.server.golden.rules import differs

    reason, ms = "", 0.0
    for _ in range(2 if sample.rule is GoldenRule.TEXT else 1):
        try:
            most_s = max(limit_s, sample.limit_s)
            answer, ms = ask(sample.request, server, folder, most_s)
        except SampleError as error:
            verdict = SampleVerdict.NONE if waits else SampleVerdict.NO_ANSWER
            return outcome(verdict, f"{error}{', behind a busy slot' if waits else ''}")
        if answer.status in REFUSED_FOR_NOW and answer.status != sample.answer.status:
            return outcome(SampleVerdict.NONE, f"the server answered {answer.status}", ms)
        reason = differs(sample, answer)
        if not reason:
            return outcome(SampleVerdict.RIGHT, "", ms)
    return outcome(SampleVerdict.WRONG, reason, ms)
