"""How the fake driver's replicas behave."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal, get_args

from runtime_image.contract.signature import Signature

Phase = Literal["start", "load", "run"]
Sleep = Callable[[float], Awaitable[object]]
"""Waits for so many seconds; a test passes one that it lets go by hand."""

ANY_JSON: Final = Signature("json", (), ())


@dataclass(frozen=True, slots=True)
class Script:
    """What every fake replica does. Delays in seconds.

    `crash_at` names the phase in which the next `crash_count` replicas that come to it crash,
    before the rest behaves; `hang_at` the phase in which every replica stops to go on, while it
    still answers PING. `refuse_load` and `fail_run` are reasons, "" for none: the load, or every
    request, is then refused with it. `signature` is what a trial reports, `batch` how many
    requests run together. Raises ValueError where a field is out of its range.
    """

    start_s: float = 0.0
    load_s: float = 0.0
    run_s: float = 0.0
    crash_at: Phase | None = None
    crash_count: int = 1
    hang_at: Phase | None = None
    refuse_load: str = ""
    fail_run: str = ""
    signature: Signature = ANY_JSON
    batch: int = 1

    def __post_init__(self) -> None:
        for name in ("crash_at", "hang_at"):
            phase = getattr(self, name)
            if phase is not None and phase not in get_args(Phase):
                expected = ", ".join(get_args(Phase))
                raise ValueError(f"{name}: expected None or one of {expected}, got {phase!r}")
        for name, least in (("start_s", 0), ("load_s", 0), ("run_s", 0), ("batch", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: expected at least {least}, got {getattr(self, name)}")
        if self.crash_count < 0:
            raise ValueError(f"crash_count: expected at least 0, got {self.crash_count}")
