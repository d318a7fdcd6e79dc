"""Types of bodies about deploys: files, requests, operations and their results."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from admin.deploy.plan import WireDeploy, WireRollback
from registry.model.operations import OperationKind, OperationState
from registry.model.profiles import Profile
from registry.model.servers import ServerImage
from runtime_image.contract.server import Network


class DeployRequest(WireDeploy, forbid_unknown_fields=True):
    """A deploy. `files`: the files of the bundle, uploaded before. `manifest`: the text of
    function.toml, or null for a bare model file, named by `model`. `trust`: a handler may run with
    the rights of the server. `breaking`: callers of the current revision may break. `overrides`:
    settings beside function.toml."""


class RollbackRequest(WireRollback, forbid_unknown_fields=True):
    """A rollback. `to`: number of a revision, or null for the one before."""


class Blob(msgspec.Struct):
    """A stored file of a bundle; `size` in bytes."""

    sha256: str
    size: int


class DeployedServer(msgspec.Struct):
    """The server of a deploy. `hidden`: folders of its image that folders in memory hide."""

    ready: str
    network: Network
    wait_s: float
    host: str
    found_host: str
    image: ServerImage | UnsetType = UNSET
    hidden: list[str] | UnsetType = UNSET


class OperationResult(msgspec.Struct, rename={"from_": "from"}, kw_only=True):
    """Result of a deploy or a rollback; empty until it is done. `files`, `size`: number and bytes
    of the files of a deploy, function.toml among them. `made_room`: that the function made room for
    its trial, at the end of the wait for room. `switch`: the change of the traffic. `compiled`:
    whether there is a compiled model, only if function.toml asks for one. `media`: the numbers that
    pictures and sounds become, only of integers. `warnings`: what cannot be kept or started now,
    only if there is something. `neighbours`: what a replica on several GPUs means for other
    functions. `from`: the revision that had it before a rollback."""

    revision: str | UnsetType = UNSET
    created: bool | UnsetType = UNSET
    files: int | UnsetType = UNSET
    size: int | UnsetType = UNSET
    changed: list[str] | UnsetType = UNSET
    sample: dict[str, Any] | UnsetType = UNSET
    profile: Profile | UnsetType | None = UNSET
    batch_max: int | UnsetType = UNSET
    batching: str | UnsetType = UNSET
    compiled: str | UnsetType = UNSET
    media: str | UnsetType = UNSET
    neighbours: str | UnsetType = UNSET
    switch: str | UnsetType = UNSET
    made_room: str | UnsetType = UNSET
    server: DeployedServer | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET
    from_: str | UnsetType = UNSET


class OperationRow(msgspec.Struct):
    """A deploy or a rollback. `error`: a problem document without type, empty for none."""

    id: str
    kind: OperationKind
    name: str
    state: OperationState
    phase: str
    result: OperationResult
    error: dict[str, Any]
    namespace: str
    created_s: float
    ended_s: float
