"""Types of the bodies of the gateway's own routes. Pure."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from runtime_image.contract.signature import Signature


class CallLimits(msgspec.Struct):
    """Limits of a call: seconds of a run, seconds of waiting, MiB of a body."""

    timeout_s: float
    wait_s: float
    body_mib: int


class ExchangeTimes(msgspec.Struct):
    """Limits of a request to a server function; 0 seconds for none."""

    wait_s: float
    concurrency: int
    first_byte_s: float
    stall_s: float
    max_s: float


class FunctionDescription(msgspec.Struct):
    """A function: its signature, the content types that it takes, and a curl line."""

    name: str
    revision: str
    state: str
    reason: str
    signature: Signature
    content_types: list[str]
    limits: CallLimits
    labels: dict[str, str]
    example: str


class ServerDescription(msgspec.Struct):
    """A server function: its address, and a curl line."""

    name: str
    revision: str
    kind: Literal["http"]
    state: str
    reason: str
    url: str
    limits: ExchangeTimes
    labels: dict[str, str]
    example: str


class PythonTimes(ExchangeTimes):
    """Limits of a call of a Python function; besides, seconds of one run or of one value of a
    stream, and MiB of a body."""

    timeout_s: float
    body_mib: int


class PythonDescription(ServerDescription):
    """A Python function: what is said of every server function, and how it is called. `signature`
    is as a model's, `predict` as in Python. `no_schema`: why `schema` is null."""

    limits: PythonTimes
    signature: Signature
    predict: str
    form: Literal["def", "async def", "generator", "async generator"]
    content_types: list[str]
    schema: dict[str, Any] | None
    no_schema: str


class Inputs(msgspec.Struct, forbid_unknown_fields=True):
    """A call in short JSON: nested lists by input, or any JSON values of a `json` function."""

    inputs: dict[str, Any]


class Scored(msgspec.Struct):
    """A class and its score."""

    label: str
    score: float


class Outputs(msgspec.Struct):
    """An answer in short JSON. `revision` answered. `top`: the best classes of each row, if the
    function has labels."""

    outputs: Any
    revision: str
    top: list[list[Scored]] | UnsetType = UNSET


class Health(msgspec.Struct):
    """The process runs."""

    status: Literal["ok"]


class Readiness(msgspec.Struct):
    """Whether calls are accepted, and what is wrong."""

    status: Literal["ok", "degraded", "stopping"]
    reasons: list[str]


class OpenAiError(msgspec.Struct):
    """An error, as clients of OpenAI's API read it."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAiErrorAnswer(msgspec.Struct):
    """The answer with an error of OpenAI's API."""

    error: OpenAiError


class AnthropicError(msgspec.Struct):
    """An error, as clients of Anthropic's API read it."""

    type: str
    message: str


class AnthropicErrorAnswer(msgspec.Struct):
    """The answer with an error of Anthropic's API."""

    type: Literal["error"]
    error: AnthropicError
    request_id: str


class ModelEntry(msgspec.Struct):
    """A model that the key may call."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(msgspec.Struct):
    """The models that the key may call."""

    object: Literal["list"]
    data: list[ModelEntry]


class AnthropicModel(msgspec.Struct):
    """A model that the key may call, in Anthropic's form."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str


class AnthropicModelList(msgspec.Struct):
    """The models that the key may call, in Anthropic's form, on one page."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None
