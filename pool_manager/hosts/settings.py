"""Settings of other hosts."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

OWNER_LENGTH: Final = 12


@dataclass(frozen=True, slots=True)
class HostSettings:
    """What this server needs to use other hosts; made by `admin/compose.py`.

    `server` identifies this server's store: two servers may use one host. `images` are the runtime
    images by device kind, as this server's engine at `engine_url` names them. `uids` is the range
    of user ids of containers. `local_labels` are the labels of this machine.
    """

    server: str
    images: dict[str, str]
    uids: range
    engine_url: str = "unix:///var/run/docker.sock"
    local_labels: dict[str, str] = field(default_factory=dict)

    def owner(self, host: str) -> str:
        """Return the owner of this server's containers and files on a host: stable, and different
        for each server and host."""
        text = f"{self.server}\0{host}".encode()
        return hashlib.sha256(text).hexdigest()[:OWNER_LENGTH]
