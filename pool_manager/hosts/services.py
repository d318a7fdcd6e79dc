"""Services that hosts and their engines need from their owner."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pool_manager.core import events
from pool_manager.host import ReplicaHost
from registry.tasks import Tasks
from runtime_image.contract.control import ReplicaRecord

if TYPE_CHECKING:
    from hosts.tls.door import LinkDoor


@dataclass(frozen=True, slots=True)
class HostServices:
    """What one engine needs of its owner."""

    announce: Callable[[ReplicaHost, Mapping[str, str], bool], None]
    """Adds a host to the manager's, in place of one of the same name; its labels, and whether it
    drains. Called again when these change. Raises BadRequest if there are too many. While the
    definition is being removed it has no effect."""
    withdraw: Callable[[str, bool], None]
    """Takes a host back by its name: its replicas drain, then it is forgotten. With True it can be
    reached no more, and its replicas are given up as those of one that was removed by force."""
    seen: Collection[str]
    """Names of the hosts that replicas of an earlier manager are on. An engine announces those that
    may be its own with its definition, so that the replicas are adopted."""
    records: Callable[[str], MutableMapping[str, ReplicaRecord]]
    """Returns the records of a host's replicas by id, as they change."""
    path: Callable[[str], Path]
    """Returns where a file is kept on this machine by its sha256."""
    rewrite: Callable[[ReplicaRecord], None]
    """Replaces the record of a replica, on the disk first, with what is known only after its start.
    Raises OSError."""
    answers: Callable[[str], bool]
    """Returns whether a replica of a host has answered the last PINGs."""
    emit: Callable[[events.Event], None]
    """Gets events for the machine."""
    changed: Callable[[str], None]
    """Called with the name of a host whose view changed."""
    tasks: Tasks
    clock: Callable[[], float]
    wall: Callable[[], float]
    door: LinkDoor | None = None
    """Where replicas of hosts dial in by TLS; None if the server has no such door."""
