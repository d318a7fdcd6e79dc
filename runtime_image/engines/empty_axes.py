"""Operators on which ONNX Runtime ends or blocks its process if they meet an empty axis.

Its kernels compute beyond buffers or divide by zero there, which no caller can catch. Callers may
send empty axes, so a graph with such an operator takes none. The graph is read on the first request
with an empty axis, not at each load. Source of field numbers: onnx.proto.

The list is of ONNX Runtime 1.31 and was found by runs of every operator with each axis empty, each
in a process of its own. What raises an error, as most kernels do, is not in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from runtime_image.contract.errors import BAD_INPUT, UnfitInput
from runtime_image.contract.onnx_signature import GraphReader, graph_reader

OPERATORS: Final = frozenset(
    {
        "ConvTranspose",
        "DynamicQuantizeLSTM",
        "FeatureVectorizer",
        "GRU",
        "Inverse",
        "LSTM",
        "QAttention",
        "RNN",
    }
)
"""Operators that take no empty axis at all."""
WEIGHTS: Final[Mapping[str, int]] = {
    "Conv": 1,
    "ConvInteger": 1,
    "DeformConv": 1,
    "FusedConv": 1,
    "NhwcFusedConv": 1,
    "QLinearConv": 3,
    "STFT": 2,
}
"""Operators and the input of theirs that must not be empty: it counts if callers influence it."""
WIDTHS: Final[Mapping[str, tuple[int, ...]]] = {
    "GroupQueryAttention": (0, 1, 2),
    "MoE": (0,),
    "MultiHeadAttention": (0, 1, 2),
    "QMoE": (0,),
    "RotaryEmbedding": (0,),
}
"""Operators and the inputs of theirs whose last axis must not be empty: they count unless the file
states that axis, or weights of the model determine it."""
WIDENING: Final[Mapping[str, tuple[int, ...]]] = {
    "Add": (0, 1),
    "DynamicQuantizeMatMul": (1,),
    "FusedMatMul": (1,),
    "Gemm": (1,),
    "LayerNormalization": (1,),
    "MatMul": (1,),
    "MatMulIntegerToFloat": (1,),
    "MatMulNBits": (1,),
    "SimplifiedLayerNormalization": (1,),
    "SkipLayerNormalization": (2,),
    "SkipSimplifiedLayerNormalization": (2,),
}
"""Operators and the inputs of theirs that determine the last axis of their result."""
ATTENTION: Final = "Attention"
"""Divides by the number of heads of its keys, which is an attribute or the second of four axes."""
SUMS: Final = frozenset({"SkipLayerNormalization", "SkipSimplifiedLayerNormalization"})
"""Operators that add two values whose rows must be empty together."""
SUMMED: Final = frozenset({"LayerNormalization", "ReduceMean", "SimplifiedLayerNormalization"})
"""Operators that ONNX Runtime turns into SUMS at load, with an Add before them of values whose axes
have the same names."""
FIELDS_MAX: Final = 2_000_000
"""Max parsed fields of a graph, some seconds. The axes of a larger one must not be empty."""
DEPTH_MAX: Final = 100
UNREAD: Final = "as the graph of the model cannot be checked for operators that take no empty one"

PASSES_MAX: Final = 100
"""Max passes over the nodes of a graph; one is enough if they are in order, as they should be."""

_GRAPH, _FUNCTION = 7, 25
_NODE, _INITIALIZER, _INPUT, _VALUE_INFO = 1, 5, 11, 13
_TENSOR_NAME = 8
_FUNCTION_INPUT, _FUNCTION_NODE = 4, 7
_NODE_INPUT, _NODE_OUTPUT, _OP_TYPE, _ATTRIBUTE = 1, 2, 4, 5
_ATTRIBUTE_NAME, _ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS = 1, 6, 11
_KEYS, _HEADS_AXIS = 1, 1
_HEADS: Final = frozenset({"kv_num_heads", "num_heads"})
"""Attributes with a number of heads, of ONNX and of com.microsoft."""


_Place = tuple[str, int]
"""Name of an input, and an axis."""
_Shapes = dict[str, tuple[int, ...]]


class _Node(NamedTuple):
    op_type: str
    inputs: list[str]
    outputs: list[str]
    attributes: set[str]
    graphs: list[tuple[int, int]]


class Operators(NamedTuple):
    """Operators of a model by what they refuse, in words, "" for none."""

    empty: str = ""
    """One that takes no empty axis."""
    rows: str = ""
    """One of SUMS."""
    names: str = ""
    """One of SUMMED."""


class EmptyAxes:
    """What a model says of empty axes, read when it is first asked."""

    def __init__(self, model: Path, axes: Mapping[str, Sequence[object]]) -> None:
        """`axes` has the declared sizes and names of each input's axes."""
        self._model = model
        self._axes = axes
        self._operators: Operators | None = None

    @property
    def operators(self) -> Operators:
        """The operators of the model. Blocking at first."""
        if self._operators is None:
            self._operators = _operators_of(self._model)
        return self._operators

    def check(self, inputs: Mapping[str, Any]) -> None:
        """Raise UnfitInput for an empty axis that an operator of the model does not take."""
        shapes = {name: np.shape(value) for name, value in inputs.items()}
        empty = [(name, shape.index(0)) for name, shape in shapes.items() if 0 in shape]
        if not empty:
            return
        found = self.operators
        refused = (
            (found.empty, empty[0]),
            (found.rows, _alone([(name, 0) for name in shapes], shapes)),
            (found.names, self._unlike(shapes)),
        )
        for operator, place in refused:
            if operator and place is not None:
                raise _refusal(operator, place, shapes)

    def _unlike(self, shapes: Mapping[str, tuple[int, ...]]) -> _Place | None:
        """Return an empty axis of which another one with the same name is not empty."""
        named: dict[object, list[_Place]] = {}
        for name, axes in self._axes.items():
            for axis, size in enumerate(axes):
                if isinstance(size, str):
                    named.setdefault(size, []).append((name, axis))
        found = (_alone(places, shapes) for places in named.values())
        return next((place for place in found if place), None)


