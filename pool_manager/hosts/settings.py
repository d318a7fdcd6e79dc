"""Settings of other hosts."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

OWNER_LENGTH: Final = 12
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder of the service account in a Pod."""
FILES: Final = ("token", "ca.crt", "namespace")
"""Files that the kubelet puts in the folder of a service account."""


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """How this server reaches the API server of the cluster that it runs in; made by
    `Settings.kubernetes()`."""

    account: Path
    """Folder of the service account, with FILES."""
    api_host: str = ""
    """Name or address of the API server, "" for a server outside a cluster."""
    api_port: int = 443

    @property
    def why_outside(self) -> str:
        """Return why this server has no access to an API server, "" if it has."""
        missing = [one for one in FILES if not (self.account / one).is_file()]
        if missing:
            return f"{self.account} has no {' and no '.join(missing)} of a service account"
        if not self.api_host:
            return "KUBERNETES_SERVICE_HOST is not set"
        return ""


@dataclass(frozen=True, slots=True)
class HostSettings:
    """What this server needs to use other hosts; made by `admin/compose.py`.

    `server` identifies this server's store: two servers may use one host. `images` are the runtime
    images by device kind, as this server's engine at `engine_url` names them. `uids` is the range
    of user ids of containers. `local_labels` are the labels of this machine. `has_images`: servers'
    images are found by that engine, and sent to other hosts.
    """

    server: str
    images: dict[str, str]
    uids: range
    engine_url: str = "unix:///var/run/docker.sock"
    local_labels: dict[str, str] = field(default_factory=dict)
    kubernetes: KubernetesSettings | None = None
    """None for a server that can have no host in a cluster."""
    has_images: bool = True

    def owner(self, host: str) -> str:
        """Return the owner of this server's containers and files on a host: stable, and different
        for each server and host."""
        text = f"{self.server}\0{host}".encode()
        return hashlib.sha256(text).hexdigest()[:OWNER_LENGTH]
