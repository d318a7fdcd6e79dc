"""Decodes checked inputs to NumPy arrays. Only replicas import this."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime_image.codecs import bfloat16, media, request, sounds
from runtime_image.codecs.request import Parsed
from runtime_image.codecs.tensors import RawInput, check_shape
from runtime_image.contract import dtypes
from runtime_image.contract.errors import bad_input
from runtime_image.contract.model import BytesForm, InputRule
from runtime_image.contract.signature import Signature, TensorSpec

DTYPES: Final[dict[str, np.dtype[Any]]] = {
    **{name: np.dtype(descr) for descr, name in dtypes.FROM_NPY.items()},
    dtypes.BYTES: np.dtype(object),
}
"""NumPy dtypes by protocol name. BYTES is an object array of str, which ONNX Runtime accepts as
tensor(string). BF16 is missing, see `codecs.bfloat16`."""


def to_arrays(parsed: Parsed, signature: Signature, rules: dict[str, InputRule]) -> dict[str, Any]:
    """Return the inputs by name, as arrays of the signature's dtypes; plain values for json and
    bytes.

    Binary inputs are read-only views of the body if its alignment allows. Raises BAD_INPUT for a
    NaN or infinity in an input declared finite, and for a picture or sound that cannot be decoded;
    `request.parse` has refused all other errors.
    """
    if signature.kind != "tensors":
        return {name: raw.payload for name, raw in parsed.inputs.items()}
    arrays: dict[str, Any] = {}
    for spec in signature.inputs:
        raw = parsed.inputs[spec.name]
        rule = rules.get(spec.name)
        if raw.encoding == "json":
            # Lists are nested or flat; their elements are within the dtype's range already.
            array = np.array(raw.payload, DTYPES[raw.dtype]).reshape(raw.shape)
        elif raw.encoding == "binary":
            array = _from_binary(spec.name, raw, rule is not None and rule.finite)
        else:
            assert rule is not None, "the other encodings exist only for inputs with a rule"
            array = _transform(spec, raw, rule)
        arrays[spec.name] = array
    return arrays


def _from_binary(name: str, raw: RawInput, is_finite: bool) -> NDArray[Any]:
    is_bf16 = raw.dtype == bfloat16.NAME
    dtype = np.dtype(np.uint16) if is_bf16 else DTYPES[raw.dtype]
    array = np.frombuffer(raw.payload, dtype).reshape(raw.shape)
    if not array.flags.aligned:
        # Engines use aligned loads, but a body's tensors start at any offset, behind its header.
        array = array.copy()
    if is_finite and raw.dtype in dtypes.FLOATS:
        good = np.isfinite(bfloat16.widened(array) if is_bf16 else array)
        if not good.all():
            raise request.refusal(name, raw.dtype, raw.shape, int(np.argmin(good)))
    return bfloat16.from_bits(array) if is_bf16 else array


def _transform(spec: TensorSpec, raw: RawInput, rule: InputRule) -> NDArray[Any]:
    array: NDArray[Any]
    if raw.encoding == "image" and rule.image is not None:
        array = media.decode_image(spec.name, raw.payload, rule.image, spec.dtype)
    elif raw.encoding == "audio" and rule.audio is not None:
        array = sounds.decode(spec.name, raw.payload, rule.audio, spec.dtype)
    else:
        array = _row(raw.payload, rule.bytes or BytesForm())
    check_shape(spec, array.shape)
    return _cast(spec, array)


def _row(body: memoryview, form: BytesForm) -> NDArray[np.uint8]:
    """Return a body as one uint8 row, cut or padded to the form's length."""
    values = np.frombuffer(body, np.uint8)
    if form.length is None:
        return values.reshape(1, -1)
    row = np.full((1, form.length), form.pad, np.uint8)
    kept = min(form.length, values.size)
    row[0, :kept] = values[:kept]
    return row


def _cast(spec: TensorSpec, array: NDArray[Any]) -> NDArray[Any]:
    """Convert to the signature's dtype; floats become integers by rounding and clipping."""
    wanted = DTYPES[spec.dtype]
    if array.dtype == wanted:
        return array
    if wanted.kind == "O":
        raise bad_input(spec.name, f"{spec.dtype} elements", "a picture or sound, which is numbers")
    if wanted.kind in "ui" and array.dtype.kind == "f":
        low, high = dtypes.INTEGER_RANGE[spec.dtype]
        # Of 64 bits, no float64 is the largest integer: the next one below it is.
        most = float(high) if int(float(high)) == high else math.nextafter(float(high), 0)
        array = np.clip(np.rint(array.astype(np.float64)), low, most)
    return array.astype(wanted)
