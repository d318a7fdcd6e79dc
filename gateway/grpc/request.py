"""A ModelInferRequest as a body in the Open Inference Protocol's binary form. Pure, without NumPy.

Typed contents become little-endian bytes. For bools and floats these are the bytes of the packed
field (Protocol Buffers Encoding, "Packed Repeated Fields"); integers are variable-length there and
are converted in pieces, between which other threads run.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from gateway.grpc.fields import check_fields, nested_of
from gateway.grpc.messages import message, parse
from gateway.grpc.wire import FIELDS_MAX, NotPlain, Split, split
from gateway.replies import Body
from registry.errors import BadInput, BadRequest, BodyTooLarge, FnError, NotServed
from runtime_image.contract import dtypes

REQUEST: Final = message("ModelInferRequest")
NESTED: Final = nested_of(REQUEST.DESCRIPTOR)
UNCHECKED: Final = 64 * 1024
"""Bytes of a message that is parsed without counting its fields."""
AXES_MAX: Final = 64
"""Max axes of a tensor: the product of its sizes is computed."""
TYPED_MAX: Final = 4 * 2**20
"""Max bytes of a request without its raw tensors. Typed contents take up to sixteen times as much
while they are converted, and up to 10 ms for each MiB in which no other thread runs."""
PIECE: Final = 4096
"""Elements that are converted without letting other threads run."""
SHOWN_MAX: Final = 100
"""Max characters of a client's text in an error."""
NO_FINAL: Final = "triton_enable_empty_final_response"
"""Parameter of requests in a stream. Without decoupled models every answer is final, so that there
is nothing to enable."""
_SHARED: Final = "shared_memory_"
_CONTENTS: Final = {
    "BOOL": ("bool_contents", ""),
    "INT8": ("int_contents", "b"),
    "INT16": ("int_contents", "h"),
    "INT32": ("int_contents", "i"),
    "INT64": ("int64_contents", "q"),
    "UINT8": ("uint_contents", "B"),
    "UINT16": ("uint_contents", "H"),
    "UINT32": ("uint_contents", "I"),
    "UINT64": ("uint64_contents", "Q"),
    "FP32": ("fp32_contents", ""),
    "FP64": ("fp64_contents", ""),
    dtypes.BYTES: ("bytes_contents", ""),
}
"""Field of the typed contents of each datatype, and the type code in `array` of one that is an
integer; FP16 and BF16 have none."""
_encoder: Final = msgspec.json.Encoder()


class Packed(NamedTuple):
    """The body of an inference: its JSON part, and the tensors that follow it."""

    json: bytes
    tensors: Sequence[Body]


class Read(NamedTuple):
    """A request that was read: what it calls, and its body or what is wrong with it."""

    model: str
    version: str
    id: bytes
    packed: Packed | FnError


def read(data: bytes) -> Read:
    """Return the request in a message. Use `read_parts` if it is split already."""
    try:
        try:
            parts = split(data)
        except NotPlain:
            parts = _split_any(data)
    except FnError as error:
        return Read("", "", b"", error)
    return read_parts(parts)


def read_parts(parts: Split) -> Read:
    """Return the request in a message's parts."""
    try:
        if len(parts.head) > TYPED_MAX:
            raise BodyTooLarge(
                f"expected at most {TYPED_MAX} bytes besides raw_input_contents,"
                f" got {len(parts.head)}; send large tensors there"
            )
        ident = parts.id.decode()
        request = _parsed(parts.head)
    except UnicodeDecodeError:
        return Read("", "", b"", BadRequest("id: expected UTF-8, got other bytes"))
    except FnError as error:
        return Read("", "", b"", error)
    model, version = request.model_name, request.model_version
    try:
        return Read(model, version, ident.encode(), pack(request, parts.raw))
    except FnError as error:
        return Read(model, version, ident.encode(), error)


def _parsed(data: bytes) -> Any:
    """Return a parsed request. Raises BadRequest."""
    if len(data) > UNCHECKED:
        check_fields(data, NESTED)
    return parse(REQUEST, data)


def _split_any(data: bytes) -> Split:
    """Return the parts of a message that only a complete parser reads. Raises FnError."""
    if len(data) > TYPED_MAX:
        raise BodyTooLarge(
            f"expected at most {TYPED_MAX} bytes in a message with unknown or repeated fields,"
            f" got {len(data)}"
        )
    request = _parsed(data)
    if len(request.raw_input_contents) > FIELDS_MAX:
        raise BadRequest(f"expected at most {FIELDS_MAX} raw_input_contents, got more")
    raw = [memoryview(one) for one in request.raw_input_contents]
    ident = request.id.encode()
    request.DiscardUnknownFields()
    request.ClearField("raw_input_contents")
    request.ClearField("id")
    return Split(request.SerializeToString(), ident, raw)


