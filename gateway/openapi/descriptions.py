"""Descriptions of functions: the answers to `GET /fn/NAME`. Pure."""

from __future__ import annotations

import json
import math
import shlex
from typing import TYPE_CHECKING, Any, Final

from registry.model import ExchangeLimits
from runtime_image.codecs.request import content_types
from runtime_image.contract import signature as signatures
from runtime_image.contract.dtypes import BYTES, FLOATS
from runtime_image.contract.server import SampleRequest
from runtime_image.contract.signature import TensorSpec

if TYPE_CHECKING:
    from registry.catalog import Deployed
    from registry.exchange import PoolEndpoints

EXAMPLE_ITEMS_MAX: Final = 256
"""Max items of a tensor that an example shows as JSON; a larger one is shown as its type."""
RANGES_MAX: Final = 32
"""Max media ranges of a header Accept that are read."""


def prefers_page(accept: str) -> bool:
    """Return whether a header Accept asks for a page, as browsers do, and not for JSON."""
    kinds = [part.partition(";")[0].strip().lower() for part in accept.split(",")[:RANGES_MAX]]
    return "text/html" in kinds and "application/json" not in kinds


def describe_server(deployed: Deployed, endpoints: PoolEndpoints, origin: str) -> dict[str, Any]:
    """Return the function as JSON data. `origin` is the scheme and host that the client used."""
    function, revision = deployed.function, deployed.revision
    limits = function.exchange or ExchangeLimits()
    return {
        "name": function.name,
        "revision": revision.ref,
        "kind": "http",
        "state": endpoints.state,
        "reason": endpoints.told,
        "url": f"{origin}/fn/{function.name}/",
        "limits": {
            "wait_s": function.limits.wait_s,
            "concurrency": limits.concurrency,
            "first_byte_s": limits.first_byte_s,
            "stall_s": limits.stall_s,
            "max_s": limits.max_s,
        },
        "labels": function.labels,
        "example": server_example(deployed, origin),
    }


def server_example(deployed: Deployed, origin: str) -> str:
    """Return a curl command that calls the function: its first sample, or its root."""
    server = deployed.revision.server
    sample = server.samples[0] if server and server.samples else SampleRequest()
    words = ["curl"]
    if sample.method != ("POST" if sample.body else "GET"):
        words += ["-X", sample.method]
    for name, value in sample.headers.items():
        words += ["-H", f"{name}: {value}"]
    if sample.body:
        words += ["--data-binary", sample.body]
    return shlex.join([*words, f"{origin}/fn/{deployed.function.name}{sample.path}"])


def describe(deployed: Deployed, endpoints: PoolEndpoints, origin: str) -> dict[str, Any]:
    """Return the function as JSON data. `origin` is the scheme and host that the client used."""
    function, revision = deployed.function, deployed.revision
    return {
        "name": function.name,
        "revision": revision.ref,
        "state": endpoints.state,
        "reason": endpoints.told,
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
    """Return a curl command that calls the function, with zeros for numbers; for a server its first
    sample."""
    if deployed.revision.server is not None:
        return server_example(deployed, origin)
    url = f"{origin}/fn/{deployed.function.name}"
    for rule in deployed.revision.inputs.values():
        if rule.kind == "image":
            return f"curl {url} -H 'Content-Type: image/png' --data-binary @picture.png"
        if rule.kind == "audio":
            return f"curl {url} -H 'Content-Type: audio/wav' --data-binary @sound.wav"
        if rule.kind == "bytes":
            kind = "application/octet-stream"
            return f"curl {url} -H 'Content-Type: {kind}' --data-binary @file"
    inputs = {tensor.name: _example_value(tensor) for tensor in deployed.revision.signature.inputs}
    body = json.dumps({"inputs": inputs})
    return f"curl {url} -H 'Content-Type: application/json' -d '{body}'"


def zeros(tensor: TensorSpec, items_max: int) -> Any | None:
    """Return the JSON value of the `smallest_shape`, with numbers of 0.

    None if it has more than `items_max` items.
    """
    shape = tensor.smallest_shape
    if math.prod(shape) > items_max:
        return None
    value: Any = 0.0 if tensor.dtype in FLOATS else 0
    if tensor.dtype in (BYTES, "BOOL"):
        value = "" if tensor.dtype == BYTES else False
    for size in reversed(shape):
        value = [value] * size
    return value


def _example_value(tensor: TensorSpec) -> Any:
    value = zeros(tensor, EXAMPLE_ITEMS_MAX)
    return f"<{tensor.dtype} {list(tensor.smallest_shape)}>" if value is None else value
