"""Machines that run replicas."""

from __future__ import annotations

import msgspec

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


class Host(msgspec.Struct, frozen=True):
    """The definition of a machine that runs replicas, or of several; each kind has a Struct of its
    own, told apart by its tag. This machine has none, and is not stored."""

    name: str
    """Name, unique; also the value of its label `host`."""
    labels: dict[str, str] = {}
    """The operator's labels; functions name those that their host must have."""
    is_draining: bool = False
    """Whether no replicas are placed there."""
    added_s: float = 0.0
    """Unix seconds."""


class SshHost(Host, frozen=True, kw_only=True, tag_field="kind", tag="ssh"):
    """A machine with sshd and a container engine. Servers before the tag have stored none."""

    address: str
    """Login by SSH: `[USER@]HOST[:PORT]`."""
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


StoredHost = SshHost
"""The definitions that are stored: a union of all kinds with a tag."""
