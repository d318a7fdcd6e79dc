"""The OpenAPI 3.1 document of one function: its signature as schemas, in each form of a call. Pure.

The forms are those of `runtime_image.codecs`: short JSON, the Open Inference Protocol's JSON and
its binary form, npy, pictures, sounds, bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gateway.openapi.call_routes import (
    CALLING,
    LENGTH,
    NOT_STARTED,
    NPY,
    READ,
    RUN,
    SENT,
    UNKNOWN,
)
from gateway.openapi.descriptions import example_inputs
from gateway.openapi.document import make_document
from gateway.openapi.routes import JSON, OCTETS, WORDS, Answer, Content, Route
from gateway.problems import OK
from runtime_image.codecs import raw
from runtime_image.codecs.tensors import has_null, nested_type
from runtime_image.contract.dtypes import BYTES, FLOATS
from runtime_image.contract.model import InputRule
from runtime_image.contract.signature import DYNAMIC, UNKNOWN_RANK_MAX, Signature, TensorSpec

if TYPE_CHECKING:
    from registry.catalog import Deployed
    from registry.model import Revision

BINARY_ONLY: Final = frozenset({"FP16", "BF16"})
"""Element types that the Open Inference Protocol's JSON cannot carry."""
_ANYTHING: Final[dict[str, Any]] = {}
_NUMBER: Final = {"type": "number"}
_SIZE: Final = {"type": "integer", "minimum": 0}


def function_document(deployed: Deployed) -> dict[str, Any]:
    """Return the document of a function that is no server."""
    function, revision = deployed.function, deployed.revision
    signature = revision.signature
    path = f"/fn/{function.name}"
    call = Route(
        "POST",
        path,
        function.name,
        f"Call {function.name}.",
        "invoke",
        (Answer(OK, WORDS[OK], (), (*SENT, LENGTH.name)),),
        (Content(JSON),),
        (LENGTH, *CALLING) if signature.kind == "tensors" else CALLING,
        (*UNKNOWN, *READ, *NOT_STARTED, *RUN),
        is_open=True,
    )
    about = f"Revision {revision.ref}. {_limits(deployed)}"
    info = {"title": function.name, "version": revision.ref, "description": about}
    document = make_document(info, [call])
    operation = document["paths"][path]["post"]
    operation["requestBody"]["content"] = content = _requests(revision)
    inputs = example_inputs(deployed)
    if signature.kind != "bytes" and inputs.keys() >= {one.name for one in signature.inputs}:
        content[JSON]["example"] = {"inputs": inputs}
    operation["responses"][str(OK)]["content"] = _answers(revision)
    return document


def _limits(deployed: Deployed) -> str:
    limits = deployed.function.limits
    return (
        f"A body has at most {limits.body_mib} MiB, a run takes at most {limits.timeout_s:g} s, and"
        f" a call waits at most {limits.wait_s:g} s for a replica unless `Prefer: wait` says else."
    )


def _requests(revision: Revision) -> dict[str, Any]:
    """Return the bodies that a function takes, by media type."""
    signature, rules = revision.signature, revision.inputs
    if signature.kind == "bytes":
        return {OCTETS: {}, "*/*": {}}
    found: dict[str, Any] = {JSON: _json_request(signature, rules)}
    if signature.kind == "json":
        return found
    found[OCTETS] = {}
    if len(signature.inputs) == 1:
        found[NPY] = {}
    if raw.declared(signature, rules, "image"):
        found["image/*"] = {}
    if raw.declared(signature, rules, "audio"):
        found |= {kind: {} for kind in raw.AUDIO_TYPES}
    return found


def _json_request(signature: Signature, rules: Mapping[str, InputRule]) -> dict[str, Any]:
    if signature.kind == "json":
        inputs: dict[str, Any] = {"type": "object"}
        return {"schema": _object({"inputs": inputs})}
    values = {one.name: _nested(one, rules) for one in signature.inputs}
    short = _object({"inputs": _object(values)})
    return {"schema": {"anyOf": [short, _oip_request(signature, rules)]}}


def _nested(spec: TensorSpec, rules: Mapping[str, InputRule]) -> dict[str, Any]:
    """Return the schema of a tensor as nested lists, which is what the codec checks."""
    return msgspec.json.schema(nested_type(spec, null=has_null(spec, rules)))


