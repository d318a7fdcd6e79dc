"""Parks of one server: its engine is put to sleep and woken, samples are asked before and after.

Nothing is believed of an engine's 200 alone: `check`, where there is one, must agree, the manager
reads what the processes still hold of their GPUs, and no exchange is opened after a wake before the
server has answered its golden samples right. Calls and samples run in a thread, so that PINGs are
answered meanwhile; one command at a time.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from runtime_image.contract.parks import (
    AFTER,
    DURING,
    IS_SLEEPING,
    Life,
    LifeCommand,
    LifeState,
    ParkHooks,
    life_of,
)
from runtime_image.contract.samples import (
    GoldenRule,
    GoldenSample,
    SampleRequest,
    SampleVerdict,
)
from runtime_image.replica.loop import Loop
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


class Refused(Exception):
    """An engine did not do what it was told; the text says what was expected and what came."""


class Engine(NamedTuple):
    """A server as the thread uses it."""

    hooks: ParkHooks
    server: Server
    folder: Path
    """The files of its bundle."""
    golden: GoldenSample


class Parking:
    """The life of one server that can be parked. Runs in the sidecar's loop."""

    def __init__(
        self,
        loop: Loop,
        engine: Engine,
        *,
        rest: Callable[[], None],
        serve: Callable[[], None],
        tell: Callable[[Life], None],
    ) -> None:
        """`rest` is called when the server is about to sleep, `serve` when exchanges may be opened
        again, `tell` with what becomes of each command."""
        self._loop = loop
        self._engine = engine
        self._rest = rest
        self._serve = serve
        self._tell = tell
        self.state = LifeState.READY
        self._command: LifeCommand | None = None
        """What is being carried out."""
        self._last: Life | None = None
        """What became of the command before."""
        self._prefix: GoldenSample | None = None
        """The long prompt, with its answer before the first park."""

    def why_not(self) -> str:
        """Return why the server must not be parked where it is, "" if it may be."""
        if self._engine.hooks.is_private and self._engine.server.is_shared:
            return "other users of this host can reach the engine's port, and its control calls"
        return ""

    def park(self, limit_s: float) -> None:
        """Ask the samples and put the engine to sleep: no exchange is open, and none is opened.
        `limit_s` is the longest that a call to the engine may take."""
        self._begin(LifeCommand.PARK, LifeState.READY, limit_s)

    def unpark(self, limit_s: float) -> None:
        """Wake the engine."""
        self._begin(LifeCommand.UNPARK, LifeState.PARKED, limit_s)

    def verify(self, limit_s: float) -> None:
        """Ask the samples; each may take `limit_s`. Exchanges are opened after right answers."""
        self._begin(LifeCommand.VERIFY, LifeState.VERIFYING, limit_s)

    def _begin(self, command: LifeCommand, before: LifeState, limit_s: float) -> None:
        """Begin what a command says, unless it was told before: a manager that has lost its link,
        or a new one, tells the command again that belongs to the life in HELLO."""
        if self._command is not None:
            return
        if self.state is not before or (self._last and self._last["problem"]):
            if self._last is not None:
                self._tell(self._last)
            return
        self._command, self.state = command, DURING[command]
        if command is LifeCommand.PARK:
            self._rest()
        work = partial(self._work, command, limit_s)
        threading.Thread(target=work, name=str(command), daemon=True).start()

    def _work(self, command: LifeCommand, limit_s: float) -> None:
        problem, took_ms, prefix = "", 0.0, self._prefix
        try:
            if command is LifeCommand.PARK:
                prefix = samples_before(self._engine, prefix, limit_s)
                took_ms = sleep(self._engine, limit_s)
            elif command is LifeCommand.UNPARK:
                took_ms = wake(self._engine, limit_s)
            else:
                took_ms = samples_after(self._engine, prefix, limit_s)
        except Refused as refused:
            problem = str(refused)
        except Exception as error:  # noqa: BLE001 - a thread's error would be lost
            problem = f"it could not be done: {error!r}"
        self._loop.post(partial(self._over, command, problem, took_ms, prefix))

    def _over(
        self, command: LifeCommand, problem: str, took_ms: float, prefix: GoldenSample | None
    ) -> None:
        self._command, self._prefix = None, prefix
        self._last = life_of(command, problem, took_ms)
        if not problem:
            self.state = AFTER[command]
        if self.state is LifeState.READY:
            self._serve()
        self._tell(self._last)


# In the thread


def samples_before(
    engine: Engine, prefix: GoldenSample | None, limit_s: float
) -> GoldenSample | None:
    """Ask the golden sample and the long prompt before a sleep, so that the cache of prefixes has
    both; return the long prompt with its answer, None if there is none. Raises Refused: what is
    wrong before a sleep proves nothing after it."""
    _ask(engine, engine.golden, limit_s, "before the sleep")
    if prefix is None:
        return _prefix(engine, limit_s)
    _ask(engine, prefix, limit_s, "before the sleep")
    return prefix