def pack(request: Any, raw: Sequence[Body]) -> Packed:
    """Return the body of a parsed request, whose raw tensors are `raw`.

    Raises BadInput for what does not fit together; whether it fits the model, the model's codec
    decides. Raises NotServed for tensors in shared memory.
    """
    for one in request.inputs:
        _check_shared(one, "input")
        if len(one.shape) > AXES_MAX:
            text = f"expected at most {AXES_MAX} axes in its shape, got {len(one.shape)}"
            raise BadInput(f"input {_shown(one.name)}: {text}")
    tensors = _raw(request.inputs, raw) if raw else [_typed(one) for one in request.inputs]
    inputs = [
        {
            "name": one.name,
            "shape": list(one.shape),
            "datatype": one.datatype,
            "parameters": {"binary_data_size": len(data)},
        }
        for one, data in zip(request.inputs, tensors, strict=True)
    ]
    head: dict[str, Any] = {"inputs": inputs}
    if request.outputs:
        head["outputs"] = [_output(one) for one in request.outputs]
    given = {name: _value(one) for name, one in request.parameters.items() if name != NO_FINAL}
    head["parameters"] = {**given, "binary_data_output": True}
    return Packed(_encoder.encode(head), tensors)


def _raw(inputs: Any, raw: Sequence[Body]) -> Sequence[Body]:
    if len(raw) != len(inputs):
        raise BadInput(
            f"raw_input_contents: expected {len(inputs)} items, one for each input, got {len(raw)}"
        )
    for one in inputs:
        if one.HasField("contents"):
            raise BadInput(
                f"input {_shown(one.name)}: expected either contents or raw_input_contents,"
                " got both"
            )
    return raw


def _typed(tensor: Any) -> Body:
    """Return the elements of an input's typed contents."""
    name, datatype = _shown(tensor.name), tensor.datatype
    if datatype not in _CONTENTS:
        raise _wrong_datatype(name, datatype)
    expected, code = _CONTENTS[datatype]
    fields = tensor.contents.ListFields()
    found = [one.name for one, _ in fields]
    count = _count(name, tensor.shape)
    if found not in ([expected], []):
        raise BadInput(f"input {name}: expected contents in {expected}, got {', '.join(found)}")
    values = fields[0][1] if fields else ()
    if len(values) != count:
        raise BadInput(
            f"input {name}: expected {count} elements in {expected} for shape"
            f" {_shape(tensor.shape)}, got {len(values)}"
        )
    if not values:
        return b""
    if datatype == dtypes.BYTES:
        return b"".join(_prefixed(values))
    if not code:
        return _packed_field(tensor.contents, count * dtypes.ITEM_SIZE[datatype])
    return _integers(name, datatype, code, values)


def _integers(name: str, datatype: str, code: str, values: Any) -> bytes:
    elements = array(code)
    try:
        for at in range(0, len(values), PIECE):
            elements.extend(values[at : at + PIECE])
    except OverflowError:
        lowest, highest = dtypes.INTEGER_RANGE[datatype]
        raise BadInput(
            f"input {name}: expected {datatype} from {lowest} to {highest}, got a number beyond"
        ) from None
    return elements.tobytes()


def _packed_field(contents: Any, size: int) -> Body:
    """Return the bytes of the only field that is set, which are at the end of the message."""
    contents.DiscardUnknownFields()
    return memoryview(contents.SerializeToString())[-size:]


def _prefixed(items: Iterable[bytes]) -> Iterable[bytes]:
    for item in items:
        yield len(item).to_bytes(4, "little")
        yield item


def _wrong_datatype(name: str, datatype: str) -> BadInput:
    if datatype in dtypes.ITEM_SIZE:
        return BadInput(f"input {name}: expected {datatype} in raw_input_contents, got contents")
    known = ", ".join(sorted(dtypes.ALL))
    return BadInput(f"input {name}: expected a datatype of {known}, got {_shown(datatype)}")


def _count(name: str, shape: Any) -> int:
    if any(size < 0 for size in shape):
        raise BadInput(f"input {name}: expected a shape from 0 on, got {_shape(shape)}")
    return math.prod(shape)


def _shape(shape: Any) -> str:
    return _shown(list(shape[:32]))


def _output(output: Any) -> dict[str, Any]:
    _check_shared(output, "output")
    asked: dict[str, Any] = {"name": output.name}
    if "classification" in output.parameters:
        asked["parameters"] = {"classification": _value(output.parameters["classification"])}
    return asked


def _check_shared(tensor: Any, kind: str) -> None:
    for name in tensor.parameters:
        if name.startswith(_SHARED):
            raise NotServed(f"{kind} {_shown(tensor.name)}: shared memory is not supported")


def _value(parameter: Any) -> Any:
    chosen = parameter.WhichOneof("parameter_choice")
    return None if chosen is None else getattr(parameter, chosen)


def _shown(text: object) -> str:
    return repr(text)[:SHOWN_MAX]