def _oip_request(signature: Signature, rules: Mapping[str, InputRule]) -> dict[str, Any]:
    """Return the schema of the Open Inference Protocol's JSON."""
    tensors = [_oip_input(one, rules) for one in signature.inputs]
    count = len(tensors)
    inputs = {"type": "array", "items": {"anyOf": tensors}, "minItems": count, "maxItems": count}
    names = [one.name for one in signature.outputs]
    output = {
        "type": "object",
        "properties": {"name": {"enum": names} if names else {"type": "string"}},
        "required": ["name"],
    }
    return {
        "type": "object",
        "properties": {
            "inputs": inputs,
            "id": {"type": "string"},
            "parameters": {"type": "object"},
            "outputs": {"type": "array", "items": output},
        },
        "required": ["inputs"],
    }


def _oip_input(spec: TensorSpec, rules: Mapping[str, InputRule]) -> dict[str, Any]:
    element = _nested(TensorSpec(spec.name, spec.dtype, ()), rules)
    flat = {"type": "array", "items": element}
    named = {
        "name": {"const": spec.name},
        "shape": _shape(spec),
        "datatype": {"const": spec.dtype},
        "parameters": {"type": "object"},
    }
    if spec.dtype in BINARY_ONLY:
        return _object(named, left_out=("parameters",), is_closed=False)
    is_flat = spec.shape is not None and len(spec.shape) < 2
    named["data"] = flat if is_flat else {"anyOf": [flat, _nested(spec, rules)]}
    return _object(named, left_out=("parameters", "data"), is_closed=False)


def _shape(spec: TensorSpec) -> dict[str, Any]:
    if spec.shape is None:
        return {"type": "array", "items": _SIZE, "maxItems": UNKNOWN_RANK_MAX}
    sizes = [_SIZE if size == DYNAMIC else {"const": size} for size in spec.shape]
    if not sizes:
        return {"type": "array", "maxItems": 0}
    count = len(sizes)
    return {"type": "array", "prefixItems": sizes, "minItems": count, "maxItems": count}


def _answers(revision: Revision) -> dict[str, Any]:
    """Return the answers of a function, by media type; `Accept` and the request choose."""
    signature = revision.signature
    short = _short_answer(revision)
    if signature.kind != "tensors":
        return {JSON: {"schema": short}}
    outputs = {"type": "array", "items": _oip_output(signature)}
    text = {"type": "string"}
    oip = {
        "type": "object",
        "properties": {"model_name": text, "model_version": text, "id": text, "outputs": outputs},
        "required": ["model_name", "outputs"],
    }
    return {JSON: {"schema": {"anyOf": [short, oip]}}, OCTETS: {}, NPY: {}}


def _short_answer(revision: Revision) -> dict[str, Any]:
    signature, rule = revision.signature, revision.output
    values = {one.name: _nested_answer(one) for one in signature.outputs}
    found = {
        "outputs": _object(values, is_closed=False) if values else _ANYTHING,
        "revision": {"type": "string"},
    }
    if rule.labels or rule.top_k:
        scored = _object({"label": {"type": "string"}, "score": _NUMBER})
        rows = {"type": "array", "items": {"type": "array", "items": scored}}
        return _object({**found, "top": rows}, left_out=("top",), is_closed=False)
    return _object(found, is_closed=False)


def _nested_answer(spec: TensorSpec) -> dict[str, Any]:
    """Return the schema of an output as nested lists. A NaN or an infinity is null."""
    element: dict[str, Any] = {"type": "integer"}
    if spec.dtype in FLOATS:
        element = {"type": ["number", "null"]}
    elif spec.dtype in (BYTES, "BOOL"):
        element = {"type": "string" if spec.dtype == BYTES else "boolean"}
    if spec.shape is None:
        return {"anyOf": [element, {"type": "array"}]}
    for size in reversed(spec.shape):
        element = {"type": "array", "items": element}
        if size != DYNAMIC:
            element |= {"minItems": size, "maxItems": size}
    return element


def _oip_output(signature: Signature) -> dict[str, Any]:
    names = [one.name for one in signature.outputs]
    return {
        "type": "object",
        "properties": {
            "name": {"enum": names} if names else {"type": "string"},
            "shape": {"type": "array", "items": _SIZE},
            "datatype": {"type": "string"},
            "parameters": {"type": "object"},
            "data": {"type": "array"},
        },
        "required": ["name", "shape", "datatype"],
    }


def _object(
    properties: dict[str, Any], *, left_out: tuple[str, ...] = (), is_closed: bool = True
) -> dict[str, Any]:
    """Return the schema of an object. `left_out`: members that may be missing. `is_closed`: it has
    no others."""
    found: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in left_out],
    }
    return {**found, "additionalProperties": False} if is_closed else found
