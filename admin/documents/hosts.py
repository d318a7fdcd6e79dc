"""Types of bodies about hosts."""

from __future__ import annotations

import msgspec

from hosts.checks import Check as Check
from pool_manager.core.hosts import HostState


class HostRow(msgspec.Struct):
    """A machine that runs replicas. `address` is "" for the machine of the server. `reason`: why it
    is not up, or what is wrong with it. `agent`: why there are no reports of its GPUs and disk, ""
    if there are. `images`: number of images that this server has sent there. `clock_offset_s`: its
    clock minus that of the server. `transfer`: what is being sent there. Null means unknown."""

    name: str
    address: str
    state: HostState
    reason: str
    since_s: float
    labels: dict[str, str]
    driver: str
    engine_version: str
    rtt_ms: float | None
    agent: str
    cpu_slots: int
    gpus: int
    replicas: int
    disk_free_mib: int | None
    cached_files: int
    cached_mib: float
    images: int
    clock_offset_s: float | None
    transfer: str


class HostSettings(msgspec.Struct, rename={"is_draining": "draining"}):
    """The stored settings of a host. `host_key`: the pinned public key, "" for that of known_hosts;
    `identity`: file of a private key on the server's machine, "" for its agent's keys;
    `cpu_slots`: 0 for one per core; `files_mib`: limit of its cache of model files."""

    address: str
    labels: dict[str, str]
    host_key: str
    identity: str
    engine: str
    cpu_slots: int
    gpus: str
    files_mib: int
    is_draining: bool
    added_s: float


class HostDetail(HostRow):
    """A host with its settings, null for the machine of the server."""

    settings: HostSettings | None


class NewHost(HostDetail):
    """A new host, and the results of its checks; none if it was added unchecked."""

    checks: list[Check]


class RemovedHost(msgspec.Struct):
    """A host that is removed, or null while its `replicas` drain."""

    removed: str | None
    replicas: int
