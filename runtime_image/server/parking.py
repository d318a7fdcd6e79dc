"""Parks of one server: its engine is put to sleep and woken, samples are asked before and after.

Nothing is believed of an engine's 200 alone: `check`, where there is one, must agree, the manager
reads what the processes still hold of their GPUs, and no exchange is opened after a wake before the
server has answered its golden samples right. Calls and samples run in a thread, so that PINGs are
answered meanwhile; one command at a time.
"""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from runtime_image.contract.link import Kind
from runtime_image.contract.parks import (
    AFTER,
    DURING,
    IDLE_LEAST,
    IS_SLEEPING,
    Life,
    LifeCommand,
    LifeState,
    ParkHooks,
    life_of,
    limit_s,
)
from runtime_image.contract.samples import (
    GoldenRule,
    GoldenSample,
    SampleRequest,
    SampleVerdict,
)
from runtime_image.link.frames import Frame, LinkError
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
COMMANDS: Final = {
    Kind.PARK: LifeCommand.PARK,
    Kind.UNPARK: LifeCommand.UNPARK,
    Kind.VERIFY: LifeCommand.VERIFY,
}
"""The frames that a manager tells a life by."""
BEFORE: Final = {
    LifeCommand.PARK: LifeState.READY,
    LifeCommand.UNPARK: LifeState.PARKED,
    LifeCommand.VERIFY: LifeState.VERIFYING,
}
"""The life in which a command is carried out."""
GENERATED: Final = frozenset({GoldenRule.LOGPROBS, GoldenRule.TEXT})
"""Rules of answers that a model generates from a prompt; a long prompt is compared by them, too."""


class Refused(Exception):
    """An engine did not do what it was told; the text says what was expected and what came."""


class Engine(NamedTuple):
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


class Exchanges(Protocol):
    """The exchanges of the server."""

    def park(self, if_idle_ms: int) -> None:
        """Open none from now on; `Parking.on_quiet` follows unless one is open."""

    def serve(self) -> None:
        """Open them again."""


class Readings(Protocol):
    """The readings of how the server fares."""

    def rest(self) -> None:
        """Take none until `resume`."""

    def resume(self) -> None:
        """Take them again."""


class Parking:
    """The life of one server that can be parked. Runs in the sidecar's loop."""

    def __init__(
        self,
        loop: Loop,
        engine: Engine,
        exchanges: Exchanges,
        readings: Readings,
        tell: Callable[[Life, int], None],
    ) -> None:
        """`tell` is called with what becomes of each command, and with the number of the manager's
        connection over which it was told last."""
        self._loop = loop
        self._engine = engine
        self._exchanges = exchanges
        self._readings = readings
        self._tell = tell
        self.state = LifeState.READY
        self._dial = 0
        """The manager's connection that has told the last command."""
        self._limit_s = 0.0
        """Seconds that a call of this command may take."""
        self._command: LifeCommand | None = None
        """What is being carried out."""
        self._last: Life | None = None
        """What became of the command before."""
        self._prefix: GoldenSample | None = None
        """The long prompt, with its answer before the first park."""

    def handle(self, frame: Frame, dial: int) -> None:
        """Handle PARK, UNPARK or VERIFY of the manager's connection `dial`. Raises LinkError.

        A manager that has lost its link, and a new one, tell the command again that belongs to the
        life in HELLO: it is carried out once, and what becomes of it is told to who told it last.
        """
        try:
            self._limit_s = limit_s(frame.aux)
            if_idle_ms = IDLE_LEAST.unpack(frame.body)[0] if frame.kind is Kind.PARK else 0
        except (ValueError, struct.error) as error:
            raise LinkError(f"malformed {frame.kind.name}: {error}") from error
        command, self._dial = COMMANDS[frame.kind], dial
        if self._command is not None:
            return
        is_over = self._last is not None and bool(self._last["problem"])
        if self.state is not BEFORE[command] or is_over:
            if self._last is not None:
                self._tell(self._last, dial)
        elif command is LifeCommand.PARK:
            self._exchanges.park(if_idle_ms)
        else:
            self._begin(command)

    def on_quiet(self, dial: int) -> None:
        """Handle the end of the last exchange after PARK: ask the samples, and put the engine to
        sleep. `dial` is the manager's connection now: another manager has not told it."""
        if dial == self._dial:
            self._readings.rest()
            self._begin(LifeCommand.PARK)
        else:
            self._exchanges.serve()

    def _begin(self, command: LifeCommand) -> None:
        self._command, self.state = command, DURING[command]
        work = partial(self._work, command, self._limit_s)
        threading.Thread(target=work, name=str(command), daemon=True).start()

    def _work(self, command: LifeCommand, most_s: float) -> None:
        problem, took_ms, prefix = "", 0.0, self._prefix
        try:
            if command is LifeCommand.PARK:
                prefix = samples_before(self._engine, prefix, most_s)
                took_ms = sleep(self._engine, most_s)
            elif command is LifeCommand.UNPARK:
                took_ms = wake(self._engine, most_s)
            else:
                took_ms = samples_after(self._engine, prefix, most_s)
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
            self._readings.resume()
            self._exchanges.serve()
        self._tell(self._last, self._dial)


