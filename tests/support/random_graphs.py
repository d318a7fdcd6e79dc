"""Random valid ONNX graphs, as input for the row-independence analysis.

A graph grows node by node. Each candidate node runs on ONNX Runtime with the values of the nodes
before it, for batches of two sizes, and is dropped if that fails. The choice of nodes ignores row
independence, so both kinds of graph occur often.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from runtime_image.contract.rows import CONSTANT

SIZES = (3, 5)
"""Batch sizes for which every candidate node must run."""
OPSETS = (11, 13, 17, 18, 21)
IR_VERSION = 9
ELEMENTS_MAX = 4096
RANK_MAX = 5
TYPES = {"f": TensorProto.FLOAT, "i": TensorProto.INT64, "b": TensorProto.BOOL}
AXIS_NAMES = ("", "", "", "s", "t")
"""Names of axes behind the row axis: most are static (""), others may share a name across
inputs."""
INDEX_MAX = 3
"""Integer inputs are 0 to 2, so that they are often valid indices."""

Array = np.ndarray[Any, Any]


EqualAxes = Sequence[Sequence[tuple[str, int]]]
Shapes = dict[str, tuple[int, ...]]
"""Sizes behind the row axis, by input."""


@dataclass(frozen=True)
class Input:
    """One input: sizes behind the row axis, names of the dynamic axes (else ""), and kind "f"
    (float) or "i" (integer)."""

    shape: tuple[int, ...]
    names: tuple[str, ...]
    kind: str


@dataclass(frozen=True)
class Drawn:
    """A model and its inputs."""

    model: onnx.ModelProto
    inputs: dict[str, Input]

    @property
    def shapes(self) -> Shapes:
        """Return the shapes used while the graph grew."""
        return {name: given.shape for name, given in self.inputs.items()}

    def rows(
        self,
        random: np.random.Generator,
        count: int,
        scale: float = 1.0,
        shapes: Shapes | None = None,
    ) -> dict[str, Array]:
        """Return random rows of every input; `scale` multiplies the floats."""
        made = {}
        for name, shape in (shapes or self.shapes).items():
            if self.inputs[name].kind == "f":
                values = random.normal(size=(count, *shape)) * scale
                made[name] = values.astype(np.float32)
            else:
                made[name] = random.integers(0, INDEX_MAX, (count, *shape))
        return made


class Graph:
    """A growing graph. `values` holds each tensor for both batch sizes; constants are separate."""

    def __init__(self, random: np.random.Generator) -> None:
        self.random = random
        self.opset = int(random.choice(OPSETS))
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.values: dict[str, tuple[Array, ...]] = {}
        self._pending: list[onnx.NodeProto] = []
        self._pending_values: dict[str, tuple[Array, ...]] = {}
        self._count = 0

    def pick(self, kinds: str = "f", rank: int | None = None) -> str:
        """Return the name of a random tensor of one of these kinds. Raises LookupError."""
        fitting = [
            name
            for name, arrays in self.values.items()
            if _kind(arrays[0]) in kinds and rank in (None, arrays[0].ndim)
        ]
        if not fitting:
            raise LookupError(kinds)
        # Newer tensors are more likely: deep graphs test more than wide ones.
        return fitting[-1 - min(int(self.random.geometric(0.4)) - 1, len(fitting) - 1)]

    def array(self, name: str) -> Array:
        """Return a tensor's values for the first batch size."""
        return {**self.values, **self._pending_values}[name][0]

    def axis(self, name: str) -> int:
        """Return a random axis of a tensor, possibly negative. Raises LookupError for a scalar."""
        rank = self.array(name).ndim
        if rank == 0:
            raise LookupError("no axis")
        return int(self.random.integers(-rank, rank))

    def constant(self, value: Any) -> str:
        """Add an initialiser; return its name."""
        self._count += 1
        name = f"c{self._count}"
        self.constants[name] = np.asarray(value)
        return name

    def add(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Run a candidate node; return its output name, or all names. Raises ValueError if it
        fails."""
        names = []
        for _ in range(outputs):
            self._count += 1
            names.append(f"v{self._count}")
        node = helper.make_node(operator, list(inputs), names, **attributes)
        made = [self._run(node, names, index) for index in range(len(SIZES))]
        for place, name in enumerate(names):
            self._pending_values[name] = tuple(outputs[place] for outputs in made)
        self._pending.append(node)
        return names[0] if outputs == 1 else names

    def _run(self, node: onnx.NodeProto, names: list[str], index: int) -> list[Array]:
        known = {**self.values, **self._pending_values}
        feeds = {name: known[name][index] for name in node.input if name in known}
        takes = [
            helper.make_tensor_value_info(name, TYPES[_kind(array)], None)
            for name, array in feeds.items()
        ]
        gives = [helper.make_empty_tensor_value_info(name) for name in names]
        graph = helper.make_graph([node], "g", takes, gives, self._initialisers([node]))
        try:
            outputs: list[Array] = _session(self._model(graph), optimise=False).run(names, feeds)
        except Exception as error:
            raise ValueError(str(error)) from error
        for array in outputs:
            if array.size > ELEMENTS_MAX or array.ndim > RANK_MAX or _kind(array) not in TYPES:
                raise ValueError("too large, or of a type that no node takes")
        return outputs

    def _initialisers(self, nodes: Sequence[onnx.NodeProto]) -> list[onnx.TensorProto]:
        used = {name for node in nodes for name in node.input}
        return [
            numpy_helper.from_array(value, name)
            for name, value in self.constants.items()
            if name in used
        ]

    def _model(self, graph: onnx.GraphProto) -> onnx.ModelProto:
        opset = helper.make_opsetid("", self.opset)
        return helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION)

    def grow(self, draw: Callable[[Graph], Any]) -> bool:
        """Apply `draw` completely or not at all; return whether it was applied."""
        self._pending, self._pending_values = [], {}
        try:
            draw(self)
        except (ValueError, LookupError):
            self._pending, self._pending_values = [], {}
            return False
        self.nodes += self._pending
        self.values |= self._pending_values
        self._pending, self._pending_values = [], {}
        return True

    def model(self, inputs: dict[str, Input]) -> onnx.ModelProto | None:
        """Return the whole model; its outputs are the last tensors with one row per input row. None
        if there is no such tensor."""
        gives = [
            name
            for name, arrays in self.values.items()
            if name not in inputs
            and all(a.ndim and len(a) == size for a, size in zip(arrays, SIZES, strict=True))
        ]
        if not gives:
            return None
        gives = gives[-int(self.random.integers(1, 3)) :]
        takes = [
            helper.make_tensor_value_info(
                name,
                TYPES[given.kind],
                ["N", *(word or size for word, size in zip(given.names, given.shape, strict=True))],
            )
            for name, given in inputs.items()
        ]
        outs = [
            helper.make_tensor_value_info(
                name,
                TYPES[_kind(self.values[name][0])],
                ["N", *[None] * (self.values[name][0].ndim - 1)],
            )
            for name in gives
        ]
        graph = helper.make_graph(self.nodes, "g", takes, outs, self._initialisers(self.nodes))
        return self._model(graph)


def draw(seed: int, rules: Sequence[Callable[[Graph], Any]], nodes_max: int = 9) -> Drawn | None:
    """Return the graph of a seed, grown by `rules`; None if it has no output with one row per input
    row."""
    random = np.random.default_rng(seed)
    graph = Graph(random)
    inputs: dict[str, Input] = {}
    for number in range(int(random.integers(1, 4))):
        kind = "f" if number == 0 or random.random() < 0.5 else "i"
        shape = tuple(int(n) for n in random.integers(1, 5, int(random.integers(0, 4))))
        names = tuple(str(name) for name in random.choice(AXIS_NAMES, len(shape)))
        inputs[f"x{number}"] = Input(shape, names, kind)
    drawn = Drawn(onnx.ModelProto(), inputs)
    batches = [drawn.rows(random, size) for size in SIZES]
    graph.values = {name: tuple(batch[name] for batch in batches) for name in inputs}
    wanted, tries = int(random.integers(2, nodes_max)), 0
    while len(graph.nodes) < wanted and tries < 8 * nodes_max:
        tries += 1
        graph.grow(rules[int(random.integers(len(rules)))])
    model = graph.model(inputs)
    return None if model is None else Drawn(model, inputs)


def _session(model: onnx.ModelProto, *, optimise: bool = True) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _kind(array: Array) -> str:
    return {"float32": "f", "int64": "i", "bool": "b"}.get(str(array.dtype), "?")


class Refuter:
    """Searches for a row whose answer changes with its neighbours, on ONNX Runtime.

    Named axes get other sizes as well: axes in one group of `equal_axes` get the same size, all
    others their own, whatever their names. A group with a constant keeps that size.
    """

    BATCHES = (2, 3, 5)
    SCALES = (1.0, 1e5, 0.0, 3e38)

    def __init__(self, drawn: Drawn, seed: int, equal_axes: EqualAxes = ()) -> None:
        self._drawn = drawn
        self._random = np.random.default_rng(seed)
        self._session = _session(drawn.model)
        self._groups = {axis: group for group in equal_axes for axis in group}
        self._constants = {
            group: size for group in equal_axes for name, size in group if name == CONSTANT
        }

    def _shapes(self) -> Shapes:
        """Return the shapes used while growing, or others that the conditions permit."""
        if self._random.random() < 0.5:
            return self._drawn.shapes
        sizes: dict[object, int] = dict(self._constants)
        return {
            name: tuple(
                sizes.setdefault(
                    self._groups.get((name, axis), (name, axis)), int(self._random.integers(1, 6))
                )
                if word
                else size
                for axis, (size, word) in enumerate(
                    zip(given.shape, given.names, strict=True), start=1
                )
            )
            for name, given in self._drawn.inputs.items()
        }

    def refutation(self, swaps: int = 8) -> str:
        """Return what changed, "" if nothing did.

        Rows that the model rejects alone are left out: rows of a failing batch run alone.
        """
        for swap in range(swaps):
            rows = self.BATCHES[swap % len(self.BATCHES)]
            kept = int(self._random.integers(rows))
            scale = self.SCALES[swap % len(self.SCALES)]
            shapes = self._shapes()
            own = self._drawn.rows(self._random, 1, 0.0 if swap % 3 == 2 else 1.0, shapes)
            answers = [self._joined(own, rows, kept, one, shapes) for one in (1.0, scale)]
            if any(answer is None for answer in answers):
                continue
            for name, one in answers[0].items():
                other = answers[1][name]
                if one.shape[:1] != (rows,) or other.shape[:1] != (rows,):
                    return f"{name} has {one.shape[:1]} rows of {rows}"
                if not _same(one[kept], other[kept]):
                    return f"{name} of row {kept} in {rows} changes with its neighbours"
        return ""

    def _joined(
        self, own: dict[str, Array], rows: int, kept: int, scale: float, shapes: Shapes
    ) -> Any:
        """Return the outputs by name of a batch whose row `kept` is `own`; None if the model
        rejects it."""
        with np.errstate(over="ignore"):
            feeds = self._drawn.rows(self._random, rows, scale, shapes)
        for name, array in feeds.items():
            array[kept] = own[name][0]
        try:
            outputs = self._session.run(None, feeds)
        except Exception:  # noqa: BLE001 - any rejection, e.g. an index out of range
            return None
        names = [output.name for output in self._session.get_outputs()]
        return dict(zip(names, outputs, strict=True))


def _same(one: Array, other: Array) -> bool:
    """Compare bit for bit, except for NaN payloads."""
    floats = one.dtype.kind == "f"
    return one.shape == other.shape and np.array_equal(one, other, equal_nan=floats)
