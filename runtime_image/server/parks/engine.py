"""The calls to an engine that sleeps and wakes, and the samples before and after. All block.

Nothing is believed of an engine's 200 alone: `check`, where there is one, must agree, and the
samples must be right.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from runtime_image.contract.parks import IS_SLEEPING, ParkHooks
from runtime_image.contract.samples import (
    GoldenRule,
    GoldenSample,
    SampleRequest,
    SampleVerdict,
)
from runtime_image.server.connecting import Server
from runtime_image.server.golden_asks import asked

DONE: Final = range(200, 300)
"""Statuses of an engine that did what it was told."""
CHECK_PAUSE_S: Final = 0.25
"""Seconds between two checks of an engine that answers before it sleeps, or is awake."""
CHECK_BODY_MAX: Final = 4096
"""Max bytes of the answer to a check."""
SHOWN_MAX: Final = 200
"""Max characters of an answer in a problem."""
GENERATED: Final = frozenset({GoldenRule.LOGPROBS, GoldenRule.TEXT})
"""Rules of answers that a model generates from a prompt; a long prompt is compared by them, too."""


class ParkFailed(Exception):
    """An engine did not do what it was told; the text says what was expected and what came."""


class ParkedEngine(NamedTuple):
    """A server as the thread uses it."""

    hooks: ParkHooks
    """The calls that put it to sleep and wake it."""
    server: Server
    """Its address."""
    folder: Path
    """The files of its bundle."""
    golden: GoldenSample
    """The sample that it has to answer right, before a sleep and after it."""

    @property
    def why_not(self) -> str:
        """Why it must not be parked where it is, "" if it may be."""
        if self.hooks.is_private and self.server.is_shared:
            return "other users of this host can reach the engine's port, and its control calls"
        return ""


def samples_before(
    engine: ParkedEngine, prefix: GoldenSample | None, most_s: float
) -> GoldenSample | None:
    """Ask the golden sample and the long prompt before a sleep, so that the cache of prefixes has
    both; return the long prompt with its answer, None if there is none. Raises ParkFailed: what is
    wrong before a sleep proves nothing after it."""
    _ask(engine, engine.golden, most_s, "before the sleep")
    if prefix is None:
        return _prefix(engine, most_s)
    _ask(engine, prefix, most_s, "before the sleep")
    return prefix


def samples_after(engine: ParkedEngine, prefix: GoldenSample | None, most_s: float) -> float:
    """Ask the same after a wake; return the milliseconds. Raises ParkFailed."""
    took_ms = _ask(engine, engine.golden, most_s, "after the wake")
    if prefix is not None:
        took_ms += _ask(engine, prefix, most_s, "after the wake, with a prompt that was cached")
    return took_ms


def _ask(engine: ParkedEngine, sample: GoldenSample, most_s: float, when: str) -> float:
    found = asked(sample, engine.server, engine.folder, waits=False, limit_s=most_s)
    if found["verdict"] != SampleVerdict.RIGHT:
        verdict = SampleVerdict(found["verdict"]).replace("_", " ")
        raise ParkFailed(f"the golden sample {when}: {verdict}: {found['reason']}")
    return found["ms"]


def _prefix(engine: ParkedEngine, most_s: float) -> GoldenSample | None:
    """Learn the long prompt's answer from a first ask. Raises ParkFailed."""
    from runtime_image.server.asking import SampleError, ask
    from runtime_image.server.golden.requests import prefix_request
    from runtime_image.server.golden.rules import LOGPROB_LEAST, kept, rule_of

    golden = engine.golden
    request = prefix_request(golden.request) if golden.rule in GENERATED else None
    if request is None:
        return None
    try:
        answer, ms = ask(request, engine.server, engine.folder, max(most_s, golden.limit_s))
    except SampleError as error:
        raise ParkFailed(f"the long sample before the sleep: {error}") from error
    if answer.status != golden.answer.status or rule_of([answer]) is not golden.rule:
        got = f"status {answer.status}, to compare by {rule_of([answer])}"
        wanted = f"status {golden.answer.status}, to compare by {golden.rule}"
        raise ParkFailed(f"the long sample before the sleep: expected {wanted}, got {got}")
    tolerance = max(LOGPROB_LEAST, golden.token_tolerance)
    found = replace(golden, request=request, answer=kept(golden.rule, answer), usual_ms=ms)
    return replace(found, prompt_tolerance=tolerance, token_tolerance=tolerance)


def sleep(engine: ParkedEngine, most_s: float) -> float:
    """Put an engine to sleep; return the milliseconds. Raises ParkFailed."""
    return _turn(engine, engine.hooks.sleep, most_s, is_asleep=True)


def wake(engine: ParkedEngine, most_s: float) -> float:
    """Wake an engine; return the milliseconds. Raises ParkFailed."""
    return _turn(engine, engine.hooks.wake, most_s, is_asleep=False)


def _turn(engine: ParkedEngine, call: SampleRequest, most_s: float, *, is_asleep: bool) -> float:
    began = time.monotonic()
    until = began + most_s
    _call(engine, call, most_s)
    check = engine.hooks.check
    while check is not None and _is_sleeping(engine, check, until) is not is_asleep:
        left_s = until - time.monotonic()
        if left_s <= CHECK_PAUSE_S:
            wanted = "true" if is_asleep else "false"
            raise ParkFailed(
                f"{_name(check)}: expected {IS_SLEEPING} {wanted} within {most_s:.3g} s after"
                f" {_name(call)}, got the contrary"
            )
        time.sleep(CHECK_PAUSE_S)
    return (time.monotonic() - began) * 1e3


def _is_sleeping(engine: ParkedEngine, check: SampleRequest, until: float) -> bool:
    body = _call(engine, check, max(CHECK_PAUSE_S, until - time.monotonic()))
    found: Any = None
    if len(body) <= CHECK_BODY_MAX:
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
    value = found.get(IS_SLEEPING) if isinstance(found, dict) else None
    if not isinstance(value, bool):
        raise ParkFailed(
            f"{_name(check)}: expected {IS_SLEEPING} true or false, got {_shown(body)}"
        )
    return value


def _call(engine: ParkedEngine, call: SampleRequest, most_s: float) -> bytes:
    """Return the body of an answer with a status of DONE. Raises ParkFailed."""
    from runtime_image.server.asking import SampleError, exchange  # slow to import

    try:
        found = exchange(call, engine.server, engine.folder, most_s)
    except SampleError as error:
        raise ParkFailed(str(error)) from error
    if found.status not in DONE:
        got = f"{found.status} {_shown(found.body)}".strip()
        raise ParkFailed(f"{_name(call)}: expected a status from 200 to 299, got {got}")
    return found.body


def _name(call: SampleRequest) -> str:
    return f"{call.method} {call.path}"


def _shown(body: bytes) -> str:
    text = body[: 4 * SHOWN_MAX].decode("utf-8", "replace")
    return "".join(one if one.isprintable() else " " for one in text)[:SHOWN_MAX].strip()
