"""Encodes outputs as answer bodies. Only replicas import this."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime_image.codecs import bfloat16, plain_json
from runtime_image.codecs.accept import JSON, NPY, OCTETS, AnswerForm
from runtime_image.codecs.arrays import DTYPES
from runtime_image.codecs.bfloat16 import BF16
from runtime_image.codecs.classification import best_order, classify
from runtime_image.contract import dtypes
from runtime_image.contract.errors import (
    BAD_INPUT,
    FUNCTION_FAILED,
    NOT_ACCEPTABLE,
    RequestError,
)
from runtime_image.contract.model import OutputRule
from runtime_image.contract.signature import Signature

_NO_JSON: Final = (
    "output %r: BF16 has no JSON form: request it with binary_data, as the Open Inference Protocol"
    " has it"
)
_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()} | {BF16: bfloat16.NAME}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What answers: `revision` is "digits@3"; the other names are those of the Open Inference
    Protocol. `is_batched`: the first axis of an output has its rows."""

    revision: str
    name: str
    version: str
    is_batched: bool = False


def served_model(
    revision: str, name: str = "", version: str = "", *, is_batched: bool = False
) -> ServedModel:
    """Return the names of a revision's model; `name` and `version` default to its parts."""
    own, _, number = revision.partition("@")
    return ServedModel(revision, name or own, version or number, is_batched)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer's body and headers. `json_length`: bytes of the JSON part of a binary answer, or
    0."""

    content_type: str
    json_length: int
    body: bytes

    def __len__(self) -> int:
        """Return the bytes of the body."""
        return len(self.body)


def encode(
    outputs: dict[str, Any],
    form: AnswerForm,
    signature: Signature,
    rule: OutputRule,
    model: ServedModel,
    id: str,
) -> Answer:
    """Encode `outputs` (by name) in the form chosen for the request.

    In JSON, a NaN or infinity of a tensor is null and bytes are base64. Raises FUNCTION_FAILED for
    a value that the form cannot represent; in short JSON also for a NaN or infinity outside a
    tensor. Raises BAD_INPUT or NOT_ACCEPTABLE if the request names an unknown output.
    """
    if form.form == "short":
        return Answer(JSON, 0, _short(outputs, rule, model.revision))
    if form.form == "npy":
        return Answer(NPY, 0, _npy(outputs, form.tensor, signature))
    return _oip(outputs, form, signature, rule, model, id)


def _short(outputs: dict[str, Any], rule: OutputRule, revision: str) -> bytes:
    for name, value in outputs.items():
        if isinstance(value, np.ndarray) and value.dtype == BF16:
            raise RequestError(NOT_ACCEPTABLE, _NO_JSON % name)
    body: dict[str, Any] = {"outputs": outputs, "revision": revision}
    if rule.labels or rule.top_k:
        scores = outputs.get(rule.tensor or next(iter(outputs), ""))
        if isinstance(scores, np.ndarray) and scores.ndim and scores.dtype.kind in "fiu":
            body["top"] = top_rows(scores, rule)
    return plain_json.encode_outputs(body)


def top_rows(scores: NDArray[Any], rule: OutputRule) -> list[list[dict[str, Any]]]:
    """Return the best `top_k` entries (default 1) of each row, best first; equal scores by index.

    An output of rank 1 is one row. A class without a label is named by its index.
    """
    places, best = best_places(scores, rule)
    labels = rule.labels
    return [
        [
            {"label": labels[at] if at < len(labels) else str(at), "score": score}
            for at, score in zip(row, values, strict=True)
        ]
        for row, values in zip(places, best, strict=True)
    ]


def best_places(scores: NDArray[Any], rule: OutputRule) -> tuple[list[list[int]], list[list[Any]]]:
    """Return, for each row, the indexes of the best scores, best first, and these scores."""
    rows = scores.reshape(1, -1) if scores.ndim == 1 else scores.reshape(scores.shape[0], -1)
    order = best_order(rows, rule.top_k or 1)
    best = np.take_along_axis(rows, order, axis=1)
    return order.tolist(), best.tolist()


def _npy(outputs: dict[str, Any], name: str, signature: Signature) -> bytes:
    name = name or next(iter(outputs), "")
    if name not in outputs:
        known = ", ".join(outputs)
        raise RequestError(NOT_ACCEPTABLE, f"{NPY}: expected output= one of {known}, got {name}")
    array, datatype = _tensor(name, outputs[name], signature)
    if datatype == dtypes.BYTES:
        raise RequestError(NOT_ACCEPTABLE, f"{NPY}: expected a numeric output, got {name}: BYTES")
    buffer = BytesIO()
    np.save(buffer, np.asarray(array, order="C"), allow_pickle=False)
    return buffer.getvalue()


def _oip(
    outputs: dict[str, Any],
    form: AnswerForm,
    signature: Signature,
    rule: OutputRule,
    model: ServedModel,
    id: str,
) -> Answer:
    labelled = rule.tensor or next(iter(outputs), "")
    classes = dict(form.classes)
    items: list[dict[str, Any]] = []
    raw: list[bytes | memoryview] = []
    for name in form.outputs or outputs:
        if name not in outputs:
            known = ", ".join(outputs)
            raise RequestError(
                BAD_INPUT, f"output {name!r}: expected one of {known}, got an unknown name"
            )
        array, datatype = _tensor(name, outputs[name], signature)
        if name in classes:
            labels = rule.labels if name == labelled else ()
            array = classify(
                name, array, datatype, classes[name], labels, is_batched=model.is_batched
            )
            datatype = dtypes.BYTES
        item: dict[str, Any] = {"name": name, "shape": list(array.shape), "datatype": datatype}
        if form.binary_all or name in form.binary:
            data = _packed(array, datatype)
            item["parameters"] = {"binary_data_size": len(data)}
            raw.append(data)
        elif datatype == bfloat16.NAME:
            raise RequestError(BAD_INPUT, _NO_JSON % name)
        else:
            item["data"] = array.ravel().tolist()
        items.append(item)
    head: dict[str, Any] = {"model_name": model.name, "model_version": model.version}
    if id:
        head["id"] = id
    body = plain_json.encode({**head, "outputs": items})
    if form.form == "oip":
        return Answer(JSON, 0, body)
    return Answer(OCTETS, len(body), b"".join([body, *raw]))


def _tensor(name: str, value: Any, signature: Signature) -> tuple[NDArray[Any], str]:
    """Return an output as an array with its protocol dtype. Plain values get the signature's
    dtype."""
    declared = next((spec.dtype for spec in signature.outputs if spec.name == name), "")
    try:
        array = value if isinstance(value, np.ndarray) else np.array(value, DTYPES.get(declared))
    except (TypeError, ValueError, OverflowError) as error:
        raise _failed(name, f"a value that cannot be converted to a tensor: {error}") from None
    if array.dtype.kind in "US":
        array = array.astype(object)
    datatype = _NAMES.get(array.dtype.newbyteorder("<"))
    if datatype is None:
        raise _failed(name, f"an array of {array.dtype}")
    if datatype == dtypes.BYTES and not all(isinstance(item, str | bytes) for item in array.flat):
        raise _failed(name, "an array of Python objects")
    return array, datatype


def _packed(array: NDArray[Any], datatype: str) -> bytes | memoryview:
    """Return little-endian row-major bytes; BYTES elements are prefixed with a 4-byte length."""
    if datatype == dtypes.BYTES:
        return b"".join(_prefixed(array.flat))
    if datatype == bfloat16.NAME:
        whole: NDArray[Any] = bfloat16.bits(array)
    else:
        whole = np.asarray(array, DTYPES[datatype], order="C")
    # A view saves the copy, but memoryview cannot cast an empty array.
    return whole.data.cast("B") if whole.size else b""


def _prefixed(items: Iterable[Any]) -> Iterable[bytes]:
    for item in items:
        data = item.encode() if isinstance(item, str) else item
        yield len(data).to_bytes(4, "little") + data


def _failed(name: str, got: str) -> RequestError:
    return RequestError(FUNCTION_FAILED, f"output {name!r}: expected a tensor, got {got}")
