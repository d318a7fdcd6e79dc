"""Tensors in every form of a request over HTTP, written and read by hand.

One function returns all of its inputs: the output of `in_X` is `out_X`, of the same datatype.
"""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tests.support.models import ONNX_TYPES, written

Tensors = dict[str, NDArray[Any]]
"""Arrays by datatype."""
HALVES = ("FP16", "BF16")
"""Datatypes that the protocol's JSON has no form for. Arrays of BF16 are those of its bits."""
WHOLES = tuple(name for name in ONNX_TYPES if name not in HALVES)
DTYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "FP16": np.float16,
    "BF16": np.uint16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": object,
    **{
        f"{kind}{bits}": f"{kind.lower()}{bits}"
        for kind in ("INT", "UINT")
        for bits in (8, 16, 32, 64)
    },
}
WIDTH = 3
LENGTH = "Inference-Header-Content-Length"
TEXTS = ("", "a", "é€🦆", '"\\/\n\t{}', "x" * 300, "[1, 2]", " ")


def echo(folder: Path, name: str, datatypes: tuple[str, ...]) -> Path:
    """Write the model that returns an input [n, 3] of each datatype."""
    kinds = [(datatype.lower(), ONNX_TYPES[datatype]) for datatype in datatypes]
    inputs = ", ".join(f"{kind}[n,{WIDTH}] in_{one}" for one, kind in kinds)
    outputs = ", ".join(f"{kind}[n,{WIDTH}] out_{one}" for one, kind in kinds)
    nodes = "\n".join(f"out_{one} = Identity(in_{one})" for one, _ in kinds)
    return written(folder, name, f"({inputs}) => ({outputs})", nodes)


def unranked(folder: Path, name: str, datatypes: tuple[str, ...]) -> Path:
    """Write the model that returns an input of each datatype, and declares no shape."""
    path = echo(folder, name, datatypes)
    model = onnx.load(path)
    for one in (*model.graph.input, *model.graph.output):
        one.type.tensor_type.ClearField("shape")
    onnx.save(model, path)
    return path


def recurrent(folder: Path, name: str) -> Path:
    """Write a model of a GRU over rows of steps, whose rows are independent."""
    random = np.random.default_rng(5)
    nodes = """
        steps = Transpose <perm = [1, 0, 2]> (in_fp32)
        all, last = GRU <hidden_size = 2> (steps, w, r)
        axis = Constant <value = int64[1] {0}> ()
        out_fp32 = Squeeze(last, axis)
    """
    weights = {
        "w": random.normal(size=(1, 6, WIDTH)).astype(np.float32),
        "r": random.normal(size=(1, 6, 2)).astype(np.float32),
    }
    values = f"(float[n,steps,{WIDTH}] in_fp32) => (float[n,2] out_fp32)"
    return written(folder, name, values, nodes, weights)


def tensors(random: np.random.Generator, datatypes: tuple[str, ...], *, finite: bool) -> Tensors:
    """Return random tensors of equal rows, with the ends of each datatype's range among them."""
    shape = (int(random.integers(1, 4)), WIDTH)
    return {datatype: _tensor(random, datatype, shape, finite=finite) for datatype in datatypes}


def _tensor(
    random: np.random.Generator, datatype: str, shape: tuple[int, int], *, finite: bool
) -> NDArray[Any]:
    if datatype == "BYTES":
        return random.choice(np.array(TEXTS, object), shape)
    dtype = np.dtype(DTYPES[datatype])
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(bool)
    array = (
        np.frombuffer(random.bytes(dtype.itemsize * shape[0] * WIDTH), dtype).reshape(shape).copy()
    )
    limits: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    ends = [limits.min, limits.max, 0]
    if dtype.kind == "f":
        ends += [-0.0, limits.smallest_subnormal, 0.1]
        if finite:
            array[~np.isfinite(array)] = limits.max
        elif datatype == "FP32":
            # Protobuf's Python numbers are FP64, and the conversion of a signalling NaN quiets it.
            array.view(np.uint32)[np.isnan(array)] |= 1 << 22
    array[random.random(shape) < 0.3] = random.choice(np.array(ends, dtype))
    return array


@dataclass(frozen=True)
class Wire:
    """A request or an answer: path (of a request only), headers, body."""

    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Form:
    """One form: how a request is written for a function, and how its answer is read."""

    name: str
    is_json: bool
    write: Callable[[str, Tensors], Wire]
    read: Callable[[Wire], Tensors]


def _short(name: str, given: Tensors) -> Wire:
    inputs = {f"in_{one.lower()}": array.tolist() for one, array in given.items()}
    body = json.dumps({"inputs": inputs}, ensure_ascii=False).encode()
    return Wire(f"/fn/{name}", {"Content-Type": "application/json"}, body)


def _read_short(wire: Wire) -> Tensors:
    outputs = json.loads(wire.body)["outputs"]
    datatypes = {name: name.removeprefix("out_").upper() for name in outputs}
    return {one: np.array(outputs[name], DTYPES[one]) for name, one in datatypes.items()}


