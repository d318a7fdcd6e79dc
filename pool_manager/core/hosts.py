"""Hosts: the machines that devices belong to, and their states."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from registry.model import LOCAL_HOST


class HostState(StrEnum):
    """The state of a host.

    JOINING      It was added, or the server has just started: it has not answered yet.
    UP           Replicas are placed there.
    UNREACHABLE  Its control connection is lost. Its replicas may serve on; their number is unknown.
    DRAINING     No replica is placed there, and those that run there drain.
    GONE         It was unreachable for `host_lost_s`: nothing there takes calls any more.
    """

    JOINING = "joining"
    UP = "up"
    UNREACHABLE = "unreachable"
    DRAINING = "draining"
    GONE = "gone"


@dataclass(slots=True)
class HostRecord:
    """One host as the manager sees it. Times are monotonic seconds.

    `reason` says why it is not up. `epoch` is the number of its present connection. `engine_down`
    is the reason why its engine is away, "" while it answers. `files` and `images` are what it has
    already; more comes at `bytes_per_s`.
    """

    name: str
    state: HostState
    since_s: float
    reason: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    is_draining: bool = False
    is_removed: bool = False
    epoch: int = 0
    driver: str = ""
    rtt_s: float = 0.0
    engine_down: str = ""
    files: frozenset[str] = frozenset()
    images: frozenset[str] = frozenset()
    bytes_per_s: float = 100e6

    @property
    def is_local(self) -> bool:
        """Whether it is the machine that the server runs on."""
        return self.name == LOCAL_HOST
