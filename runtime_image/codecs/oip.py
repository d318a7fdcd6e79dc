"""Requests in the Open Inference Protocol's JSON and its binary extension.

Source: KServe Open Inference Protocol (v2), "Inference"; Triton's "Binary data extension": a JSON
part of the length in the header Inference-Header-Content-Length, then the raw tensors in the
order of `inputs`, each with the length `parameters.binary_data_size`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from runtime_image.codecs import parameters, tensors
from runtime_image.codecs.json_faults import bad_json
from runtime_image.codecs.tensors import (
    BINARY_FORM,
    RawInput,
    bad_body,
    check_names,
    check_shape,
    describe,
    from_binary,
    has_null,
    shorten,
)
from runtime_image.contract import dtypes
from runtime_image.contract.errors import RequestError, bad_input
from runtime_image.contract.model import InputRule
from runtime_image.contract.signature import Signature, TensorSpec

_EXPECTED: Final = 'an Open Inference Protocol object {"inputs": [{name, shape, datatype, data}]}'
_NESTED: Final = re.compile(rb"\s*+\[\s*+\[")
_BINARY_ONLY: Final = frozenset({"FP16", "BF16"})
CLASSES_MAX: Final = 1_000_000
"""Max classes per row of an output, as in Triton."""
NOT_CLASSES: Final = frozenset({"BOOL", dtypes.BYTES})
"""Types of outputs that are no scores."""


_Size = Annotated[int, Meta(ge=-1, le=2**63 - 1)]
"""Size of an axis. The bound keeps numbers of thousands of digits out of products and errors."""
_Shape = Annotated[tuple[_Size, ...], Meta(max_length=64)]
"""As many axes as NumPy's arrays may have."""


class _InputParameters(msgspec.Struct, gc=False):
    binary_data_size: int | None = None
    shared_memory_region: str | None = None


class _Input(msgspec.Struct, gc=False):
    name: str
    shape: _Shape
    datatype: str
    parameters: _InputParameters | None = None
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _OutputParameters(msgspec.Struct, gc=False):
    binary_data: bool | None = None
    classification: int | None = None
    shared_memory_region: str | None = None


class _Output(msgspec.Struct, gc=False):
    name: str
    parameters: _OutputParameters | None = None


class _Body(msgspec.Struct, gc=False):
    inputs: list[_Input]
    id: str | None = None
    outputs: list[_Output] | None = None
    parameters: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_NO_INPUT_PARAMETERS: Final = _InputParameters()
_NO_OUTPUT_PARAMETERS: Final = _OutputParameters()
_body: Final = msgspec.json.Decoder(_Body)


@dataclass(slots=True)
class OipRequest:
    """A parsed request. `outputs` are the requested outputs in order, () for all. `binary` names
    the outputs to be sent raw; `binary_all` stands for every output. `classes` are the outputs
    to be sent as their best classes, with the number of these."""

    inputs: dict[str, RawInput]
    id: str
    outputs: tuple[str, ...]
    binary: tuple[str, ...]
    binary_all: bool
    classes: tuple[tuple[str, int], ...] = ()


def read(
    body: memoryview,
    json_length: int | None,
    signature: Signature,
    rules: Mapping[str, InputRule],
) -> OipRequest:
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
        raise bad_json(_EXPECTED, body[:length], error) from None
    inputs = _inputs(request.inputs, body[length:], signature, rules)
    everywhere = False
    if not isinstance(request.parameters, msgspec.UnsetType):
        everywhere = bool(parameters.read(request.parameters).binary_data_output)
    if not request.outputs:
        return OipRequest(inputs, request.id or "", (), (), everywhere)
    wanted = _outputs(request.outputs, signature)
    binary = tuple(
        name
        for name, given in wanted.items()
        if (everywhere if given.binary_data is None else given.binary_data)
    )
    classes = tuple(
        (name, given.classification)
        for name, given in wanted.items()
        if given.classification is not None
    )
    return OipRequest(inputs, request.id or "", tuple(wanted), binary, False, classes)


def _inputs(
    items: list[_Input], raw: memoryview, signature: Signature, rules: Mapping[str, InputRule]
) -> dict[str, RawInput]:
    check_names((item.name for item in items), signature)
    specs = {spec.name: spec for spec in signature.inputs}
    inputs: dict[str, RawInput] = {}
    at = 0
    for item in items:
        given = item.parameters or _NO_INPUT_PARAMETERS
        if given.shared_memory_region is not None:
            expected = "data or parameters.binary_data_size"
            raise bad_input(item.name, expected, "shared memory, which is not supported")
        size = given.binary_data_size
        if size is None:
            spec = specs[item.name]
            inputs[item.name] = _from_json(spec, item, null=has_null(spec, rules))
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
    return inputs


def _from_raw(spec: TensorSpec, item: _Input, data: memoryview) -> RawInput:
    if item.data is not msgspec.UNSET:
        raise bad_input(spec.name, "either data or binary_data_size", "both")
    return from_binary(spec, item.datatype, item.shape, data)


def _from_json(spec: TensorSpec, item: _Input, *, null: bool) -> RawInput:
    raw = item.data
    if isinstance(raw, msgspec.UnsetType):
        raise bad_input(spec.name, "data or parameters.binary_data_size", "neither")
    if item.datatype != spec.dtype:
        raise bad_input(spec.name, describe(spec), f"datatype {shorten(item.datatype)}")
    if spec.dtype in _BINARY_ONLY:
        raise bad_input(spec.name, BINARY_FORM % spec.dtype, "JSON")
    shape = item.shape
    check_shape(spec, shape)
    if len(shape) < 2 or _NESTED.match(memoryview(raw)) is None:
        flat = tensors.read_flat(spec, shape, raw, null=null)
        return RawInput("json", spec.dtype, shape, flat)
    value, measured = tensors.read(spec, raw, null=null)
    # Axes inside an empty one cannot be seen in nested lists.
    seen = measured.index(0) + 1 if 0 in measured else len(measured)
    if measured[:seen] != shape[:seen]:
        raise bad_input(spec.name, f"data of shape {list(shape)}", f"shape {list(measured)}")
    return RawInput("json", spec.dtype, shape, value)


def _outputs(items: list[_Output], signature: Signature) -> dict[str, _OutputParameters]:
    """Return the parameters of each requested output, in order."""
    known = {spec.name: spec.dtype for spec in signature.outputs}
    wanted: dict[str, _OutputParameters] = {}
    for item in items:
        name = item.name
        if known and name not in known:
            raise _bad_output(name, f"one of: {', '.join(sorted(known))}", "an unknown name")
        if name in wanted:
            raise _bad_output(name, "to be requested once", "twice")
        given = wanted[name] = item.parameters or _NO_OUTPUT_PARAMETERS
        if given.shared_memory_region is not None:
            raise _bad_output(name, "plain data", "shared memory, which is not supported")
        if given.classification is not None:
            _check_classes(name, given.classification, known.get(name, ""))
    return wanted


def _check_classes(name: str, count: int, dtype: str) -> None:
    if not 0 < count <= CLASSES_MAX:
        expected = f"classification from 1 to {CLASSES_MAX}, the number of classes"
        raise _bad_output(name, expected, shorten(str(count)))
    if dtype in NOT_CLASSES:
        raise _bad_output(name, "numbers for a classification", dtype)


def _bad_output(name: str, expected: str, got: str) -> RequestError:
    return bad_body(f"output {shorten(name)!r}: {expected}", got)
