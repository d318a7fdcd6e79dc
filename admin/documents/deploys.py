"""Types of bodies about deploys: files, requests, operations and their results."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from gateway.problem_document import PartialProblem
from registry.model.operations import OperationKind, OperationState
from registry.model.profiles import Profile
from registry.model.revisions import PredictForm
from registry.model.servers import HOST_OF_CLIENT, ServerImage
from runtime_image.contract.server import Network
from runtime_image.contract.signature import Signature


class Blob(msgspec.Struct):
    """A stored file of a bundle; `size` in bytes."""

    sha256: str
    size: int


class DeployedServer(msgspec.Struct):
    """The server of a deploy. `hidden`: folders of its image that folders in memory hide. Results
    of earlier releases have no `host`: their servers saw the client's."""

    ready: str
    network: Network
    wait_s: float
    host: str = HOST_OF_CLIENT
    found_host: str = HOST_OF_CLIENT
    image: ServerImage | UnsetType = UNSET
    hidden: list[str] | UnsetType = UNSET


class PythonCalls(msgspec.Struct):
    """How a Python function is called. `predict` is as in Python; `no_schema`: why `schema` is
    null."""

    signature: Signature
    predict: str
    form: PredictForm
    content_types: list[str]
    schema: dict[str, Any] | None
    no_schema: str


class OperationResult(msgspec.Struct, rename={"from_": "from"}, kw_only=True):
    """Result of a deploy or a rollback; empty until it is done. `files`, `size`: number and bytes
    of the files of a deploy, function.toml among them. `made_room`: that the function made room for
    its trial, at the end of the wait for room. `switch`: the change of the traffic. `compiled`:
    whether there is a compiled model, only if function.toml asks for one. `media`: the numbers that
    pictures and sounds become, only of integers. `warnings`: what cannot be kept or started now,
    only if there is something. `interface`: only of Python functions. `neighbours`: what a replica
    on several GPUs means for other functions. `from`: the revision that had it before a
    rollback."""

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
    interface: PythonCalls | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET
    from_: str | UnsetType = UNSET


class OperationRow(msgspec.Struct):
    """A deploy or a rollback. `error`: a problem document, empty for none."""

    id: str
    kind: OperationKind
    name: str
    state: OperationState
    phase: str
    result: OperationResult
    error: PartialProblem
    namespace: str
    created_s: float
    ended_s: float
