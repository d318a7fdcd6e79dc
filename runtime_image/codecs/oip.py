"""Requests in the Open Inference Protocol's JSON and its binary extension.

Source: KServe Open Inference Protocol (v2), "Inference"; Triton's "Binary data extension": a JSON
part of the length in the header Inference-Header-Content-Length, then the raw tensors in the
order of `inputs`, each with the length `parameters.binary_data_size`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from runtime_image.codecs import tensors
from runtime_image.codecs.tensors import (
    RawInput,
    bad_body,
    check_names,
    check_rows,
    check_shape,
    describe,
    from_binary,
    shorten,
)
from runtime_image.contract.errors import RequestError, bad_input
from runtime_image.contract.signature import Signature, TensorSpec

_EXPECTED: Final = 'an Open Inference Protocol object {"inputs": [{name, shape, datatype, data}]}'
_NESTED: Final = re.compile(rb"\s*+\[\s*+\[")
_BINARY_FORM: Final = (
    "%s as binary data: parameters.binary_data_size, the header Inference-Header-Content-Length and"
    " the elements behind the JSON part"
)
_BINARY_ONLY: Final = frozenset({"FP16", "BF16"})


class _InputParameters(msgspec.Struct):
    binary_data_size: int | None = None
    shared_memory_region: Any = None


class _Input(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    parameters: _InputParameters = msgspec.field(default_factory=_InputParameters)
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _OutputParameters(msgspec.Struct):
    binary_data: bool | None = None
    classification: Any = None
    shared_memory_region: Any = None


class _Output(msgspec.Struct):
    name: str
    parameters: _OutputParameters = msgspec.field(default_factory=_OutputParameters)


class _Parameters(msgspec.Struct):
    binary_data_output: bool = False


class _Body(msgspec.Struct):
    inputs: list[_Input]
    id: str = ""
    outputs: list[_Output] = msgspec.field(default_factory=list)
    parameters: _Parameters = msgspec.field(default_factory=_Parameters)


_body: Final = msgspec.json.Decoder(_Body)


@dataclass(slots=True)
class OipRequest:
    """A parsed request. `outputs` are the requested outputs in order, () for all. `binary` names
    the outputs to be sent raw; `binary_all` stands for every output."""

    inputs: dict[str, RawInput]
    id: str
    outputs: tuple[str, ...]
    binary: tuple[str, ...]
    binary_all: bool


def read(body: memoryview, json_length: int | None, signature: Signature) -> OipRequest:
    """Parse a request of either form; raises BAD_INPUT. `json_length` None: the body is all
    JSON."""
    length = len(body) if json_length is None else json_length
    if not 0 < length <= len(body):
        raise bad_body(
            f"Inference-Header-Content-Length from 1 to {len(body)}, the body's length",
            shorten(str(length)),
        )
    try:
        request = _body.decode(body[:length])
    except (ValueError, RecursionError) as error:
        raise bad_body(_EXPECTED, shorten(str(error))) from None
    inputs = _inputs(request.inputs, body[length:], signature)
    wanted = _outputs(request.outputs, signature)
    everywhere = request.parameters.binary_data_output
    binary = tuple(
        item.name
        for item in request.outputs
        if (everywhere if item.parameters.binary_data is None else item.parameters.binary_data)
    )
    return OipRequest(inputs, request.id, wanted, binary, everywhere and not wanted)


def _inputs(items: list[_Input], raw: memoryview, signature: Signature) -> dict[str, RawInput]:
    check_names((item.name for item in items), signature)
    specs = {spec.name: spec for spec in signature.inputs}
    inputs: dict[str, RawInput] = {}
    at = 0
    for item in items:
        size = item.parameters.binary_data_size
        if size is None:
            inputs[item.name] = _from_json(specs[item.name], item)
            continue
        if not 0 <= size <= len(raw) - at:
            raise bad_input(
                item.name,
                f"binary_data_size from 0 to {len(raw) - at}, the rest of the body",
                shorten(str(size)),
            )
        inputs[item.name] = _from_raw(specs[item.name], item, raw[at : at + size])
        at += size
    if at != len(raw):
        raise bad_body(f"{at} bytes of tensors after the JSON part", f"{len(raw)} bytes")
    check_rows(inputs, signature)
    return inputs


def _from_raw(spec: TensorSpec, item: _Input, data: memoryview) -> RawInput:
    if item.data is not msgspec.UNSET:
        raise bad_input(spec.name, "either data or binary_data_size", "both")
    return from_binary(spec, item.datatype, tuple(item.shape), data)


def _from_json(spec: TensorSpec, item: _Input) -> RawInput:
    raw = item.data
    if item.parameters.shared_memory_region is not None:
        raise bad_input(
            spec.name, "data or binary_data_size", "shared memory, which is not supported"
        )
    if isinstance(raw, msgspec.UnsetType):
        raise bad_input(spec.name, "data or parameters.binary_data_size", "neither")
    if item.datatype != spec.dtype:
        raise bad_input(spec.name, describe(spec), f"datatype {shorten(item.datatype)}")
    if spec.dtype in _BINARY_ONLY:
        raise bad_input(spec.name, _BINARY_FORM % spec.dtype, "JSON")
    shape = tuple(item.shape)
    check_shape(spec, shape)
    if len(shape) < 2 or _NESTED.match(memoryview(raw)) is None:
        return RawInput("json", spec.dtype, shape, tensors.read_flat(spec, shape, raw))
    value, measured = tensors.read(spec, raw)
    if measured != shape:
        raise bad_input(spec.name, f"data of shape {list(shape)}", f"shape {list(measured)}")
    return RawInput("json", spec.dtype, shape, value)


def _outputs(items: list[_Output], signature: Signature) -> tuple[str, ...]:
    known = {spec.name for spec in signature.outputs}
    names: list[str] = []
    for item in items:
        if known and item.name not in known:
            raise _bad_output(item.name, f"one of: {', '.join(sorted(known))}", "an unknown name")
        if item.name in names:
            raise _bad_output(item.name, "to be requested once", "twice")
        if item.parameters.classification is not None:
            raise _bad_output(item.name, "plain data", "classification, which is not supported")
        if item.parameters.shared_memory_region is not None:
            raise _bad_output(item.name, "plain data", "shared memory, which is not supported")
        names.append(item.name)
    return tuple(names)


def _bad_output(name: str, expected: str, got: str) -> RequestError:
    return bad_body(f"output {shorten(name)!r}: {expected}", got)
