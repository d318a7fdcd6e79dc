"""`GET /fn/{name}`: what a function takes, how it is, how to call it."""

from __future__ import annotations

import json
import math
from typing import Any

from registry.catalog import Deployed
from registry.exchange import PoolEndpoints
from runtime_image.codecs.request import content_types
from runtime_image.contract import signature as signatures
from runtime_image.contract.dtypes import BYTES, FLOATS
from runtime_image.contract.signature import DYNAMIC, TensorSpec

EXAMPLE_ITEMS_MAX = 256


def describe(deployed: Deployed, shown: PoolEndpoints, origin: str) -> dict[str, Any]:
    """The function as JSON data. `origin` is how the client reached this server."""
    function, revision = deployed.function, deployed.revision
    return {
        "name": function.name,
        "revision": revision.ref,
        "state": shown.state,
        "reason": shown.reason,
        "signature": signatures.to_json(revision.signature),
        "content_types": content_types(revision.signature, revision.inputs),
        "limits": {
            "timeout_s": function.limits.timeout_s,
            "wait_s": function.limits.wait_s,
            "body_mib": function.limits.body_mib,
        },
        "labels": function.labels,
        "example": example(deployed, origin),
    }


def example(deployed: Deployed, origin: str) -> str:
    """A call that can be pasted into a shell, with zeros for numbers."""
    url = f"{origin}/fn/{deployed.function.name}"
    for rule in deployed.revision.inputs.values():
        if rule.kind == "image":
            return f"curl {url} -H 'Content-Type: image/png' --data-binary @picture.png"
        if rule.kind == "audio":
            return f"curl {url} -H 'Content-Type: audio/wav' --data-binary @sound.wav"
        if rule.kind == "bytes":
            kind = "application/octet-stream"
            return f"curl {url} -H 'Content-Type: {kind}' --data-binary @file"
    inputs = {tensor.name: _shown(tensor) for tensor in deployed.revision.signature.inputs}
    body = json.dumps({"inputs": inputs})
    return f"curl {url} -H 'Content-Type: application/json' -d '{body}'"


def zeros(tensor: TensorSpec, items_max: int) -> Any | None:
    """The least value that fits, as JSON: dynamic dimensions are 1, numbers 0. None where it has
    more than `items_max` items."""
    shape = _least(tensor)
    if math.prod(shape) > items_max:
        return None
    value: Any = 0.0 if tensor.dtype in FLOATS else 0
    if tensor.dtype in (BYTES, "BOOL"):
        value = "" if tensor.dtype == BYTES else False
    for size in reversed(shape):
        value = [value] * size
    return value


def _shown(tensor: TensorSpec) -> Any:
    value = zeros(tensor, EXAMPLE_ITEMS_MAX)
    return f"<{tensor.dtype} {_least(tensor)}>" if value is None else value


def _least(tensor: TensorSpec) -> list[int]:
    return [1 if size == DYNAMIC else size for size in tensor.shape]
