"""What really is in a process: an engine and its sidecar, and the ways in which they fail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pool_manager.core import events
from pool_manager.core.state import State

FULL_MIB, RESIDUE_MIB, HOST_MIB, SLACK_MIB = 8_000.0, 500.0, 6_000.0, 256.0
GPU_MIB, RAM_MIB = 10_000.0, 40_000.0
MACHINE_MIB: Final = 80_000.0
"""Physical memory of each host; replicas may take RAM_MIB of it."""
GPUS: Final = 8
FAR: Final = "far"
LIMIT_S: Final = 20.0
"""Seconds after which a call to an engine is given up, by its sidecar or by the manager."""

SLEEP_FAULTS: Final = (
    "sleep: 500",
    "sleep: hangs",
    "sleep: dies",
    "sleep: frees nothing",
    "sleep: frees half",
    "sleep: hung before it",
)
WAKE_FAULTS: Final = (
    "wake: 500",
    "wake: hangs",
    "wake: dies",
    "wake: still asleep",
    "wake: 100 x slower",
    "wake: gibberish",
    "wake: stale prefix cache",
    "wake: weights lost",
)
SAMPLE_FAULTS: Final = ("sample: hangs", "sample: dies")
TELLING_FAULTS: Final = ("told twice", "told late", "never told")
FAULTS: Final = (*SLEEP_FAULTS, *WAKE_FAULTS, *SAMPLE_FAULTS, *TELLING_FAULTS)
WRONG: Final = frozenset({"wake: gibberish", "wake: stale prefix cache", "wake: weights lost"})
"""Faults of engines that answer, and answer wrong."""


@dataclass(frozen=True)
class Quiet:
    """The last open exchange of a server that is to sleep has ended. No event of the machine."""

    id: str


@dataclass
class Engine:
    """What really is in one process, and what the machine may charge for it."""

    pool: str
    devices: tuple[str, ...]
    host: str
    full_mib: float
    held_mib: float
    host_mib: float = 0.0
    is_alive: bool = True
    is_loaded: bool = False
    is_asleep: bool = False
    fault: str = ""
    """Why its answers are wrong, "" if they are right."""
    is_parked: bool = False
    """Whether the machine was told a proof, and has not waked it since."""
    charged_mib: float = 0.0
    """What it is charged of host memory."""
    has_slept: bool = False
    is_leaving: bool = False
    """Whether its end was commanded, or told to the machine."""
    life: State = State.READY
    """Where its sidecar is; exchanges are opened in READY alone."""
    is_working: bool = False
    """Whether a command of a park is being carried out."""
    is_closing: bool = False
    """Whether it takes no new exchanges, and sleeps after the open ones."""
    last: events.Event | None = None
    """What became of the last command."""
    is_found: bool = False
    """Whether this manager found it, and does not know yet whether it sleeps."""
    is_adopted: bool = False
    """Whether it slept when this manager found it, and is not proved yet."""
    is_lying: bool = False
    """Whether its HELLO told this manager another life."""
    has_lied: bool = False
    """Whether it told any manager so, which may have had it sleep without a plan."""

    @property
    def is_on_cpu(self) -> bool:
        return self.pool == "default/cpu@1"

    @property
    def in_use_mib(self) -> float:
        """What it has of the memory of its host."""
        return self.held_mib if self.is_on_cpu else self.host_mib

    @property
    def serves_right(self) -> bool:
        """Whether an exchange that reaches it is answered right."""
        return self.is_alive and not self.is_asleep and not self.fault

    def fall_asleep(self, left_mib: float) -> None:
        self.held_mib, self.is_asleep = left_mib, True
        self.host_mib = HOST_MIB


def loaded(id: str, engine: Engine, life: State = State.READY) -> events.Loaded:
    slept = engine.host_mib > 0.0
    return events.Loaded(
        id, 4, True, engine.full_mib, {"load": 30_000.0}, life=life, has_slept=slept
    )