def _alone(places: list[_Place], shapes: Mapping[str, tuple[int, ...]]) -> _Place | None:
    """Return the first of these axes that is empty, None if all or none are."""
    there = [(name, axis) for name, axis in places if axis < len(shapes.get(name, ()))]
    empty = [(name, axis) for name, axis in there if shapes[name][axis] == 0]
    return empty[0] if 0 < len(empty) < len(there) else None


def _refusal(operator: str, place: _Place, shapes: Mapping[str, tuple[int, ...]]) -> UnfitInput:
    name, axis = place
    reason = UNREAD if operator == UNREAD else f"as the operator {operator} takes no empty one"
    expected = f"at least 1 place on axis {axis}, {reason}"
    got = f"shape {list(shapes[name])}"
    text = f"input {name!r}: expected {expected}, got {got}"
    return UnfitInput(BAD_INPUT, text, input=name, expected=expected, got=got)


def _operators_of(model: Path) -> Operators:
    empty = rows = names = ""
    try:
        with graph_reader(model, FIELDS_MAX) as reader:
            for operator in _Search(reader).found():
                if operator in SUMS:
                    rows = operator
                elif operator in SUMMED:
                    names = operator
                else:
                    empty = operator
                    break
    except (OSError, ValueError):
        return Operators(UNREAD)
    return Operators(empty, rows, names)


