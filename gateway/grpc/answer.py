"""An answer in the Open Inference Protocol's binary form as a ModelInferResponse. Pure.

Replicas repeat the JSON part of an answer as long as its shapes are the same, so what it becomes is
remembered. The tensors are copied once, into the message.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from gateway.grpc.messages import message
from gateway.grpc.wire import field
from gateway.replies import Body
from registry.errors import FnError

RESPONSE: Final = message("ModelInferResponse")
STREAM_RESPONSE: Final = message("ModelStreamInferResponse")
KNOWN_MAX: Final = 256
"""Max JSON parts that are remembered; at the limit all are forgotten."""
KNOWN_BYTES_MAX: Final = 4096
"""Max bytes of a JSON part that is remembered."""
_ID: Final = 0x1A
_RAW: Final = 0x32
_INFER_RESPONSE: Final = 0x12


_Count = Annotated[int, Meta(ge=0, le=2**62)]


class _Sizes(msgspec.Struct, gc=False):
    binary_data_size: _Count


class _Output(msgspec.Struct, gc=False):
    name: str
    shape: list[_Count]
    datatype: str
    parameters: _Sizes


class _Answer(msgspec.Struct, gc=False):
    model_name: str
    model_version: str
    outputs: list[_Output]


_decoder: Final = msgspec.json.Decoder(_Answer)


class Skeleton(NamedTuple):
    """A response without its id and its tensors, and the bytes of each tensor."""

    head: bytes
    sizes: tuple[int, ...]


def _final() -> bytes:
    response = RESPONSE()
    response.parameters["triton_final_response"].bool_param = True
    return bytes(response.SerializeToString())


FINAL: Final = _final()
"""The parameter of each answer in a stream, as a field."""


class Answers:
    """Makes responses."""

    def __init__(self) -> None:
        self._known: dict[bytes, Skeleton] = {}

    def make(self, body: Body, json_length: int, ident: bytes) -> list[Body]:
        """Return the pieces of a response.

        `ident`: the request's id; `json_length` as in the answer's head, 0 if it is JSON alone.
        Raises FnError for what is no answer in this form.
        """
        head = bytes(body[: json_length or len(body)])
        skeleton = self._known.get(head) or self._learn(head)
        pieces: list[Body] = [skeleton.head]
        if ident:
            pieces += (field(_ID, len(ident)), ident)
        if len(head) + sum(skeleton.sizes) != len(body):
            raise FnError(f"a replica's answer has {len(body)} bytes and names other sizes")
        view, at = memoryview(body), len(head)
        for size in skeleton.sizes:
            pieces += (field(_RAW, size), view[at : at + size])
            at += size
        return pieces

    def _learn(self, head: bytes) -> Skeleton:
        skeleton = _skeleton(head)
        if len(head) <= KNOWN_BYTES_MAX:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[head] = skeleton
        return skeleton


def _skeleton(head: bytes) -> Skeleton:
    try:
        answer = _decoder.decode(head)
    except (ValueError, RecursionError) as error:
        raise FnError(f"a replica's answer is no inference: {error}") from None
    response: Any = RESPONSE(model_name=answer.model_name, model_version=answer.model_version)
    for one in answer.outputs:
        response.outputs.add(name=one.name, datatype=one.datatype, shape=one.shape)
    sizes = tuple(one.parameters.binary_data_size for one in answer.outputs)
    return Skeleton(response.SerializeToString(), sizes)


def in_stream(pieces: list[Body]) -> list[Body]:
    """Return the pieces of a stream's message for a response."""
    length = sum(map(len, pieces)) + len(FINAL)
    return [field(_INFER_RESPONSE, length), *pieces, FINAL]


def stream_error(text: str, ident: bytes) -> bytes:
    """Return a stream's message for a failed request."""
    failed: Any = STREAM_RESPONSE(error_message=text)
    failed.infer_response.id = ident.decode()
    failed.infer_response.parameters["triton_final_response"].bool_param = True
    return bytes(failed.SerializeToString())
