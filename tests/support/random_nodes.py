"""Node generators for random graphs: one function each, over all operator families.

Each adds one node, or a multi-node idiom of exporters. It raises LookupError if no tensor fits;
`Graph.add` raises ValueError if ONNX Runtime rejects the node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.random_graphs import Graph

Rule = Callable[[Graph], Any]
UNARY = ("Relu", "Abs", "Neg", "Sigmoid", "Tanh", "Identity", "Floor", "Sign", "Softplus")
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min")
REDUCING = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceProd")
EQUATIONS = (
    "ij,jk->ik",
    "ij,ij->i",
    "ij,kj->ik",
    "bij,bjk->bik",
    "bij,bkj->bik",
    "ij->ji",
    "ij,kj->k",
)
AXES_INPUT = {"ReduceSum": 13}
"""Opset since which the axes of a reduction are an input; 18 for all others."""


def one_of(graph: Graph, choices: Any) -> Any:
    return choices[int(graph.random.integers(len(choices)))]


def chance(graph: Graph, share: float) -> bool:
    return bool(graph.random.random() < share)


def unary(graph: Graph) -> None:
    graph.add(one_of(graph, UNARY), graph.pick("f"))


def binary(graph: Graph) -> None:
    kind = one_of(graph, "ffi")
    other = graph.pick(kind)
    if chance(graph, 0.3):
        shape = graph.array(other).shape[int(graph.random.integers(0, 2)) :]
        dtype = np.float32 if kind == "f" else np.int64
        other = graph.constant(graph.random.integers(1, 4, shape).astype(dtype))
    graph.add(one_of(graph, BINARY), graph.pick(kind), other)


def compare(graph: Graph) -> None:
    asked = graph.add(one_of(graph, ("Less", "Greater")), graph.pick("f"), graph.pick("f"))
    graph.add("Where", asked, graph.pick("f"), graph.pick("f"))


def cast(graph: Graph) -> None:
    graph.add("Cast", graph.pick("fib"), to=int(one_of(graph, (1, 7))))


def softmax(graph: Graph) -> None:
    name = graph.pick("f")
    attributes = {} if chance(graph, 0.3) else {"axis": graph.axis(name)}
    graph.add(one_of(graph, ("Softmax", "LogSoftmax", "Hardmax")), name, **attributes)


def reduce(graph: Graph) -> None:
    name, operator = graph.pick("f"), one_of(graph, REDUCING)
    attributes: dict[str, Any] = {"keepdims": int(graph.random.integers(2))}
    if chance(graph, 0.15):
        graph.add(operator, name, **attributes)
        return
    axes = [graph.axis(name)]
    if graph.opset >= AXES_INPUT.get(operator, 18):
        graph.add(operator, name, graph.constant(np.array(axes)), **attributes)
    else:
        graph.add(operator, name, axes=axes, **attributes)


def arg_max(graph: Graph) -> None:
    name = graph.pick("f")
    attributes = {} if chance(graph, 0.3) else {"axis": graph.axis(name)}
    graph.add(one_of(graph, ("ArgMax", "ArgMin")), name, keepdims=0, **attributes)


def cum_sum(graph: Graph) -> None:
    name = graph.pick("f")
    graph.add("CumSum", name, graph.constant(np.int64(graph.axis(name))))


def top_k(graph: Graph) -> None:
    name = graph.pick("f")
    count = graph.constant(np.array([int(graph.random.integers(1, 3))]))
    graph.add("TopK", name, count, outputs=2, axis=graph.axis(name))


def transpose(graph: Graph) -> None:
    name = graph.pick("fi")
    order = graph.random.permutation(graph.array(name).ndim)
    graph.add("Transpose", name, perm=[int(axis) for axis in order])


def reshape_constant(graph: Graph) -> None:
    name = graph.pick("fi")
    wanted = [
        int(one_of(graph, (0, -1, 1, 2, 3, 4))) for _ in range(int(graph.random.integers(1, 5)))
    ]
    graph.add("Reshape", name, graph.constant(np.array(wanted)))


def _size(graph: Graph) -> str:
    """Return one size of a random tensor's shape, as [1]: Shape, then Gather and Unsqueeze, or
    Slice."""
    shape = graph.add("Shape", graph.pick("fi"))
    place = int(graph.random.integers(graph.array(shape).size))
    if chance(graph, 0.5):
        ends = [graph.constant(np.array([n])) for n in (place, place + 1, 0)]
        return str(graph.add("Slice", shape, *ends))
    return str(graph.add("Gather", shape, graph.constant(np.array([place]))))


def reshape_by_sizes(graph: Graph) -> None:
    name = graph.pick("fi")
    parts = [
        _size(graph)
        if chance(graph, 0.5)
        else graph.constant(np.array([int(one_of(graph, (-1, 1, 2, 3)))]))
        for _ in range(int(graph.random.integers(1, 4)))
    ]
    if chance(graph, 0.3):
        parts[0] = graph.add("Mul", parts[0], _size(graph))
    graph.add("Reshape", name, graph.add("Concat", *parts, axis=0))


def split_and_merge(graph: Graph) -> None:
    """[N, a, ...] -> [a, N, ...] -> [a * N, ...], as attention does."""
    name = graph.pick("f")
    rank = graph.array(name).ndim
    if rank < 2:
        raise LookupError(name)
    swapped = graph.add("Transpose", name, perm=[1, 0, *range(2, rank)])
    behind = list(graph.array(swapped).shape[2:])
    merged = graph.add("Reshape", swapped, graph.constant(np.array([-1, *behind])))
    inner = graph.add(one_of(graph, UNARY), merged)
    back = graph.add("Shape", swapped)
    graph.add("Transpose", graph.add("Reshape", inner, back), perm=[1, 0, *range(2, rank)])


def flatten(graph: Graph) -> None:
    name = graph.pick("f")
    graph.add("Flatten", name, axis=int(graph.random.integers(0, graph.array(name).ndim + 1)))


def squeeze(graph: Graph) -> None:
    name = graph.pick("fi")
    if chance(graph, 0.2):
        graph.add("Squeeze", name)
    elif graph.opset >= 13:
        graph.add("Squeeze", name, graph.constant(np.array([graph.axis(name)])))
    else:
        graph.add("Squeeze", name, axes=[graph.axis(name)])


def unsqueeze(graph: Graph) -> None:
    name = graph.pick("fi")
    axis = int(graph.random.integers(0, graph.array(name).ndim + 1))
    if graph.opset >= 13:
        graph.add("Unsqueeze", name, graph.constant(np.array([axis])))
    else:
        graph.add("Unsqueeze", name, axes=[axis])


def expand(graph: Graph) -> None:
    graph.add("Expand", graph.pick("fi"), graph.add("Shape", graph.pick("fi")))


def tile(graph: Graph) -> None:
    name = graph.pick("fi")
    counts = graph.random.integers(1, 3, graph.array(name).ndim)
    graph.add("Tile", name, graph.constant(counts))


def concat(graph: Graph) -> None:
    kind = one_of(graph, "ffi")
    name = graph.pick(kind)
    graph.add("Concat", name, graph.pick(kind), axis=graph.axis(name))


def split(graph: Graph) -> None:
    name = graph.pick("f")
    attributes = {"num_outputs": 2} if graph.opset >= 18 else {}
    graph.add("Split", name, outputs=2, axis=graph.axis(name), **attributes)


def slice_(graph: Graph) -> None:
    name = graph.pick("fi")
    step = int(one_of(graph, (1, 1, 2, -1)))
    ends = (int(one_of(graph, (0, 1, -1, -2))), int(one_of(graph, (1, 2, 2**31 - 1, -1, -(2**31)))))
    parts = [graph.constant(np.array([n])) for n in (*ends, graph.axis(name), step)]
    graph.add("Slice", name, *parts)


def pad(graph: Graph) -> None:
    name = graph.pick("f")
    amounts = graph.random.integers(-1, 2, 2 * graph.array(name).ndim)
    if chance(graph, 0.6):
        amounts[[0, graph.array(name).ndim]] = 0
    graph.add(
        "Pad", name, graph.constant(amounts), mode=one_of(graph, ("constant", "edge", "reflect"))
    )


def gather(graph: Graph) -> None:
    name = graph.pick("fi")
    if chance(graph, 0.5):
        places = graph.pick("i")
    else:
        places = graph.constant(np.array(one_of(graph, (0, -1, [0], [-1], [0, 0]))))
    graph.add("Gather", name, places, axis=graph.axis(name))


def look_up(graph: Graph) -> None:
    table = graph.constant(graph.random.normal(size=(4, 2)).astype(np.float32))
    graph.add("Gather", table, graph.pick("i"))


def gather_elements(graph: Graph) -> None:
    name = graph.pick("f")
    graph.add("GatherElements", name, graph.pick("i"), axis=graph.axis(name))


def gather_nd(graph: Graph) -> None:
    attributes = {"batch_dims": int(graph.random.integers(0, 2))} if graph.opset >= 12 else {}
    graph.add("GatherND", graph.pick("f"), graph.pick("i"), **attributes)


def row_number(graph: Graph) -> str:
    size = graph.add("Gather", graph.add("Shape", graph.pick("fi")), graph.constant(np.int64(0)))
    zero, one = graph.constant(np.int64(0)), graph.constant(np.int64(1))
    return str(graph.add("Range", zero, size, one))


def take_at(graph: Graph) -> None:
    """x[arange(N), n]: the row number next to a column of a small index."""
    rows = row_number(graph)
    column = graph.pick("i", rank=1) if chance(graph, 0.5) else rows
    if chance(graph, 0.5):
        column = graph.add("Mul", column, graph.constant(np.int64(one_of(graph, (0, 1)))))
    parts = [
        graph.add("Reshape", part, graph.constant(np.array([-1, 1]))) for part in (rows, column)
    ]
    if chance(graph, 0.2):
        parts.reverse()
    graph.add("GatherND", graph.pick("f"), graph.add("Concat", *parts, axis=-1))


def row_gather(graph: Graph) -> None:
    """Rows gathered by the row number, which may be scaled or shifted."""
    places = row_number(graph)
    if chance(graph, 0.5):
        places = graph.add("Mul", places, graph.constant(np.int64(one_of(graph, (1, 2)))))
    if chance(graph, 0.4):
        places = graph.add("Add", places, graph.constant(np.int64(one_of(graph, (0, 1)))))
    data = graph.pick("f")
    if chance(graph, 0.5):
        behind = list(graph.array(data).shape[2:])
        data = graph.add("Reshape", data, graph.constant(np.array([-1, *behind])))
    graph.add("Gather", data, places, axis=0)


def row_data(graph: Graph) -> None:
    graph.add("Add", graph.pick("i"), row_number(graph))


def scatter_nd(graph: Graph) -> None:
    name = graph.pick("f")
    places = graph.pick("i") if chance(graph, 0.4) else graph.constant(np.array([[0]]))
    graph.add("ScatterND", name, places, graph.pick("f"))


def scatter_elements(graph: Graph) -> None:
    name = graph.pick("f")
    graph.add("ScatterElements", name, graph.pick("i"), graph.pick("f"), axis=graph.axis(name))


def mat_mul(graph: Graph) -> None:
    name = graph.pick("f")
    if chance(graph, 0.5):
        graph.add("MatMul", name, graph.pick("f"))
        return
    inner = graph.array(name).shape[-1:] or (1,)
    weights = graph.constant(graph.random.normal(size=(*inner, 3)).astype(np.float32))
    graph.add("MatMul", *((name, weights) if chance(graph, 0.8) else (weights, name)))


def gemm(graph: Graph) -> None:
    left, right = graph.pick("f", rank=2), graph.pick("f", rank=2)
    flags = {"transA": int(graph.random.integers(2)), "transB": int(graph.random.integers(2))}
    graph.add("Gemm", left, right, *([graph.pick("f")] if chance(graph, 0.5) else []), **flags)


def einsum(graph: Graph) -> None:
    """Contract tensors whose ranks fit the equation; otherwise ONNX Runtime 1.31 aborts the
    process."""
    equation = one_of(graph, EQUATIONS)
    if graph.opset < 12:
        raise LookupError("Einsum")
    letters = equation.partition("->")[0].split(",")
    operands = [graph.pick("f", rank=len(word)) for word in letters]
    sizes: dict[str, int] = {}
    for word, operand in zip(letters, operands, strict=True):
        for letter, size in zip(word, graph.array(operand).shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise LookupError(equation)
    graph.add("Einsum", *operands, equation=equation)


def layer_norm(graph: Graph) -> None:
    name = graph.pick("f")
    axis = graph.axis(name)
    if graph.opset < 17:
        raise LookupError("LayerNormalization")
    scale = graph.constant(np.ones(1, np.float32))
    graph.add("LayerNormalization", name, scale, axis=axis)


def normalise(graph: Graph) -> None:
    operator = one_of(
        graph, ("MeanVarianceNormalization", "InstanceNormalization", "LpNormalization")
    )
    name = graph.pick("f")
    if operator == "InstanceNormalization":
        channels = graph.array(name).shape[1]
        scale, bias = (graph.constant(np.full(channels, n, np.float32)) for n in (1, 0))
        graph.add(operator, name, scale, bias)
    elif operator == "LpNormalization":
        graph.add(operator, name, axis=graph.axis(name), p=2)
    elif chance(graph, 0.5):
        graph.add(operator, name)
    else:
        graph.add(operator, name, axes=[graph.axis(name)])


def one_hot(graph: Graph) -> None:
    depth, ends = graph.constant(np.int64(3)), graph.constant(np.array([0, 1], np.float32))
    graph.add("OneHot", graph.pick("i"), depth, ends, axis=int(one_of(graph, (-1, 0, 1))))


def filled(graph: Graph) -> None:
    graph.add("ConstantOfShape", graph.add("Shape", graph.pick("fi")))


def count_as_data(graph: Graph) -> None:
    """x / N, x * sizes: the number of rows used as data."""
    size = graph.add("Cast", _size(graph), to=1)
    graph.add(one_of(graph, ("Div", "Mul", "Add")), graph.pick("f"), size)


def select(graph: Graph) -> None:
    name = graph.pick("f")
    mask = graph.constant(np.array([True, *([False] if chance(graph, 0.5) else [])]))
    graph.add("Compress", name, mask, axis=graph.axis(name))


def triangle(graph: Graph) -> None:
    if graph.opset < 14:
        raise LookupError("Trilu")
    graph.add("Trilu", graph.pick("f"), upper=int(graph.random.integers(2)))


def recurrent(graph: Graph) -> None:
    name = graph.pick("f", rank=3)
    width, hidden = graph.array(name).shape[2], 2
    shapes = ((1, 3 * hidden, width), (1, 3 * hidden, hidden))
    weights = [
        graph.constant(graph.random.normal(size=shape).astype(np.float32)) for shape in shapes
    ]
    layout = {"layout": 0} if graph.opset >= 14 else {}
    graph.add("GRU", name, *weights, outputs=2, hidden_size=hidden, **layout)


def convolve(graph: Graph) -> None:
    name = graph.pick("f", rank=4)
    channels = graph.array(name).shape[1]
    weights = graph.constant(graph.random.normal(size=(2, channels, 1, 1)).astype(np.float32))
    graph.add("Conv", name, weights)


def pool(graph: Graph) -> None:
    operator = one_of(graph, ("MaxPool", "AveragePool"))
    name = graph.pick("f", rank=4)
    if operator == "MaxPool" and chance(graph, 0.5):
        graph.add(operator, name, outputs=2, kernel_shape=[1, 1])
    else:
        graph.add(operator, name, kernel_shape=[1, 1])


RULES: tuple[Rule, ...] = (
    *(unary, binary, binary, compare, cast, softmax, reduce, arg_max, cum_sum, top_k, transpose),
    *(transpose, reshape_constant, reshape_constant, reshape_by_sizes, reshape_by_sizes),
    *(split_and_merge, flatten, squeeze, unsqueeze, unsqueeze, expand, tile, concat, split, slice_),
    *(pad, gather, look_up, gather_elements, gather_nd, take_at, row_gather, row_data, scatter_nd),
    *(scatter_elements, mat_mul, mat_mul, gemm, einsum, layer_norm, normalise, one_hot, filled),
    *(count_as_data, select, triangle, recurrent, convolve, pool),
)
