"""Twelve small models with different outputs: one input x, one output y."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

WIDTH: Final = 32
HIDDEN: Final = 64
HEAD: Final = '<ir_version: 10, opset_import: ["" : 21]>'
NETWORK: Final = "a = MatMul(x, w1) b = Tanh(a) c = MatMul(b, w2) d = Tanh(c) e = MatMul(d, w3)"
"""Three layers; `e` has a spread of about 1."""

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Case:
    """A model, its inputs by their number and a random generator, and whether y has scores."""

    name: str
    model: onnx.ModelProto
    inputs: Callable[[int, np.random.Generator], Floats]
    has_labels: bool = False


def cases() -> list[Case]:
    """Return all cases; they are the same in every run."""
    sequence = {"shape": f"n,16,{WIDTH}", "out": "n,16,8"}
    return [
        Case("offset", network(1, "y = Add(e, k)", spread=0.23, k=290.0), normal),
        Case("tiny", network(4, "y = Mul(e, k)", k=1e-6), normal),
        Case("mixed scales", network(3, "y = Mul(e, k)", k=[1e3, 1.0, 1e-3]), normal),
        Case("scores", network(10, "y = Identity(e)"), normal, has_labels=True),
        Case("classes", classes(), near_classes, has_labels=True),
        Case("embedding", network(64, EMBEDDING, last=[-1]), normal),
        Case("constants", network(3, CONSTANTS, out="n,6", k=[[5.0, 0.0, 1e5]], width=[3]), normal),
        Case("large weights", network(2, LARGE, k=1e5, far=3.5, last=[-1]), normal),
        Case("small weights", network(2, "s = Mul(e, k) y = Div(s, k)", k=1e-9), normal),
        Case("sequence", network(8, "y = Identity(e)", **sequence), sequences),
        Case("map", maps(), pictures),
        Case("rows", network(1, "y = Squeeze(e, one)", out="n", one=[1]), heavy),
    ]


EMBEDDING: Final = "n = ReduceL2<keepdims = 1>(e, last) y = Div(e, n)"
CONSTANTS: Final = """
o = Shape<end = 1>(x) p = Concat<axis = 0>(o, width) q = Expand(k, p) y = Concat<axis = -1>(e, q)"""
LARGE: Final = """
s = ReduceMax<keepdims = 1>(x, last) t = Sub(s, far) u = Relu(t) v = Mul(u, k) y = Add(e, v)"""


def parsed(text: str, weights: dict[str, Any]) -> onnx.ModelProto:
    """Return a model in ONNX's text form with its weights; whole numbers are INT64."""
    model = onnx.parser.parse_model(f"{HEAD} {text}")
    for name, value in weights.items():
        array = np.asarray(value)
        array = array.astype(np.int64 if array.dtype.kind == "i" else np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.checker.check_model(model)
    return model


def network(
    columns: int,
    tail: str,
    *,
    shape: str = f"n,{WIDTH}",
    out: str = "",
    spread: float = 1.0,
    **weights: Any,
) -> onnx.ModelProto:
    """Return a network of three layers, followed by the nodes in `tail`; `spread` is about that of
    what the last layer gives."""
    random = np.random.default_rng(columns)
    sizes = ((WIDTH, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, columns))
    layers = {
        f"w{number}": random.normal(size=size, scale=1.5 / size[0] ** 0.5)
        for number, size in enumerate(sizes, 1)
    }
    layers["w3"] *= spread
    gives = out or f"n,{columns}"
    text = f"g (float[{shape}] x) => (float[{gives}] y) {{ {NETWORK} {tail} }}"
    return parsed(text, {**layers, **weights})


def classes() -> onnx.ModelProto:
    """Return a classifier of points near eight centres, which answers probabilities."""
    centres = _centres()
    nodes = "a = MatMul(x, w) b = Add(a, c) y = Softmax(b)"
    text = f"g (float[n,{WIDTH}] x) => (float[n,8] y) {{ {nodes} }}"
    share = 0.5
    bias = -0.5 * share * (centres**2).sum(axis=1)
    return parsed(text, {"w": share * centres.T, "c": bias})


def maps() -> onnx.ModelProto:
    """Return two convolutions, whose second output channel is a thousandth of the first."""
    random = np.random.default_rng(3)
    one = random.normal(size=(8, 1, 3, 3), scale=0.5)
    two = random.normal(size=(2, 8, 3, 3), scale=0.2) * np.array([1.0, 1e-3]).reshape(2, 1, 1, 1)
    nodes = "a = Conv<pads = [1,1,1,1]>(x, w1) b = Relu(a) y = Conv<pads = [1,1,1,1]>(b, w2)"
    text = f"g (float[n,1,12,12] x) => (float[n,2,12,12] y) {{ {nodes} }}"
    return parsed(text, {"w1": one, "w2": two})


def _centres() -> Any:
    return np.random.default_rng(8).normal(size=(8, WIDTH))


def normal(count: int, random: np.random.Generator) -> Floats:
    """Return rows of normal numbers."""
    return random.normal(size=(count, WIDTH)).astype(np.float32)


def near_classes(count: int, random: np.random.Generator) -> Floats:
    """Return points around the centres of `classes`."""
    points = _centres()[random.integers(0, 8, count)] + random.normal(size=(count, WIDTH))
    return points.astype(np.float32)


def sequences(count: int, random: np.random.Generator) -> Floats:
    """Return sequences of 16 rows."""
    return random.normal(size=(count, 16, WIDTH)).astype(np.float32)


def pictures(count: int, random: np.random.Generator) -> Floats:
    """Return small pictures of one channel."""
    return random.normal(size=(count, 1, 12, 12)).astype(np.float32)


def heavy(count: int, random: np.random.Generator) -> Floats:
    """Return rows in which some numbers are far larger than the others."""
    return random.standard_t(3, size=(count, WIDTH)).astype(np.float32)
