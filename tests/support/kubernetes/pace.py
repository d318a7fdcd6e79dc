"""How long the double takes for its steps."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """Seconds of the steps; the defaults make tests quick."""

    schedule_s: float = 0.0
    sandbox_s: float = 0.0
    """Until a Pod has its network."""
    start_s: float = 0.0
    """Until a container's process is started."""
    notice_s: float = 0.02
    """Until the kubelet says that a container has ended."""
    final_s: float = 0.02
    """Until it says that the Pod has."""
    backoff_s: float = 0.2
    """Until an image is pulled, or a sidecar is started, again."""
    bookmark_s: float = 1.0
    """Between two bookmarks of a watch."""
    node_grace_s: float = 2.0
    """Until a silent kubelet's node is Unknown."""
    collect_s: float = 0.1
    """Between two looks of the controllers."""


REAL = Pace(0.005, 0.45, 0.1, 1.0, 1.0, 10.0, 60.0, 50.0, 1.0)
"""As measured with Kubernetes 1.36 on a small machine."""


async def elapse(wait_s: float) -> None:
    """Return when a time has passed in which the double does nothing: how long its steps take is
    what it is there for."""
    passed = asyncio.Event()
    timer = asyncio.get_running_loop().call_later(wait_s, passed.set)
    try:
        await passed.wait()
    finally:
        timer.cancel()
