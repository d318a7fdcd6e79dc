"""Types of bodies about the server itself: pools, devices, keys, secrets, aliases, images."""

from __future__ import annotations

from typing import Literal

import msgspec

from pool_manager.core.state import DeviceState, State
from pool_manager.images import RemovedImage
from registry.exchange import PoolState
from registry.key_form import KeyPriority
from registry.openness import Openness


class Removed(msgspec.Struct):
    """The name or id of what was removed."""

    removed: str


class PoolRow(msgspec.Struct):
    """All replicas of one revision."""

    pool: str
    state: PoolState
    reason: str
    ready: int
    wanted: int
    since_s: float


class ReplicaRow(msgspec.Struct):
    """A replica that is not stopped. A standby has no function yet. `devices`: ids of its devices;
    `device` is the first one, "" for none. `trouble`: why its server does not answer. `session`:
    the session that it serves with, such as "compiled", "" if unknown. `residue_mib`: what a parked
    one keeps of each of its devices; `ends_s`: when it is stopped; both null for others.
    `host_mib`: host memory that is charged to it for its park, 0 if it has not slept."""

    id: str
    pool: str
    function: str
    revision: str
    device: str
    devices: list[str]
    host: str
    role: Literal["serve", "standby", "trial", "build"]
    state: State
    since_s: float
    adopted: bool
    limit: int
    session: str
    memory_mib: float
    phases: dict[str, float]
    why: str
    trouble: str
    residue_mib: float | None
    host_mib: float
    ends_s: float | None


class DeviceRow(msgspec.Struct):
    """A device. `charged_mib`: memory of its replicas, and of those kept without a CPU slot that
    ran here last; `used_mib`: of all processes on the GPU; `busy`: share of the last seconds in
    which a model ran. `parked`: replicas that sleep and keep `residue_mib` of it, a part of
    `charged_mib`; the device is free for others. Null means unknown."""

    id: str
    host: str
    kind: str
    name: str | None
    index: str | None
    capability: str | None
    driver: str | None
    bank: str
    memory_mib: int
    charged_mib: int
    used_mib: int | None
    total_mib: int | None
    foreign_mib: int | None
    state: DeviceState
    reason: str
    replicas: list[str]
    busy: float | None
    parked: list[str]
    residue_mib: int


class Session(msgspec.Struct):
    """The scopes of the caller's key, and facts of the server."""

    scopes: list[str]
    version: str
    driver: str
    workers: int


class KeyRow(msgspec.Struct):
    """An access key without its secret."""

    id: str
    scopes: list[str]
    note: str
    created_s: float
    priority: KeyPriority


class AccessState(msgspec.Struct):
    """Who may call without a key. `exposure`: public hosts, trusted proxies and an address with
    which others than this machine reach the server."""

    openness: Openness
    exposure: list[str]
    has_keys: bool


class NewToken(msgspec.Struct):
    """Ids of the admin token and of the one that it replaced."""

    id: str
    replaced: str


class NewKey(KeyRow):
    """A new key. Only this answer has its secret."""

    secret: str


class SecretRow(msgspec.Struct):
    """A secret without its value. `problem`: why the value cannot be read, "" if it can."""

    name: str
    set_s: float
    problem: str
    functions: list[str]


class SecretChange(msgspec.Struct):
    """A changed secret. `stale`: functions with replicas that have the old value. `unreadable`:
    other secrets whose key is missing."""

    name: str
    set_s: float
    created: bool
    changed: bool
    stale: list[str]
    unreadable: list[str]


class RemovedSecret(msgspec.Struct):
    """A removed secret. `needed_by`: revisions that cannot start or be called any more."""

    removed: str
    needed_by: list[str]


class EnvironmentRow(msgspec.Struct):
    """The packages of Python functions in one folder, which equal locks share. `id`: its name; the
    first digits of it will do. `own_bytes`: the part of `size_bytes` that nothing shared when it
    was built. `functions`: the revisions that name it. `live`: those with the traffic or a replica,
    and functions whose deploy runs; they keep it from being removed. `needed_s`: when a revision
    last named it. Null where there is no folder."""

    id: str
    state: Literal["ready", "building", "missing"]
    python: str
    package_count: int
    size_bytes: int | None
    own_bytes: int | None
    functions: list[str]
    live: list[str]
    started_s: float | None
    needed_s: float | None


class EnvironmentPackage(msgspec.Struct):
    """A package. `size_bytes`: its wheel, null if the index does not say. `bundled`: whether it
    came with the function's files."""

    name: str
    version: str
    size_bytes: int | None
    bundled: bool


class EnvironmentDetail(EnvironmentRow):
    """An environment with its packages. `interpreter`: version of the Python that built it, ""
    where there is no folder."""

    interpreter: str
    platform: str
    libc: str
    files: int | None
    packages: list[EnvironmentPackage]


class RemovedEnvironment(msgspec.Struct):
    """A removed environment. `functions`: revisions that have it installed again when they get the
    traffic."""

    removed: str
    own_bytes: int
    functions: list[str]


class PrunedEnvironments(msgspec.Struct):
    """Environments that no revision named."""

    removed: list[RemovedEnvironment]


class AliasRow(msgspec.Struct):
    """A further name of a function's model at /v1."""

    alias: str
    function: str


class NewAlias(AliasRow):
    """An alias. `created` is false if the function had it already."""

    created: bool


class RemovedAlias(msgspec.Struct):
    """A removed alias."""

    removed: str
    function: str


class PrunedImages(msgspec.Struct):
    """Images that no function needed."""

    removed: list[RemovedImage]