# In the thread


def samples_before(
    engine: Engine, prefix: GoldenSample | None, most_s: float
) -> GoldenSample | None:
    """Ask the golden sample and the long prompt before a sleep, so that the cache of prefixes has
    both; return the long prompt with its answer, None if there is none. Raises Refused: what is
    wrong before a sleep proves nothing after it."""
    _ask(engine, engine.golden, most_s, "before the sleep")
    if prefix is None:
        return _prefix(engine, most_s)
    _ask(engine, prefix, most_s, "before the sleep")
    return prefix


def samples_after(engine: Engine, prefix: GoldenSample | None, most_s: float) -> float:
    """Ask the same after a wake; return the milliseconds. Raises Refused."""
    took_ms = _ask(engine, engine.golden, most_s, "after the wake")
    if prefix is not None:
        took_ms += _ask(engine, prefix, most_s, "after the wake, with a prompt that was cached")
    return took_ms


def _ask(engine: Engine, sample: GoldenSample, most_s: float, when: str) -> float:
    found = asked(sample, engine.server, engine.folder, waits=False, limit_s=most_s)
    if found["verdict"] != SampleVerdict.RIGHT:
        verdict = SampleVerdict(found["verdict"]).replace("_", " ")
        raise Refused(f"the golden sample {when}: {verdict}: {found['reason']}")
    return found["ms"]


def _prefix(engine: Engine, most_s: float) -> GoldenSample | None:
    """Learn the long prompt's answer from a first ask. Raises Refused."""
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
        raise Refused(f"the long sample before the sleep: {error}") from error
    if answer.status != golden.answer.status or rule_of([answer]) is not golden.rule:
        got = f"status {answer.status}, to compare by {rule_of([answer])}"
        wanted = f"status {golden.answer.status}, to compare by {golden.rule}"
        raise Refused(f"the long sample before the sleep: expected {wanted}, got {got}")
    tolerance = max(LOGPROB_LEAST, golden.token_tolerance)
    found = replace(golden, request=request, answer=kept(golden.rule, answer), usual_ms=ms)
    return replace(found, prompt_tolerance=tolerance, token_tolerance=tolerance)


def sleep(engine: Engine, most_s: float) -> float:
    """Put an engine to sleep; return the milliseconds. Raises Refused."""
    return _turn(engine, engine.hooks.sleep, most_s, is_asleep=True)


def wake(engine: Engine, most_s: float) -> float:
    """Wake an engine; return the milliseconds. Raises Refused."""
    return _turn(engine, engine.hooks.wake, most_s, is_asleep=False)


def _turn(engine: Engine, call: SampleRequest, most_s: float, *, is_asleep: bool) -> float:
    began = time.monotonic()
    until = began + most_s
    _call(engine, call, most_s)
    check = engine.hooks.check
    while check is not None and _is_sleeping(engine, check, until) is not is_asleep:
        left_s = until - time.monotonic()
        if left_s <= CHECK_PAUSE_S:
            wanted = "true" if is_asleep else "false"
            raise Refused(
                f"{_name(check)}: expected {IS_SLEEPING} {wanted} within {most_s:.3g} s after"
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


def _call(engine: Engine, call: SampleRequest, most_s: float) -> bytes:
    """Return the body of an answer with a status of DONE. Raises Refused."""
    from runtime_image.server.asking import SampleError, exchange  # slow to import

    try:
        found = exchange(call, engine.server, engine.folder, most_s)
    except SampleError as error:
        raise Refused(str(error)) from error
    if found.status not in DONE:
        got = f"{found.status} {_shown(found.body)}".strip()
        raise Refused(f"{_name(call)}: expected a status from 200 to 299, got {got}")
    return found.body


def _name(call: SampleRequest) -> str:
    return f"{call.method} {call.path}"


def _shown(body: bytes) -> str:
    text = body[: 4 * SHOWN_MAX].decode("utf-8", "replace")
    return "".join(one if one.isprintable() else " " for one in text)[:SHOWN_MAX].strip()
