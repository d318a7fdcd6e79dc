"""Machines that run replicas."""

from __future__ import annotations

from dataclasses import dataclass, field

LOCAL_HOST = "local"
"""Name of the machine that the server runs on."""
HOSTS_MAX = 100
"""Max hosts beside the local one."""


@dataclass(frozen=True, slots=True)
class Host:
    """A machine that runs replicas, as the store keeps it. The local machine is not stored."""

    name: str
    """Name, unique; also the value of its label `host`."""
    address: str
    """Login by SSH: `[USER@]HOST[:PORT]`."""
    labels: dict[str, str] = field(default_factory=dict)
    """The operator's labels; functions name those that their host must have."""
    host_key: str = ""
    """Public key that the host must show, as a line of OpenSSH (`ssh-ed25519 AAAA...`); "" for the
    keys of known_hosts."""
    identity: str = ""
    """File of a private key on the server's machine; "" for the agent's keys and those of
    ~/.ssh/config."""
    engine: str = "/var/run/docker.sock"
    """Path of the container engine's socket there."""
    cpu_slots: int = 0
    """Number of CPU slots; 0 for one per core."""
    gpus: str = "all"
    """GPUs that replicas may use, as in FN_GPUS."""
    files_mib: int = 51_200
    """MiB that the cache of model files may take there."""
    is_draining: bool = False
    """Whether no replicas are placed there."""
    added_s: float = 0.0
    """Unix seconds."""
