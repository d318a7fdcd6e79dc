"""State table of a host's life, the record of a host, and indexes of the devices of hosts.

Only `advance_host` changes a host's state, and only along HOST_TRANSITIONS. What a host's states
mean for its replicas is their `Contact` (`state`).

JOINING      It was added, or the server has just started: it is not ready for replicas yet.
UP           Replicas are placed there.
UNREACHABLE  Its control connection is lost. Its replicas may serve on; their number is unknown.
DRAINING     No replica is placed there, and those that run there drain.
GONE         It was unreachable for `host_lost_s`: nothing there takes calls any more.

`host_lost_s` is longer than the time after which a replica without a manager refuses calls. It
counts from the entry into JOINING or UNREACHABLE, which is never before the last message of the
manager to a replica. A host that is removed has no state of its own: it drains, and its record is
removed when none of its replicas is left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Final, NamedTuple

from registry.builds import DeviceType
from registry.model.hosts import Ability, other_host

HOST_LOST_S = 75.0
"""Default of `host_lost_s`, the seconds after which an unreachable host is GONE."""


class HostState(StrEnum):
    """The state of a host."""

    JOINING = "joining"
    UP = "up"
    UNREACHABLE = "unreachable"
    DRAINING = "draining"
    GONE = "gone"


class HostStep(StrEnum):
    """A step from one state of a host to the next."""

    CONNECTED = "connected"
    BROKEN = "broken"
    EXPIRED = "lost for long"
    DRAINED = "drain"
    UNDRAINED = "undrain"


HOST_TRANSITIONS: dict[HostState, dict[HostStep, HostState]] = {
    HostState.JOINING: {
        HostStep.CONNECTED: HostState.UP,
        HostStep.BROKEN: HostState.UNREACHABLE,
        HostStep.EXPIRED: HostState.GONE,
    },
    HostState.UP: {
        HostStep.DRAINED: HostState.DRAINING,
        HostStep.BROKEN: HostState.UNREACHABLE,
    },
    HostState.DRAINING: {
        HostStep.UNDRAINED: HostState.UP,
        HostStep.BROKEN: HostState.UNREACHABLE,
    },
    HostState.UNREACHABLE: {
        HostStep.CONNECTED: HostState.UP,
        HostStep.EXPIRED: HostState.GONE,
    },
    HostState.GONE: {HostStep.CONNECTED: HostState.UP},
}


class ImpossibleHostStep(Exception):
    """The table does not allow this step: a defect of the caller."""


def advance_host(state: HostState, step: HostStep) -> HostState:
    """Return the state after `step`. Raises ImpossibleHostStep if the table has no such row."""
    try:
        return HOST_TRANSITIONS[state][step]
    except KeyError:
        raise ImpossibleHostStep(f"{state} -> {step}") from None


ALL_KINDS: Final = frozenset({"cpu", "cuda"})
"""The kinds of devices."""
LEFT_MIB: Final = 4096.0
LEFT_SHARE: Final = 0.05
"""What parks leave of the memory of a host to all else: LEFT_MIB, or this share if that is more."""


class HostMemory(NamedTuple):
    """The memory of a host."""

    total_mib: float
    available_mib: float
    """What can be taken without swapping: MemAvailable of proc_meminfo(5)."""

    @property
    def spare_mib(self) -> float:
        """MiB that parks may take. A part of the available memory is kept back, because a reading
        is up to a second old."""
        return self.available_mib - max(LEFT_MIB, LEFT_SHARE * self.total_mib)


@dataclass(slots=True)
class HostRecord:
    """One host as the manager sees it. Times are monotonic seconds.

    `reason` says why it is not up. `epoch` is the number of its present connection, or of the last
    one. `engine_down` is the reason why its engine is away, "" while it answers. `files` and
    `images` are what it has already; more comes at `bytes_per_s`. `is_removed`: it is forgotten
    once it has no replicas; `is_forced`: its replicas are given up if it is unreachable.
    """

    name: str
    state: HostState
    since_s: float
    reason: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    is_draining: bool = False
    is_removed: bool = False
    is_forced: bool = False
    epoch: int = 0
    abilities: frozenset[Ability] = frozenset()
    """What its replicas can run beside models; none before it has answered."""
    standby_kinds: frozenset[str] = ALL_KINDS
    """The kinds of its devices for which standbys are kept."""
    rtt_s: float = 0.0
    engine_down: str = ""
    files: frozenset[str] = frozenset()
    images: frozenset[str] = frozenset()
    bytes_per_s: float = 100e6
    """Speed of transfers to it; infinite if nothing is sent, as it shares the server's files."""
    can_be_lost: bool = True
    """Whether a connection lies between, which may be lost and made anew. Without one, what is
    reported of its replicas is certain, and it is never removed."""
    evictions: int = 0
    """Times in a row that its engine has taken the place of a replica (`refusals`)."""
    evicted_until_s: float = -inf
    """When the refusal after the last eviction there ends, or has ended."""
    memory: HostMemory | None = None
    """Its memory when it was read last, None before."""

    @property
    def is_reachable(self) -> bool:
        """Whether its replicas can be commanded."""
        return self.state in (HostState.UP, HostState.DRAINING)

    @property
    def is_away(self) -> bool:
        """Whether time makes it GONE."""
        return self.state in (HostState.JOINING, HostState.UNREACHABLE)

    @property
    def has_never_answered(self) -> bool:
        """Whether it is GONE and was never connected since this server started."""
        return self.state is HostState.GONE and not self.epoch

    @property
    def obstacle(self) -> str:
        """Why nothing can be placed there, "" if something can (user-facing text)."""
        cause = f": {self.reason}" if self.reason else ""
        match self.state:
            case HostState.JOINING:
                return f"{self.name} has not joined yet{cause}"
            case HostState.UNREACHABLE:
                return f"{self.name} is unreachable{cause}"
            case HostState.GONE:
                return f"{self.name} is gone{cause}"
            case HostState.DRAINING:
                return f"{self.name} is drained"
            case HostState.UP if self.engine_down and other_host(self.name):
                return f"{self.name}: {self.engine_down}"
        return self.engine_down


class Fleet(NamedTuple):
    """Usable devices of a kind on all hosts."""

    devices: int
    """Their number."""
    largest_mib: float
    """Memory of the largest; infinite if one of them has memory that is not accounted."""
    alike: int
    """Greatest number of one model on one host: a replica on several has equal ones."""


@dataclass(slots=True)
class DeviceGroup:
    """The devices of one kind on one host: an index for placement.

    `devices` has their numbers in the order in which the ledger learned of them, `empty` those
    without a replica, each with a number that rises with the time since which it is empty.
    """

    host: str
    kind: str
    devices: dict[str, int] = field(default_factory=dict)
    empty: dict[str, int] = field(default_factory=dict)
    fullest: list[str] | None = None
    free_share: float = 1.0


@dataclass(slots=True)
class HostParts:
    """What the ledger's indexes have of one host."""

    devices: dict[str, int] = field(default_factory=dict)
    """Its devices with numbers that rise in the order in which the ledger learned of them."""
    banks: set[str] = field(default_factory=set)
    """The memory banks of its devices, and that of its own memory."""


HostWish = tuple[
    str,
    tuple[str, ...],
    str,
    DeviceType | None,
    bool,
    tuple[tuple[str, str], ...],
    Ability | None,
    bool,
]
"""Host, only devices, kind and type of device, whether it is one of several, labels and ability of
a need, and whether closed hosts count."""
