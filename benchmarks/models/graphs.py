"""Graphs as ONNX models in memory. Inputs and outputs have a dynamic first axis."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET: Final = 21
IR_VERSION: Final = 10
SEED: Final = 20261120
WIDTH: Final = 1024
TOKENS: Final = 16
HEADS: Final = 16
STAGES: Final = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
"""ResNet-50 stages: blocks, channels inside a block, stride of the first block."""
WIDENING: Final = 4
BRANCH_SHARE: Final = 0.2
PIXELS: Final = 224
CLASSES: Final = 1000

Floats = npt.NDArray[np.float32]


class Graph:
    """Builder of nodes and weights; every method returns the name of its output."""

    def __init__(self, seed: int = SEED) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self._random = np.random.default_rng(seed)

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add one node."""
        name = output or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def random(self, *shape: int, fan_in: int) -> str:
        """Add random weights that preserve the scale of activations."""
        scale = np.float32((2 / fan_in) ** 0.5)
        return self.constant(self._random.standard_normal(shape, dtype=np.float32) * scale)

    def constant(self, value: npt.NDArray[Any]) -> str:
        """Add a weight with these values."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def dense(self, value: str, rows: int, columns: int) -> str:
        """Add value @ weights + bias."""
        product = self.add("MatMul", value, self.random(rows, columns, fan_in=rows))
        return self.add("Add", product, self.constant(np.zeros(columns, np.float32)))

    def model(self, name: str, takes: Any, gives: Any) -> onnx.ModelProto:
        """Return the model, with one input and one output."""
        graph = helper.make_graph(self.nodes, name, [takes], [gives], self.weights)
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION)


def floats(name: str, *shape: int | str) -> Any:
    """Return an FP32 input or output."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def octets(name: str, *shape: int | str) -> Any:
    """Return a UINT8 input or output."""
    return helper.make_tensor_value_info(name, TensorProto.UINT8, shape)


def tiny() -> onnx.ModelProto:
    """Return an MLP: x FP32 [n, 4] through 16 neurons to y FP32 [n, 3]."""
    graph = Graph()
    hidden = graph.add("Relu", graph.dense("x", 4, 16))
    graph.add("Identity", graph.dense(hidden, 16, 3), output="y")
    return graph.model("tiny", floats("x", "n", 4), floats("y", "n", 3))


def convnet() -> onnx.ModelProto:
    """Return a ResNet-50 with its normalisations folded in: x FP32 [n, 3, 224, 224], y FP32
    [n, 1000]; 102 MB, 4 GFLOP per picture, about 20 ms on one core."""
    graph = Graph()
    value = _conv(graph, "x", 3, 64, kernel=7, stride=2)
    value = graph.add("Relu", value)
    value = graph.add("MaxPool", value, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for blocks, inner, first_stride in STAGES:
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            value = _bottleneck(graph, value, channels, inner, stride)
            channels = inner * WIDENING
    pooled = graph.add("Flatten", graph.add("GlobalAveragePool", value))
    graph.add("Identity", graph.dense(pooled, channels, CLASSES), output="y")
    takes = floats("x", "n", 3, PIXELS, PIXELS)
    return graph.model("convnet", takes, floats("y", "n", CLASSES))


def _bottleneck(graph: Graph, value: str, channels: int, inner: int, stride: int) -> str:
    narrow = graph.add("Relu", _conv(graph, value, channels, inner))
    same = graph.add("Relu", _conv(graph, narrow, inner, inner, kernel=3, stride=stride))
    wide = _conv(graph, same, inner, inner * WIDENING)
    # Scaled down, because the sums would otherwise double with every block.
    wide = graph.add("Mul", wide, graph.constant(np.float32(BRANCH_SHARE).reshape(1)))
    if channels != inner * WIDENING or stride != 1:
        value = _conv(graph, value, channels, inner * WIDENING, stride=stride)
    return graph.add("Relu", graph.add("Add", wide, value))


def _conv(
    graph: Graph, value: str, channels: int, filters: int, kernel: int = 1, stride: int = 1
) -> str:
    """Add a convolution with a bias."""
    fan_in = channels * kernel * kernel
    weights = graph.random(filters, channels, kernel, kernel, fan_in=fan_in)
    bias = graph.constant(np.zeros(filters, np.float32))
    strides, pads = [stride, stride], [kernel // 2] * 4
    return graph.add("Conv", value, weights, bias, strides=strides, pads=pads)


def encoder(layers: int) -> onnx.ModelProto:
    """Return a transformer encoder: x FP32 [n, 16, 1024], y of the same shape; 50 MB per layer."""
    graph = Graph()
    value = "x"
    for _ in range(layers):
        value = _normalised(graph, graph.add("Add", value, _attention(graph, value)))
        inner = graph.add("Gelu", graph.dense(value, WIDTH, 4 * WIDTH))
        value = _normalised(graph, graph.add("Add", value, graph.dense(inner, 4 * WIDTH, WIDTH)))
    graph.add("Identity", value, output="y")
    shape = ("n", TOKENS, WIDTH)
    return graph.model("encoder", floats("x", *shape), floats("y", *shape))


def _attention(graph: Graph, value: str) -> str:
    heads = graph.constant(np.array([0, 0, HEADS, WIDTH // HEADS], np.int64))
    joined = graph.constant(np.array([0, 0, WIDTH], np.int64))

    def split(order: list[int]) -> str:
        apart = graph.add("Reshape", graph.dense(value, WIDTH, WIDTH), heads)
        return graph.add("Transpose", apart, perm=order)

    queries, keys, values = split([0, 2, 1, 3]), split([0, 2, 3, 1]), split([0, 2, 1, 3])
    scale = graph.constant(np.float32((HEADS / WIDTH) ** 0.5).reshape(1))
    scores = graph.add("Mul", graph.add("MatMul", queries, keys), scale)
    mixed = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), values)
    together = graph.add("Reshape", graph.add("Transpose", mixed, perm=[0, 2, 1, 3]), joined)
    return graph.dense(together, WIDTH, WIDTH)


def _normalised(graph: Graph, value: str) -> str:
    scale = graph.constant(np.ones(WIDTH, np.float32))
    shift = graph.constant(np.zeros(WIDTH, np.float32))
    return graph.add("LayerNormalization", value, scale, shift, axis=-1)


def first() -> onnx.ModelProto:
    """Return a model x UINT8 [n, length] to y UINT8 [n], each row's first byte: nearly all of a
    call's cost is the transport of its body."""
    graph = Graph()
    zero = graph.constant(np.array(0, np.int64))
    graph.add("Gather", "x", zero, output="y", axis=1)
    return graph.model("first", octets("x", "n", "length"), octets("y", "n"))


def same() -> onnx.ModelProto:
    """Return a model that returns x UINT8 [n, length] as y."""
    graph = Graph()
    graph.add("Identity", "x", output="y")
    return graph.model("same", octets("x", "n", "length"), octets("y", "n", "length"))
