"""Parks: how a server is put to sleep and woken, and the messages about it. Plain data.

The *life* of a replica that can be parked: READY > PARKING > PARKED > UNPARKING > VERIFYING >
READY. Every failure ends the replica, so that each way from sleep to a caller leads through
VERIFYING, where the server answers its golden samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from struct import Struct
from typing import Any, Final, NamedTuple, NotRequired, TypedDict

from runtime_image.contract.samples import REASON_MAX, SampleRequest, finite

LIMIT_MAX_MS: Final = 3_600_000
"""Max milliseconds that a manager gives an engine for one call."""
TOOK_MAX_MS: Final = 4 * LIMIT_MAX_MS
"""Max milliseconds that a command takes: an engine's call and its last check, or two samples whose
text is asked twice."""
HOST_MAX_MIB: Final = 1e9
"""Max MiB of host memory that a park takes."""
IDLE_LEAST: Final = Struct("<I")
"""Body of a PARK frame: the milliseconds since the last exchange that there must be at least; 0
lets open exchanges end before."""
IS_SLEEPING: Final = "is_sleeping"
"""Boolean member of the JSON object that `check` is answered with, as vLLM has it."""


class LifeState(StrEnum):
    """Where a replica that can be parked is."""

    READY = "ready"
    """It takes exchanges."""
    PARKING = "parking"
    """It takes none; its samples are asked, and its engine is put to sleep."""
    PARKED = "parked"
    """Its engine says that it sleeps. What it has freed is for the manager to prove."""
    UNPARKING = "unparking"
    """Its engine is woken."""
    VERIFYING = "verifying"
    """Its engine says that it is awake. It takes exchanges after a right answer to its samples."""


class LifeCommand(StrEnum):
    """What a manager has asked for, and LIFE answers."""

    PARK = "park"
    UNPARK = "unpark"
    VERIFY = "verify"


DURING: Final = {
    LifeCommand.PARK: LifeState.PARKING,
    LifeCommand.UNPARK: LifeState.UNPARKING,
    LifeCommand.VERIFY: LifeState.VERIFYING,
}
"""The life while a command is carried out, and after it has failed."""
AFTER: Final = {
    LifeCommand.PARK: LifeState.PARKED,
    LifeCommand.UNPARK: LifeState.VERIFYING,
    LifeCommand.VERIFY: LifeState.READY,
}
"""The life once a command was carried out."""


@dataclass(frozen=True, slots=True)
class ParkHooks:
    """The calls that a sidecar makes to its engine."""

    sleep: SampleRequest
    """Puts the engine to sleep; answered with a status from 200 to 299 once it sleeps."""
    wake: SampleRequest
    """Wakes the engine; answered as `sleep`, once it is awake."""
    check: SampleRequest | None = None
    """Asks whether the engine sleeps, answered with `{"is_sleeping": true}` or `false`; None for an
    engine that does not say it."""
    is_private: bool = True
    """Whether parks are refused while other users of the host can reach the engine's port."""


class Life(TypedDict):
    """Body of LIFE: what became of a PARK, an UNPARK or a VERIFY."""

    life: str
    """A LifeState: that of AFTER, or with a problem that of DURING."""
    problem: str
    """Why the command has failed, "" if it has not."""
    took_ms: float
    """Milliseconds that the engine took, without samples; for VERIFY those of the samples."""
    host_mib: NotRequired[float]
    """MiB of host memory that the processes of the server took at most since it was put to sleep,
    beyond what they held before; only from a trial, in the answer to UNPARK."""


class LifeAnswer(NamedTuple):
    """A Life as its receiver reads it."""

    command: LifeCommand
    """What it answers."""
    problem: str
    """Why that has failed, "" if it has not."""
    took_s: float
    """Seconds that it took."""
    host_mib: float = 0.0
    """MiB of host memory, as of Life; 0 if that was not measured."""


def life_of(
    command: LifeCommand, problem: str, took_ms: float, host_mib: float | None = None
) -> Life:
    """Return the body of LIFE for a command that was carried out, or has failed. `host_mib` is None
    where that is not measured."""
    state = DURING[command] if problem else AFTER[command]
    found: Life = {
        "life": state,
        "problem": problem[:REASON_MAX],
        "took_ms": round(min(took_ms, TOOK_MAX_MS), 3),
    }
    if host_mib is not None:
        found["host_mib"] = round(min(max(0.0, host_mib), HOST_MAX_MIB), 3)
    return found


def life_from(data: Mapping[str, Any]) -> LifeAnswer:
    """Read the body of LIFE. A sidecar may be a stranger: raises ValueError for a life, a problem
    or a time that `life_of` does not write."""
    life, problem, took_ms = data.get("life"), data.get("problem"), finite(data.get("took_ms"))
    host_mib = finite(data.get("host_mib", 0.0))
    if not isinstance(problem, str) or len(problem) > REASON_MAX:
        raise ValueError(f"problem: expected text of at most {REASON_MAX} characters")
    states = DURING if problem else AFTER
    command = next((one for one, state in states.items() if state == life), None)
    if command is None:
        expected = " or ".join(states.values())
        raise ValueError(f"life: expected {expected}, got {str(life)[:40]!r}")
    if not 0 <= took_ms <= TOOK_MAX_MS:
        raise ValueError(f"took_ms: expected 0 to {TOOK_MAX_MS} ms, got {took_ms:g}")
    if not 0 <= host_mib <= HOST_MAX_MIB:
        raise ValueError(f"host_mib: expected 0 to {HOST_MAX_MIB:g} MiB, got {host_mib:g}")
    return LifeAnswer(command, problem, took_ms / 1e3, host_mib)


def state_from(value: Any) -> LifeState | None:
    """Read `life` of a HELLO, None for a replica that cannot be parked. Raises ValueError."""
    if value is None:
        return None
    if not isinstance(value, str) or value not in set(LifeState):
        raise ValueError(f"life: expected {' or '.join(LifeState)}, got {str(value)[:40]!r}")
    return LifeState(value)


def limit_s(ms: int) -> float:
    """Return the seconds of a limit in a frame. Raises ValueError for none and for too many."""
    if not 0 < ms <= LIMIT_MAX_MS:
        raise ValueError(f"expected a limit from 1 to {LIMIT_MAX_MS} ms, got {ms}")
    return ms / 1e3


def limit_ms(seconds: float) -> int:
    """Return the limit of a frame for seconds, at least 1 ms."""
    return min(LIMIT_MAX_MS, max(1, math.ceil(seconds * 1e3)))


def hooks_from(data: Mapping[str, Any]) -> ParkHooks:
    """Rebuild hooks from their JSON data. Raises KeyError or TypeError on anything else."""
    calls = {name: SampleRequest(**data[name]) for name in ("sleep", "wake")}
    check = SampleRequest(**data["check"]) if data["check"] else None
    return ParkHooks(**calls, check=check, is_private=bool(data["is_private"]))
