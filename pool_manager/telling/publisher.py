"""Tells gateways which replicas there are."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import msgspec

from pool_manager.core.machine import Machine
from pool_manager.ports import Binding
from pool_manager.replica.folders import Folders
from pool_manager.telling.journal import Journal
from registry.exchange import Endpoints, PoolEndpoints, encode


class Publisher:
    """Turns what the machine shows of its pools into serialised Endpoints messages."""

    def __init__(
        self,
        machine: Machine,
        journal: Journal,
        bindings: dict[str, Binding],
        folders: Folders,
        clock: Callable[[], float],
    ) -> None:
        """`bindings` is its owner's, by pool key; those of pools that are gone are removed."""
        self._machine = machine
        self._journal = journal
        self._bindings = bindings
        self._folders = folders
        self._clock = clock
        self._seq = itertools.count(1)
        self._workers: set[str] = set()
        self._receivers: list[Callable[[bytes], None]] = []

    def subscribe(self, receiver: Callable[[bytes], None]) -> Callable[[], None]:
        """Have every Endpoints message; the returned function ends it."""
        self._receivers.append(receiver)
        return lambda: self._receivers.remove(receiver)

    def welcome(self, worker: str) -> None:
        """A gateway worker spoke: one that is new is told of all pools."""
        if worker not in self._workers:
            self._workers.add(worker)
            self.publish(frozenset(self._bindings), full=True)

    def dismiss(self, worker: str) -> None:
        """A gateway worker is gone."""
        self._workers.discard(worker)

    def endpoints(self, key: str) -> PoolEndpoints:
        """With what only the shell knows: paths, and times from now instead of clock readings."""
        now = self._clock()
        shown = self._machine.endpoints(key, now)
        replicas = [
            msgspec.structs.replace(r, path=str(self._folders.data_socket(r.id)))
            for r in shown.replicas
        ]
        wait_s = max(0.0, shown.retry_after_s - now) if shown.retry_after_s else 0.0
        return msgspec.structs.replace(shown, replicas=replicas, retry_after_s=wait_s)

    def publish(self, keys: frozenset[str], *, full: bool = False) -> None:
        """Say how these pools are; `full` that there are no others."""
        pools = {}
        for key in keys:
            if key not in self._machine.pools:
                self._bindings.pop(key, None)
                self._journal.forget(key)
                pools[key] = PoolEndpoints([], "gone", "removed")
                continue
            if self._machine.pools[key].spec.role != "serve":
                continue
            pools[key] = self.endpoints(key)
            self._journal.state(key, pools[key], self._bindings[key])
        if not self._workers:
            return  # whoever comes first is told everything; at a start that saves thousands
        message = encode(Endpoints(next(self._seq), full, pools))
        for receiver in list(self._receivers):
            receiver(message)
