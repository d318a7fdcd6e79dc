"""Schemas of the bodies of a function of tensors, in each form of a call. Pure.

The forms are those of `runtime_image.codecs`: short JSON, the Open Inference Protocol's JSON and
its binary form, npy, pictures, sounds, bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from gateway.openapi.call_routes import NPY
from gateway.openapi.routes import JSON, OCTETS
from runtime_image.codecs import raw
from runtime_image.codecs.tensors import has_null, nested_type
from runtime_image.contract.dtypes import BYTES, FLOATS
from runtime_image.contract.model import InputRule, OutputRule
from runtime_image.contract.signature import DYNAMIC, UNKNOWN_RANK_MAX, Signature, TensorSpec

BINARY_ONLY: Final = frozenset({"FP16", "BF16"})
"""Element types that the Open Inference Protocol's JSON cannot carry."""
_ANYTHING: Final[dict[str, Any]] = {}
_NUMBER: Final = {"type": "number"}
_SIZE: Final = {"type": "integer", "minimum": 0}


def tensor_requests(signature: Signature, rules: dict[str, InputRule]) -> dict[str, Any]:
    """Return the bodies that a function takes, by media type."""
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
        return {"schema": closed_object({"inputs": inputs})}
    values = {one.name: _nested(one, rules) for one in signature.inputs}
    short = closed_object({"inputs": closed_object(values)})
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
        return closed_object(named, left_out=("parameters",), is_closed=False)
    is_flat = spec.shape is not None and len(spec.shape) < 2
    named["data"] = flat if is_flat else {"anyOf": [flat, _nested(spec, rules)]}
    return closed_object(named, left_out=("parameters", "data"), is_closed=False)


def _shape(spec: TensorSpec) -> dict[str, Any]:
    if spec.shape is None:
        return {"type": "array", "items": _SIZE, "maxItems": UNKNOWN_RANK_MAX}
    sizes = [_SIZE if size == DYNAMIC else {"const": size} for size in spec.shape]
    if not sizes:
        return {"type": "array", "maxItems": 0}
    count = len(sizes)
    return {"type": "array", "prefixItems": sizes, "minItems": count, "maxItems": count}


def tensor_answers(signature: Signature, rule: OutputRule) -> dict[str, Any]:
    """Return the answers of a function, by media type; `Accept` and the request choose."""
    short = _short_answer(signature, rule)
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


def _short_answer(signature: Signature, rule: OutputRule) -> dict[str, Any]:
    values = {one.name: _nested_answer(one) for one in signature.outputs}
    found = {
        "outputs": closed_object(values, is_closed=False) if values else _ANYTHING,
        "revision": {"type": "string"},
    }
    if rule.labels or rule.top_k:
        scored = closed_object({"label": {"type": "string"}, "score": _NUMBER})
        rows = {"type": "array", "items": {"type": "array", "items": scored}}
        return closed_object({**found, "top": rows}, left_out=("top",), is_closed=False)
    return closed_object(found, is_closed=False)


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


def closed_object(
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