def packed(array: NDArray[Any]) -> bytes:
    """Return the elements as the protocol's raw bytes."""
    if array.dtype != object:
        return array.tobytes()
    texts = [text.encode() for text in array.flat]
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def unpacked(datatype: str, shape: list[int], raw: bytes) -> NDArray[Any]:
    """Return an array of the protocol's raw bytes; all of them are used."""
    if datatype != "BYTES":
        return np.frombuffer(raw, DTYPES[datatype]).reshape(shape)
    texts, at = [], 0
    while at < len(raw):
        (size,) = struct.unpack_from("<I", raw, at)
        texts.append(raw[at + 4 : at + 4 + size].decode())
        at += 4 + size
    return np.array(texts, object).reshape(shape)


def _infer(
    name: str,
    given: Tensors,
    *,
    nested: bool = False,
    raw_in: Callable[[int, str], bool],
    raw_out: Callable[[int, str], bool] | None = None,
) -> Wire:
    """Write a request. `raw_in` and `raw_out` say which tensors, by place and datatype, are raw;
    without `raw_out` no output is named."""
    inputs, outputs, pieces = [], [], []
    for at, (one, array) in enumerate(given.items()):
        item = {"name": f"in_{one.lower()}", "shape": list(array.shape), "datatype": one}
        if raw_in(at, one):
            pieces.append(packed(array))
            item["parameters"] = {"binary_data_size": len(pieces[-1])}
        else:
            item["data"] = array.tolist() if nested else array.ravel().tolist()
        inputs.append(item)
        if raw_out is not None:
            binary = {"binary_data": raw_out(at, one)}
            outputs.append({"name": f"out_{one.lower()}", "parameters": binary})
    document: dict[str, Any] = {"id": "7", "inputs": inputs}
    if raw_out is not None:
        document["outputs"] = outputs[::-1]
        document["parameters"] = {"binary_data_output": True}
    head = json.dumps(document).encode()
    headers = {"Content-Type": "application/octet-stream", LENGTH: str(len(head))}
    body = b"".join([head, *pieces])
    return Wire(f"/v2/models/{name}/infer", headers if pieces else {}, body)


def _read_infer(wire: Wire) -> Tensors:
    length = int(wire.headers.get(LENGTH, len(wire.body)))
    document, raw = json.loads(wire.body[:length]), wire.body[length:]
    assert document["id"] == "7"
    found = {}
    for item in document["outputs"]:
        one, shape = item["datatype"], item["shape"]
        assert item["name"] == f"out_{one.lower()}"
        if "data" in item:
            found[one] = np.array(item["data"], DTYPES[one]).reshape(shape)
        else:
            size = item["parameters"]["binary_data_size"]
            found[one], raw = unpacked(one, shape, raw[:size]), raw[size:]
    assert not raw, "bytes behind the last tensor"
    return found


def _flat(name: str, given: Tensors) -> Wire:
    return _infer(name, given, raw_in=lambda *_: False)


def _nested(name: str, given: Tensors) -> Wire:
    return _infer(name, given, nested=True, raw_in=lambda *_: False)


def binary(name: str, given: Tensors) -> Wire:
    """Write a request whose tensors are all raw, in both directions."""
    return _infer(name, given, raw_in=lambda *_: True, raw_out=lambda *_: True)


def _mixed(name: str, given: Tensors) -> Wire:
    return _infer(
        name,
        given,
        raw_in=lambda at, one: at % 2 == 0 or one in HALVES,
        raw_out=lambda at, one: at % 3 == 0 or one == "BF16",
    )


def _coded(coding: str, write: Callable[[str, Tensors], Wire]) -> Callable[[str, Tensors], Wire]:
    pack = gzip.compress if coding == "gzip" else zlib.compress

    def coded(name: str, given: Tensors) -> Wire:
        plain = write(name, given)
        headers = {**plain.headers, "Content-Encoding": coding, "Accept-Encoding": coding}
        return Wire(plain.path, headers, pack(plain.body))

    return coded


FORMS = (
    Form("short JSON", True, _short, _read_short),
    Form("flat JSON", True, _flat, _read_infer),
    Form("nested JSON", True, _nested, _read_infer),
    Form("binary", False, binary, _read_infer),
    Form("mixed", True, _mixed, _read_infer),
    Form("JSON in deflate", True, _coded("deflate", _flat), _read_infer),
    Form("binary in gzip", False, _coded("gzip", binary), _read_infer),
)
_UNPACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "gzip": gzip.decompress,
    "deflate": zlib.decompress,
}


def decoded(wire: Wire) -> Wire:
    """Return an answer without its content coding."""
    body = _UNPACK[wire.headers.get("Content-Encoding", "")](wire.body)
    return Wire(wire.path, wire.headers, body)


def forms_of(given: Tensors) -> Iterator[Form]:
    """Return the forms that can carry these tensors."""
    has_halves = not set(HALVES).isdisjoint(given)
    is_finite = all(array.dtype.kind != "f" or np.isfinite(array).all() for array in given.values())
    for form in FORMS:
        if form.is_json and not is_finite:
            continue
        if has_halves and "JSON" in form.name:
            continue
        yield form


def same(one: Tensors, other: Tensors) -> bool:
    """Return whether two sets of tensors are identical to the bit."""
    if one.keys() != other.keys():
        return False
    return all(
        array.dtype == other[name].dtype
        and array.shape == other[name].shape
        and packed(array) == packed(other[name])
        for name, array in one.items()
    )