class _Search:
    """Search of one file."""

    def __init__(self, reader: GraphReader) -> None:
        self._read = reader

    def found(self) -> Iterator[str]:
        """Yield the operators of every list that do not take every empty axis."""
        for number, first, last, _ in self._read.fields(0, self._read.size):
            if number == _GRAPH:
                yield from self._graph(first, last, set(), {}, 0)
            elif number == _FUNCTION:
                inputs = set(self._read.texts(first, last, _FUNCTION_INPUT))
                yield from self._nodes(first, last, _FUNCTION_NODE, inputs, {}, 0)

    def _graph(
        self, start: int, end: int, fed: set[str], shapes: _Shapes, depth: int
    ) -> Iterator[str]:
        """Search a graph in which the values `fed` of outer graphs depend on callers; `shapes` are
        the stated ones of outer values."""
        if depth > DEPTH_MAX:
            raise ValueError(f"expected at most {DEPTH_MAX} levels of graphs, got more")
        inputs, known, weights = set(fed), dict(shapes), set[str]()
        for number, first, last, _ in self._read.fields(start, end):
            if number in (_INPUT, _VALUE_INFO):
                tensor = self._read.tensor(first, last)
                if number == _INPUT:
                    inputs.add(tensor.name)
                if tensor.shape is not None:
                    known[tensor.name] = tensor.shape
            elif number == _INITIALIZER:
                weights.update(self._read.texts(first, last, _TENSOR_NAME))
        yield from self._nodes(start, end, _NODE, inputs - weights, known, depth)

    def _nodes(
        self, start: int, end: int, field: int, fed: set[str], shapes: _Shapes, depth: int
    ) -> Iterator[str]:
        nodes = [self._node(*span) for span in self._read.parts(start, end, field)]
        values = _Values(nodes, fed, shapes)
        for node in nodes:
            if values.counts(node):
                yield node.op_type
            for graph in node.graphs:
                yield from self._graph(*graph, values.fed, shapes, depth + 1)

    def _node(self, start: int, end: int) -> _Node:
        node = _Node("", [], [], set(), [])
        op_type = ""
        for number, first, last, _ in self._read.fields(start, end):
            if number == _OP_TYPE:
                op_type = self._read.text(first, last)
            elif number in (_NODE_INPUT, _NODE_OUTPUT):
                names = node.inputs if number == _NODE_INPUT else node.outputs
                names.append(self._read.text(first, last))
            elif number == _ATTRIBUTE:
                node.attributes.update(self._read.texts(first, last, _ATTRIBUTE_NAME))
                for graphs in (_ATTRIBUTE_GRAPH, _ATTRIBUTE_GRAPHS):
                    node.graphs.extend(self._read.parts(first, last, graphs))
        return node._replace(op_type=op_type)


class _Values:
    """Values of the nodes of one graph. A branch or loop may use any outer value, so that its
    results always depend on callers. Nodes need not be in order."""

    def __init__(self, nodes: list[_Node], fed: set[str], shapes: _Shapes) -> None:
        self.fed = set(fed)
        """Values that depend on callers."""
        self._shapes = shapes
        self._makers = {name: node for node in nodes for name in node.outputs}
        for _ in range(PASSES_MAX):
            size = len(self.fed)
            for node in nodes:
                if node.graphs or not self.fed.isdisjoint(node.inputs):
                    self.fed.update(filter(None, node.outputs))
            if size == len(self.fed):
                return
        self.fed.update(*(node.outputs for node in nodes))

    def counts(self, node: _Node) -> bool:
        """Whether a node does not take every empty axis."""
        if node.op_type in OPERATORS or node.op_type in SUMS or node.op_type in SUMMED:
            return True
        if node.op_type in WEIGHTS:
            return any(name in self.fed for name in _given(node, (WEIGHTS[node.op_type],)))
        if node.op_type in WIDTHS:
            return not all(map(self._is_wide, _given(node, WIDTHS[node.op_type])))
        if node.op_type != ATTENTION or node.attributes & _HEADS:
            return False
        return not all(map(self._has_heads, _given(node, (_KEYS,))))

    def _is_wide(self, name: str) -> bool:
        """Whether the last axis of a value is known not to be empty."""
        shape = self._shapes.get(name)
        if name not in self.fed or (shape and shape[-1] > 0):
            return True
        node = self._makers.get(name)
        if node is None or node.op_type not in WIDENING:
            return False
        return any(given not in self.fed for given in _given(node, WIDENING[node.op_type]))

    def _has_heads(self, name: str) -> bool:
        shape = self._shapes.get(name, ())
        return len(shape) > _HEADS_AXIS and shape[_HEADS_AXIS] > 0


def _given(node: _Node, places: tuple[int, ...]) -> list[str]:
    """Return the inputs of a node at these places, without those left out."""
    return [node.inputs[at] for at in places if at < len(node.inputs) and node.inputs[at]]
