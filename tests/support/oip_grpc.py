"""Tensors in both forms of a gRPC request, for a channel without generated code."""

from __future__ import annotations

from typing import Any

import grpc

from gateway.grpc.messages import SERVICE, message
from tests.support.oip_forms import HALVES, Tensors, packed, unpacked

FORMS = ("typed contents", "raw contents")
_REQUEST, _ANSWER = message("ModelInferRequest"), message("ModelInferResponse")
_FIELDS = {
    "BOOL": "bool_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
}


def forms_of(given: Tensors) -> list[str]:
    """Return the forms that can carry these tensors."""
    return [form for form in FORMS if form != FORMS[0] or set(HALVES).isdisjoint(given)]


async def infer(channel: grpc.aio.Channel, form: str, name: str, given: Tensors) -> Tensors:
    """Return the tensors that a function makes of `given`."""
    request = _REQUEST(model_name=name, id="7")
    for one, array in given.items():
        item = request.inputs.add(name=f"in_{one.lower()}", datatype=one, shape=array.shape)
        if form == FORMS[1]:
            request.raw_input_contents.append(packed(array))
        else:
            values = array.ravel().tolist()
            if one == "BYTES":
                values = [text.encode() for text in values]
            getattr(item.contents, _FIELDS[one]).extend(values)
    call: Any = channel.unary_unary(
        f"/{SERVICE}/ModelInfer", _REQUEST.SerializeToString, _ANSWER.FromString
    )
    answer = await call(request)
    assert answer.id == "7"
    pairs = zip(answer.outputs, answer.raw_output_contents, strict=True)
    return {one.datatype: unpacked(one.datatype, list(one.shape), raw) for one, raw in pairs}
