"""Changes of hosts as occurrences: added, up, unreachable, gone, draining, removed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from admin.documents.events import HostChange, HostEvent
from pool_manager.core.hosts import HostState
from pool_manager.host import HostView

FIGURE: Final = re.compile(r"\d+")
_CHANGES: Final[dict[HostState, HostChange]] = {
    HostState.JOINING: "joining",
    HostState.UP: "up",
    HostState.UNREACHABLE: "unreachable",
    HostState.DRAINING: "draining",
    HostState.GONE: "gone",
}


class HostChanges:
    """Compares hosts with their last states. `wall` returns Unix seconds."""

    def __init__(self, hosts: list[HostView], wall: Callable[[], float]) -> None:
        self._states = {host.name: _essence(host) for host in hosts}
        self._wall = wall

    def change(self, name: str, view: HostView | None) -> HostEvent | None:
        """Return the occurrence if the state of a host, or the reason of it, has changed; None if
        only its figures have, also those in its reason. `view` is None for a host that was
        removed."""
        before = self._states.get(name)
        if view is None:
            if self._states.pop(name, None) is None:
                return None
            return self._occurrence(name, "removed", "")
        now = self._states[name] = _essence(view)
        if now == before:
            return None
        if before is None:  # it cannot be connected yet
            return self._occurrence(name, "added", "")
        return self._occurrence(name, _CHANGES[view.state], view.reason)

    def _occurrence(self, name: str, change: HostChange, reason: str) -> HostEvent:
        words = {"joining": "is joining", "added": "was added", "removed": "was removed"}
        text = f"host {name} {words.get(change, f'is {change}')}"
        return HostEvent(
            host=name,
            change=change,
            at_s=round(self._wall(), 3),
            reason=reason,
            text=f"{text}: {reason}" if reason else text,
        )


def _essence(view: HostView) -> tuple[str, str]:
    """Return state and reason without figures: the free space of a full disk changes with each
    report."""
    return view.state, FIGURE.sub("0", view.reason)
