"""Descriptions of functions: the answers to `GET /fn/NAME`. Pure."""

from __future__ import annotations

import json
import math
import shlex
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gateway.openapi.input_fields import call_line, filled
from gateway.openapi.input_fields import example_inputs as example_of
from registry.model.functions import ExchangeLimits
from registry.model.revisions import Interface
from runtime_image.codecs.request import content_types
from runtime_image.contract import signature as signatures
from runtime_image.contract.dtypes import BYTES, FLOATS
from runtime_image.contract.samples import SampleRequest
from runtime_image.contract.signature import Signature, TensorSpec

if TYPE_CHECKING:
    from registry.catalog import Deployed
    from registry.exchange import PoolEndpoints
    from registry.model.revisions import Revision

EXAMPLE_ITEMS_MAX: Final = 256
"""Max items of a tensor that an example shows as JSON; a larger one is shown as its type."""
EXAMPLE_CHARS_MAX: Final = 4096
"""The same for a value of a sample: max characters of its JSON."""
_FILES: Final = {
    "image": ("image/png", "picture.png"),
    "audio": ("audio/wav", "sound.wav"),
    "bytes": ("application/octet-stream", "file"),
}
"""Content type and name of a file in an example, by the kind of its input."""
NOT_DESCRIBED: Final = "its trial asked for none: deploy it again, with a changed file"
"""Why a Python function has no interface."""
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


def describe_python(deployed: Deployed, endpoints: PoolEndpoints, origin: str) -> dict[str, Any]:
    """Return a Python function as JSON data: what `describe_server` returns, and how it is called.
    `origin` is the scheme and host that the client used."""
    found, limits = describe_server(deployed, endpoints, origin), deployed.function.limits
    own = {"timeout_s": limits.timeout_s, "body_mib": limits.body_mib}
    limited = {"limits": {**found["limits"], **own}}
    return {**found, **python_calls(deployed.revision.interface), **limited}


def python_calls(interface: Interface | None) -> dict[str, Any]:
    """Return how a Python function is called as JSON data. `signature` is as a model's, `predict`
    as in Python; `no_schema` says why `schema` is null."""
    said = interface or Interface(why_not=NOT_DESCRIBED)
    return {
        "signature": signatures.to_json(said.tensors or Signature("json", (), ())),
        "predict": said.predict,
        "form": said.form,
        "content_types": list(said.content_types),
        "schema": msgspec.json.decode(said.schema) if said.schema else None,
        "no_schema": said.why_not,
    }


def server_example(deployed: Deployed, origin: str) -> str:
    """Return a curl command that calls the function: its first sample, or its root; a Python
    function with its sample, or with inputs that its schema allows."""
    if deployed.revision.interface is not None:
        return _python_example(deployed.revision, f"{origin}/fn/{deployed.function.name}")
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


def _python_example(revision: Revision, url: str) -> str:
    calls = python_calls(revision.interface)
    inputs = revision.sample or example_of(calls)
    line = call_line(url, inputs, is_stream=calls["form"].endswith("generator"))
    if len(line) <= EXAMPLE_CHARS_MAX:
        return line
    return shlex.join(["curl", url, "-H", "Content-Type: application/json", "-d", "@request.json"])


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
    """Return a curl command that calls the function, with the inputs of `example_inputs`; for a
    server with its first sample."""
    if deployed.revision.server is not None:
        return server_example(deployed, origin)
    url = f"{origin}/fn/{deployed.function.name}"
    for rule in deployed.revision.inputs.values():
        if rule.kind in _FILES:
            kind, file = _FILES[rule.kind]
            return f"curl {url} -H 'Content-Type: {kind}' --data-binary @{file}"
    known, specs = example_inputs(deployed), deployed.revision.signature.inputs
    types = {one.name: f"<{one.dtype} {list(one.smallest_shape)}>" for one in specs}
    body = json.dumps({"inputs": {**types, **known}})
    return shlex.join(["curl", url, "-H", "Content-Type: application/json", "-d", body])


def example_inputs(deployed: Deployed) -> dict[str, Any]:
    """Return inputs of a call as JSON values: those of the sample, otherwise zeros.

    Inputs are missing that are too large to be shown, that have no JSON form and that are files of
    the sample; and all, if a run of zeros is known to fail.
    """
    revision, profile = deployed.revision, deployed.profile
    if revision.sample:
        given = revision.sample.items()
        return {name: value for name, value in given if _is_shown(value)}
    if profile is not None and not profile.profiled:
        return {}
    found = {one.name: zeros(one, EXAMPLE_ITEMS_MAX) for one in revision.signature.inputs}
    return {name: value for name, value in found.items() if value is not None}


def _is_shown(value: object) -> bool:
    is_file = isinstance(value, str) and value.startswith("@")
    return not is_file and len(json.dumps(value)) <= EXAMPLE_CHARS_MAX


def zeros(tensor: TensorSpec, items_max: int) -> Any | None:
    """Return the JSON value of the `smallest_shape`, with numbers of 0.

    None if it has more than `items_max` items, and for BF16, which has no JSON form.
    """
    shape = tensor.smallest_shape
    if math.prod(shape) > items_max or tensor.dtype == "BF16":
        return None
    value: Any = 0.0 if tensor.dtype in FLOATS else 0
    if tensor.dtype in (BYTES, "BOOL"):
        value = "" if tensor.dtype == BYTES else False
    return filled(value, shape)
