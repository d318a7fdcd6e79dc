"""Reasons of `/readyz` for reporting the server as degraded, in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from pool_manager.core.state import Replica, State
from pool_manager.manager import Manager
from registry.files import free_bytes
from registry.model.hosts import other_host
from registry.store.history import History

DISK_FREE_MIN = 256 * 2**20
BUFFERED_MAX = 1000
"""Max buffered records; a healthy store writes them long before that."""
RELEASE_S = 10.0
"""Seconds after which a replica's release counts as stuck: it blocks its device for others."""


class Pools(Protocol):
    """Pools as seen by gateways."""

    def states(self) -> dict[str, str]:
        """Return the state of every pool that is not at rest."""


class Health:
    """Checks of `/readyz`. The server keeps serving whatever they report."""

    def __init__(
        self,
        data: Path,
        manager: Manager,
        pools: Pools,
        history: History,
        clock: Callable[[], float],
        free_bytes: Callable[[Path], int] = free_bytes,
    ) -> None:
        self._data = data
        self._manager = manager
        self._pools = pools
        self._history = history
        self._clock = clock
        self._free_bytes = free_bytes
        self._seen = (0, 0)
        self._is_failing = False

    def reasons(self) -> list[str]:
        """Return all current problems; empty if there are none."""
        return [
            *self._disk(),
            *self._store(),
            *self._engine(),
            *self._hosts(),
            *self._functions(),
            *self._devices(),
        ]

    def _disk(self) -> list[str]:
        try:
            free = self._free_bytes(self._data)
        except OSError as error:
            return [f"disk: {self._data}: {error.strerror or error}"]
        if free >= DISK_FREE_MIN:
            return []
        return [f"disk: {free // 2**20} MiB free in {self._data}"]

    def _store(self) -> list[str]:
        """Report buffered records: normal for about a second, but not after a failed flush."""
        statistics = self._history.statistics()
        failed, written = statistics.failed_flushes, statistics.written
        if (failed, written) != self._seen:
            self._is_failing = failed > self._seen[0] and written == self._seen[1]
            self._seen = (failed, written)
        if not statistics.buffered or not (self._is_failing or statistics.buffered >= BUFFERED_MAX):
            return []
        return [
            f"store: {statistics.buffered} records wait to be written,"
            f" {statistics.dropped} were dropped"
        ]

    def _engine(self) -> list[str]:
        reason = self._manager.engine_down
        return [f"engine: {reason}"] if reason else []

    def _hosts(self) -> list[str]:
        """Report other hosts that are lost or have a problem; the other methods report this
        machine."""
        return [
            f"host {one.name}: {one.state}: {one.reason or 'no reason given'}"
            for one in self._manager.hosts()
            if one.state in ("unreachable", "gone")
            or (other_host(one.name) and one.reason and one.state != "joining")
        ]

    def _functions(self) -> list[str]:
        return (
            [
                f"function {key.partition('/')[2]} fails to load"
                for key, state in self._pools.states().items()
                if state == "failing"
            ]
            + [
                f"function {key.partition('/')[2]} is not answering: {reason}"
                for key, reason in self._manager.not_answering()
            ]
            + [
                f"function {key.partition('/')[2]} is stopped and not parked any more: {reason}"
                for key, reason in self._manager.parks_off()
            ]
        )

    def _devices(self) -> list[str]:
        now = self._clock()
        silence = self._manager.gpu_silence
        return [
            *([f"gpus: {silence}"] if silence else []),
            *(
                f"device {one.device.id}: out of use: {one.reason}"
                for one in self._manager.occupancies()
                if one.state == "cordoned"
            ),
            *self._unreleased(now),
        ]

    def _unreleased(self, now: float) -> list[str]:
        return [
            f"{_place(replica)}: {replica.id} is not released: {replica.why}"
            for replica in self._manager.replicas()
            if replica.state is State.RELEASING and now - replica.since_s > RELEASE_S
        ]


def _place(replica: Replica) -> str:
    """Return where a replica is; a standby that has not been bound has no device."""
    if not replica.devices:
        return f"host {replica.host}"
    devices = ", ".join(replica.devices)
    return f"device {devices}" if len(replica.devices) == 1 else f"devices {devices}"
