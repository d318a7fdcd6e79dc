"""Bodies with a chosen number of rows, made from one body, in a process of its own.

`python -m runtime_image.codecs.batches` decodes a body as a replica does and encodes its tensors
again, with the rows repeated in turn. stdin has one line of JSON, see `Job`, then the body; stdout
has a line of JSON and a body for each number of rows. An error is the last line of stderr. Nothing
imports this module: NumPy and Pillow stay out of the process that asks.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from runtime_image.codecs import bfloat16
from runtime_image.codecs.accept import JSON, OCTETS
from runtime_image.codecs.arrays import DTYPES, to_arrays
from runtime_image.codecs.request import RequestHead, parse
from runtime_image.contract import dtypes
from runtime_image.contract.errors import RequestError
from runtime_image.contract.model import InputRule
from runtime_image.contract.signature import Signature, TensorSpec, from_json

BODY_MAX: Final = 256 * 2**20
"""Max bytes of one made body; no server can be configured to accept more."""
TOTAL_MAX: Final = 512 * 2**20
"""Max bytes of all bodies together."""
LENGTH: Final = "Inference-Header-Content-Length"
Arrays = Mapping[str, NDArray[Any]]


class Job(msgspec.Struct):
    """`rows`: of each wanted body, 0 for those of the given body. `is_zeros`: there is no body, the
    tensors are zeros. `form` as in the Open Inference Protocol's binary extension, or short
    JSON."""

    signature: dict[str, Any]
    rules: dict[str, InputRule]
    rows: list[int]
    form: Literal["binary", "json"]
    content_type: str = ""
    is_zeros: bool = False


class Refused(Exception):
    """The body cannot be made; the text says why."""


def bodies(job: Job, body: bytes) -> Iterator[tuple[dict[str, str], bytes, int]]:
    """Yield headers, body and its rows for each number of rows. Raises Refused or RequestError."""
    signature = from_json(job.signature)
    if signature.kind != "tensors":
        raise Refused(f"a function of kind {signature.kind} has no tensors")
    if job.is_zeros:
        arrays: Arrays = {spec.name: _zeros(spec) for spec in signature.inputs}
    else:
        parsed = parse(RequestHead(job.content_type), body, signature, job.rules)
        arrays = to_arrays(parsed, signature, job.rules)
    total = 0
    for rows in job.rows:
        chosen = tiled(arrays, signature, rows) if rows else arrays
        made = _json(chosen) if job.form == "json" else _binary(chosen, signature)
        total += len(made[1])
        if total > TOTAL_MAX:
            raise Refused(f"expected at most {TOTAL_MAX} bytes of bodies, got more: fewer rows")
        yield *made, rows_of(chosen, signature)


def rows_of(arrays: Arrays, signature: Signature) -> int:
    """Return the rows of the inputs with a dynamic first axis, else 1."""
    batched = (len(arrays[one.name]) for one in signature.inputs if one.has_dynamic_rows)
    return next(batched, 1)


def tiled(arrays: Arrays, signature: Signature, rows: int) -> dict[str, NDArray[Any]]:
    """Return the inputs with `rows` rows each, those with a fixed first axis unchanged. Raises
    Refused if no input has a dynamic first axis, or the result is too large."""
    batched = [spec.name for spec in signature.inputs if spec.has_dynamic_rows]
    own = next(iter(arrays.values())).shape[:1] if arrays else ()
    if not batched and own != (rows,):
        shapes = ", ".join(f"{spec.name} {spec.shape_text}" for spec in signature.inputs)
        raise Refused(f"no input has a batch axis, which is a first axis of any size: {shapes}")
    if not all(len(arrays[name]) for name in batched):
        raise Refused("an input has no rows to repeat")
    size = sum(arrays[name].nbytes // max(len(arrays[name]), 1) for name in batched) * rows
    if size > BODY_MAX:
        raise Refused(f"{rows} rows have {size} bytes: expected at most {BODY_MAX}")
    return {
        name: np.take(array, np.arange(rows) % len(array), axis=0) if name in batched else array
        for name, array in arrays.items()
    }


def _zeros(spec: TensorSpec) -> NDArray[Any]:
    shape = spec.smallest_shape
    if math.prod(shape) * dtypes.ITEM_SIZE.get(spec.dtype, 1) > BODY_MAX:
        raise Refused(f"input {spec.name} {spec.shape_text}: expected at most {BODY_MAX} bytes")
    if spec.dtype == dtypes.BYTES:
        return np.full(shape, "", object)
    if spec.dtype == bfloat16.NAME:
        return bfloat16.from_bits(np.zeros(shape, np.uint16))
    return np.zeros(shape, DTYPES[spec.dtype])


def _json(arrays: Arrays) -> tuple[dict[str, str], bytes]:
    for name, array in arrays.items():
        if array.dtype == bfloat16.BF16 or array.dtype == np.float16:
            raise Refused(f"input {name}: JSON has no form for this type, only the binary form has")
    inputs = {name: array.tolist() for name, array in arrays.items()}
    return {"Content-Type": JSON}, msgspec.json.encode({"inputs": inputs})


def _binary(arrays: Arrays, signature: Signature) -> tuple[dict[str, str], bytes]:
    items, parts = [], []
    for spec in signature.inputs:
        array = arrays[spec.name]
        part = _strings(array) if spec.dtype == dtypes.BYTES else array.tobytes()
        parts.append(part)
        items.append(
            {
                "name": spec.name,
                "shape": list(array.shape),
                "datatype": spec.dtype,
                "parameters": {"binary_data_size": len(part)},
            }
        )
    head = msgspec.json.encode({"inputs": items, "parameters": {"binary_data_output": True}})
    return {"Content-Type": OCTETS, LENGTH: str(len(head))}, b"".join([head, *parts])


def _strings(array: NDArray[Any]) -> bytes:
    encoded = (str(one).encode() for one in array.ravel())
    return b"".join(len(one).to_bytes(4, "little") + one for one in encoded)


def main() -> None:
    """Run the process."""
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    try:
        for headers, body, rows in bodies(job, sys.stdin.buffer.read()):
            head = msgspec.json.encode({"headers": headers, "bytes": len(body), "rows": rows})
            sys.stdout.buffer.write(head + b"\n" + body)
    except (Refused, RequestError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
