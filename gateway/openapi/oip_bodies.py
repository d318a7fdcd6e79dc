"""Types of the bodies below /v2. Pure.

KServe Open Inference Protocol (v2); Triton's extensions: binary data, model configuration, model
repository, statistics, shared memory.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType


class OipErrorAnswer(msgspec.Struct):
    """An error in the protocol's shape. The header Fn-Problem has its code."""

    error: str


class ServerMetadata(msgspec.Struct):
    """The server: its name and version, and the extensions that it has."""

    name: str
    version: str
    extensions: list[str]


class ServerLive(msgspec.Struct):
    """The process runs."""

    live: bool


class ServerReady(msgspec.Struct):
    """Calls are accepted."""

    ready: bool


class ModelReady(msgspec.Struct):
    """The model can be called."""

    name: str
    ready: bool


class TensorMetadata(msgspec.Struct):
    """A named tensor; -1 is a dimension of any size."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(msgspec.Struct):
    """A model: its versions, inputs and outputs."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class InferInput(msgspec.Struct):
    """A tensor of a request: `data`, or as many bytes behind the JSON part as
    `parameters.binary_data_size` says."""

    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] | UnsetType = UNSET
    data: list[Any] | UnsetType = UNSET


class WantedOutput(msgspec.Struct):
    """A wanted output; `parameters`: `binary_data`, `classification`."""

    name: str
    parameters: dict[str, Any] | UnsetType = UNSET


class InferRequest(msgspec.Struct):
    """An inference. Without `outputs`: all of them."""

    inputs: list[InferInput]
    id: str | UnsetType = UNSET
    parameters: dict[str, Any] | UnsetType = UNSET
    outputs: list[WantedOutput] | UnsetType = UNSET


class InferOutput(InferInput):
    """A tensor of an answer: `data`, or as many bytes behind the JSON part as
    `parameters.binary_data_size` says."""


class InferAnswer(msgspec.Struct):
    """The answer of an inference."""

    model_name: str
    outputs: list[InferOutput]
    model_version: str | UnsetType = UNSET
    id: str | UnsetType = UNSET
    parameters: dict[str, Any] | UnsetType = UNSET


class IndexEntry(msgspec.Struct):
    """A model of the repository. Reason `cold`: the next call wakes a replica."""

    name: str
    version: str
    state: Literal["READY", "UNAVAILABLE"]
    reason: str
