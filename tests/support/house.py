"""A host with one pool and one replica."""

from __future__ import annotations

from pool_manager.core import events
from pool_manager.core.cluster import Cluster
from pool_manager.core.commands import Command, Note
from pool_manager.core.contacts import Contacts
from pool_manager.core.park.parks import Parks
from pool_manager.core.replicas import ReplicaLifecycle
from pool_manager.core.state import Device, PoolSpec, Replica, Role, State

KEY = "default/a@1"


class House:
    """One pool and, unless `is_empty`, one replica r1 on d0. `now` starts at 100."""

    def __init__(
        self, state: State = State.STARTING, role: Role = "serve", *, is_empty: bool = False
    ) -> None:
        self.now = 100.0
        self.cluster = Cluster([Device("d0", "cpu")])
        self.pool = self.cluster.define(PoolSpec(KEY, role=role))
        self.pools = self.cluster.pools
        self.replicas = ReplicaLifecycle(self.cluster)
        self.contacts = Contacts(self.cluster, self.replicas, Parks(self.cluster, self.replicas))
        self.replica = Replica("r1", KEY, ("d0",), role, self.now, state)
        if not is_empty:
            self.replicas.add(self.replica, self.now)

    def on(self, event: events.Event) -> list[Command]:
        """Apply an event; return its commands without notes."""
        commands: list[Command] = []
        match event:
            case events.Found():
                self.touched = self.contacts.adopt(event, self.now, commands)
            case events.Greeted():
                self.touched = self.contacts.greet(event, self.now, commands)
            case _:
                self.touched = self.replicas.apply(event, self.now, commands)
        return without_notes(commands)

    def drain(self, if_idle_s: float | None) -> list[Command]:
        commands: list[Command] = []
        self.replicas.drain(self.replica, if_idle_s, "idle", self.now, commands)
        return without_notes(commands)

    def enforce_deadline(self, after_s: float) -> list[Command]:
        self.now += after_s
        commands: list[Command] = []
        self.replicas.enforce_deadline(self.replica, self.now, commands)
        return without_notes(commands)


def without_notes(commands: list[Command]) -> list[Command]:
    return [command for command in commands if not isinstance(command, Note)]
