"""Services that hosts need from their owner."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from pool_manager.core import events
from pool_manager.ports import Gpus
from registry.tasks import Tasks


@dataclass(frozen=True, slots=True)
class HostServices:
    """What hosts need of their owner.

    `path` returns where a file is kept on this machine by its sha256; `gpus` has the GPUs by host;
    `emit` gets events for the machine; `changed` is called with the name of a host whose view
    changed.
    """

    path: Callable[[str], Path]
    gpus: MutableMapping[str, Gpus]
    emit: Callable[[events.Event], None]
    changed: Callable[[str], None]
    tasks: Tasks
    clock: Callable[[], float]
    wall: Callable[[], float]
