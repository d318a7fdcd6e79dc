"""Machines that run replicas."""

from __future__ import annotations

from dataclasses import dataclass, field

LOCAL_HOST = "local"
"""Name of the machine that the server runs on: the default where none is named."""
HOSTS_MAX = 100
"""Max hosts beside the local one."""


def other_host(name: str) -> str:
    """Return the name of a host for texts, "" for LOCAL_HOST, which they do not mention."""
    return "" if name == LOCAL_HOST else name


def host_order(name: str) -> tuple[bool, str]:
    """Return the sort key of a host: LOCAL_HOST is the first, then they are by name."""
    return name != LOCAL_HOST, name


def id_on(host: str, id: str) -> str:
    """Return the id by which a part of a host, such as a device, is known among those of all hosts:
    HOST/ID, and ID alone for LOCAL_HOST."""
    return f"{host}/{id}" if other_host(host) else id


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