def samples_after(engine: Engine, prefix: GoldenSample | None, limit_s: float) -> float:
    """Ask the same after a wake; return the milliseconds. Raises Refused."""
    took_ms = _ask(engine, engine.golden, limit_s, "after the wake")
    if prefix is not None:
        took_ms += _ask(engine, prefix, limit_s, "after the wake, with a prompt that was cached")
    return took_ms


def _ask(engine: Engine, sample: GoldenSample, limit_s: float, when: str) -> float:
    found = asked(sample, engine.server, engine.folder, waits=False, limit_s=limit_s)
    if found["verdict"] != SampleVerdict.RIGHT:
        verdict = SampleVerdict(found["verdict"]).replace("_", " ")
        raise Refused(f"the golden sample {when}: {verdict}: {found['reason']}")
    return found["ms"]


def _prefix(engine: Engine, limit_s: float) -> GoldenSample | None:
    """Learn the long prompt's answer from a first ask. Raises Refused."""
    from runtime_image.server.asking import SampleError, ask
    from runtime_image.server.golden.requests import prefix_request
    from runtime_image.server.golden.rules import LOGPROB_LEAST, kept, rule_of

    golden = engine.golden
    request = prefix_request(golden.request) if golden.rule in GENERATED else None
    if request is None:
        return None
    try:
        answer, ms = ask(request, engine.server, engine.folder, max(limit_s, golden.limit_s))
    except SampleError as error:
        raise Refused(f"the long sample before the sleep: {error}") from error
    if answer.status != golden.answer.status or rule_of([answer]) is not golden.rule:
        got = f"status {answer.status}, to compare by {rule_of([answer])}"
        wanted = f"status {golden.answer.status}, to compare by {golden.rule}"
        raise Refused(f"the long sample before the sleep: expected {wanted}, got {got}")
    tolerance = max(LOGPROB_LEAST, golden.token_tolerance)
    found = replace(golden, request=request, answer=kept(golden.rule, answer), usual_ms=ms)
    return replace(found, prompt_tolerance=tolerance, token_tolerance=tolerance)


def sleep(engine: Engine, limit_s: float) -> float:
    """Put an engine to sleep; return the milliseconds. Raises Refused."""
    return _turn(engine, engine.hooks.sleep, limit_s, is_asleep=True)


def wake(engine: Engine, limit_s: float) -> float:
    """Wake an engine; return the milliseconds. Raises Refused."""
    return _turn(engine, engine.hooks.wake, limit_s, is_asleep=False)


def _turn(engine: Engine, call: SampleRequest, limit_s: float, *, is_asleep: bool) -> float:
    began = time.monotonic()
    until = began + limit_s
    _call(engine, call, limit_s)
    check = engine.hooks.check
    while check is not None and _is_sleeping(engine, check, until) is not is_asleep:
        left_s = until - time.monotonic()
        if left_s <= CHECK_PAUSE_S:
            wanted = "true" if is_asleep else "false"
            raise Refused(
                f"{_name(check)}: expected {IS_SLEEPING} {wanted} within {limit_s:.3g} s after"
                f" {_name(call)}, got the contrary"
            )
        time.sleep(CHECK_PAUSE_S)
    return (time.monotonic() - began) * 1e3


def _is_sleeping(engine: Engine, check: SampleRequest, until: float) -> bool:
    body = _call(engine, check, max(CHECK_PAUSE_S, until - time.monotonic()))
    found: Any = None
    if len(body) <= CHECK_BODY_MAX:
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
    value = found.get(IS_SLEEPING) if isinstance(found, dict) else None
    if not isinstance(value, bool):
        raise Refused(f"{_name(check)}: expected {IS_SLEEPING} true or false, got {_shown(body)}")
    return value


def _call(engine: Engine, call: SampleRequest, limit_s: float) -> bytes:
    """Return the body of an answer with a status of DONE. Raises Refused."""
    from runtime_image.server.asking import SampleError, exchange  # slow to import

    try:
        found = exchange(call, engine.server, engine.folder, limit_s)
    except SampleError as error:
        raise Refused(str(error)) from error
    if found.status not in DONE:
        raise Refused(
            f"{_name(call)}: expected a status from 200 to 299, got {found.status} {_shown(found.body)}"
        )
    return found.body


def _name(call: SampleRequest) -> str:
    return f"{call.method} {call.path}"


def _shown(body: bytes) -> str:
    text = body[: 4 * SHOWN_MAX].decode("utf-8", "replace")
    return "".join(one if one.isprintable() else " " for one in text)[:SHOWN_MAX].strip()
