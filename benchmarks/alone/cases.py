"""Models and requests for a replica that is measured without a gateway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

from runtime_image.contract.model import ImageForm, InputRule, ModelSpec, OutputRule

JSON = "application/json"
OCTETS = "application/octet-stream"
HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
ROW = b'{"inputs": {"x": [[0.1, -0.2, 0.3, 0.4]]}}'
SCAN = b'{"inputs": {"image": [' + str([[0.5] * 8] * 8).encode() + b"]}}"
DIGITS = ModelSpec(
    "digits@1",
    model="digits.onnx",
    inputs={"image": InputRule("image", finite=True, image=ImageForm((8, 8), "L", "HW"))},
    output=OutputRule("probabilities", tuple("0123456789"), 3),
    batch_max=256,
    inline=True,
)
LARGE_FLOATS = 150_000


class Case(NamedTuple):
    """A served model and the requests sent to it."""

    folder: Path
    spec: ModelSpec
    body: bytes
    content_type: str
    in_flight: int
    row: np.ndarray


def bare_session(path: Path) -> ort.InferenceSession:
    """Return a session with one thread that does not spin, like a replica's."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return ort.InferenceSession(str(path), options)


def small_cases(folder: Path) -> dict[str, Case]:
    """Return models with negligible run time."""
    spec = mlp(folder)
    x = np.zeros((1, 4), np.float32)
    digits = Path("functions/digits")
    large = mean(folder)
    body = np.zeros(LARGE_FLOATS, np.float32)
    text = json.dumps({"inputs": {"x": [[0.5] * LARGE_FLOATS]}}).encode()
    return {
        "mlp, 64 in flight": Case(folder, spec, ROW, JSON, 64, x),
        "mlp, 1 in flight": Case(folder, spec, ROW, JSON, 1, x),
        "digits, 64 in flight": Case(digits, DIGITS, SCAN, JSON, 64, x),
        "digits, 1 in flight": Case(digits, DIGITS, SCAN, JSON, 1, x),
        "600 KB npy, 8 in flight": Case(folder, large, npy(body), "application/x-npy", 8, x),
        "600 KB npy, 1 in flight": Case(folder, large, npy(body), "application/x-npy", 1, x),
        "150,000 numbers of JSON, 4 in flight": Case(folder, large, text, JSON, 4, x),
    }


def npy(values: np.ndarray) -> bytes:
    """Encode one row of values as an npy file."""
    import io

    buffer = io.BytesIO()
    np.save(buffer, values[None])
    return buffer.getvalue()


def convnets(folder: Path) -> dict[str, Case]:
    """Return models with some milliseconds per row, which run in the worker thread."""
    cases: dict[str, Case] = {}
    for title, layers, channels, batch_max in (
        ("convnet of 2 ms, 16 in flight, no batching", 6, 32, 1),
        ("convnet of 2 ms, 16 in flight, batches of 8", 6, 32, 8),
        ("convnet of 20 ms and 100 MB, 16 in flight, no batching", 12, 64, 1),
        ("convnet of 20 ms and 100 MB, 16 in flight, batches of 4", 12, 64, 4),
    ):
        row = np.random.default_rng(0).random((1, 3, 64, 64), dtype=np.float32)
        path = folder / f"conv{layers}.onnx"
        if not path.exists():
            convnet(path, layers, channels, 100 if layers > 6 else 1)
        spec = ModelSpec("digits@1", model=path.name, batch_max=batch_max)
        in_flight = min(16, max(2, 2 * batch_max))  # the gateway queues requests over the limit
        cases[title] = Case(folder, spec, npy(row[0]), "application/x-npy", in_flight, row)
    return cases


def mlp(folder: Path) -> ModelSpec:
    """Return an MLP 4-16-3."""
    random = np.random.default_rng(0)
    save(
        folder / "mlp.onnx",
        "(float[n,4] x) => (float[n,3] y)",
        "h = MatMul(x, a)\n i = Relu(h)\n j = MatMul(i, b)\n y = Softmax(j)",
        {
            "a": random.random((4, 16), dtype=np.float32),
            "b": random.random((16, 3), dtype=np.float32),
        },
    )
    return ModelSpec("mlp@1", model="mlp.onnx", batch_max=256, inline=True)


def mean(folder: Path) -> ModelSpec:
    """Return a model that computes the mean of each row of 150,000 numbers."""
    save(
        folder / "mean.onnx",
        f"(float[n,{LARGE_FLOATS}] x) => (float[n,1] y)",
        "axes = Constant <value = int64[1] {1}> ()\n y = ReduceMean(x, axes)",
        {},
    )
    return ModelSpec("mean@1", model="mean.onnx", batch_max=8, inline=True)


def convnet(path: Path, layers: int, channels: int, mib: int) -> None:
    """Write 3x3 convolutions over 64x64 and a dense layer that brings the file to `mib` MiB."""
    random = np.random.default_rng(0)
    weights: dict[str, np.ndarray] = {}
    nodes, before, depth = [], "x", 3
    for layer in range(layers):
        weights[f"w{layer}"] = random.random((channels, depth, 3, 3), dtype=np.float32) - 0.5
        nodes.append(f"c{layer} = Conv <pads = [1, 1, 1, 1]> ({before}, w{layer})")
        nodes.append(f"r{layer} = Relu(c{layer})")
        before, depth = f"r{layer}", channels
    nodes += [f"p = MaxPool <kernel_shape = [8, 8], strides = [8, 8]> ({before})", "f = Flatten(p)"]
    width = channels * 64
    weights["dense"] = random.random((width, max(10, mib * 2**18 // width)), dtype=np.float32)
    nodes.append("d = MatMul(f, dense)\n one = Constant <value = int64[1] {1}> ()")
    nodes.append("y = ReduceMean(d, one)")
    save(path, "(float[n,3,64,64] x) => (float[n,1] y)", "\n ".join(nodes), weights)


def save(path: Path, values: str, nodes: str, weights: dict[str, np.ndarray]) -> None:
    """Write a graph in ONNX's text form with its weights."""
    model = onnx.parser.parse_model(f"{HEAD} g {values} {{ {nodes} }}")
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    model.graph.initializer.extend(tensors)
    onnx.save(model, path)
