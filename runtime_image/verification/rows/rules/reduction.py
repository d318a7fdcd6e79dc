"""Operators that combine elements along axes; the row axis must not be among them."""

from __future__ import annotations

from runtime_image.verification.rows.broadcasting import aligned
from runtime_image.verification.rows.node import Node, axes_of, axis_of, untouched
from runtime_image.verification.rows.rules.registry import rule
from runtime_image.verification.rows.sizes import ONE
from runtime_image.verification.rows.states import Mixed, Tensor


@rule(
    "ReduceL1 1 11 13 18",
    "ReduceL2 1 11 13 18",
    "ReduceLogSum 1 11 13 18",
    "ReduceLogSumExp 1 11 13 18",
    "ReduceMax 1 11 12 13 18 20",
    "ReduceMean 1 11 13 18",
    "ReduceMin 1 11 12 13 18 20",
    "ReduceProd 1 11 13 18",
    "ReduceSum 1 11 13",
    "ReduceSumSquare 1 11 13 18",
    reads=(1,),
)
def reduce(node: Node) -> Tensor:
    """Reduce along axes; without axes along all of them, unless `noop_with_empty_axes`."""
    tensor = node.tensor(0)
    given = node.integers_of("axes", 1)
    if not given and node.flag("noop_with_empty_axes", 0):
        # No axis is reduced, but the element function (squares, for example) still applies.
        return Tensor(tensor.state, tensor.dims)
    axes = axes_of(given or range(tensor.rank), tensor.rank)
    untouched(tensor.state, axes, "reduces")
    return _without(tensor, axes, node.flag("keepdims", 1))


def _without(tensor: Tensor, axes: list[int], keep: bool) -> Tensor:
    if keep:
        dims = tuple(ONE if axis in axes else size for axis, size in enumerate(tensor.shape))
        return Tensor(tensor.state, dims)
    dims = tuple(size for axis, size in enumerate(tensor.shape) if axis not in axes)
    state = tensor.state
    if state.has_axis:
        state = state.at(state.axis - sum(axis < state.axis for axis in set(axes)))
    return Tensor(state, dims)


@rule("ArgMax 1 11 12 13", "ArgMin 1 11 12 13")
def arg(node: Node) -> Tensor:
    """Return a place along one axis (default 0)."""
    tensor = node.tensor(0)
    axis = axis_of(node.get("axis", 0), tensor.rank)
    untouched(tensor.state, [axis], "compares along")
    return _without(tensor, [axis], node.flag("keepdims", 1))


@rule("Softmax 13", "LogSoftmax 13", "Hardmax 13", "LpNormalization 1 22")
def along_one_axis(node: Node) -> Tensor:
    """Normalise along one axis (default: the last)."""
    tensor = node.tensor(0)
    untouched(tensor.state, [axis_of(node.get("axis", -1), tensor.rank)], "normalises along")
    return Tensor(tensor.state, tensor.dims)


@rule("Softmax 1 11", "LogSoftmax 1 11", "Hardmax 1 11")
def along_flattened_axes(node: Node) -> Tensor:
    """Normalise over `axis` (default 1) and all later axes together."""
    tensor = node.tensor(0)
    first = axis_of(node.get("axis", 1), tensor.rank)
    untouched(tensor.state, list(range(first, tensor.rank)), "normalises along")
    return Tensor(tensor.state, tensor.dims)


@rule("LayerNormalization 17", "RMSNormalization 23")
def layer_normalization(node: Node) -> list[Tensor]:
    """Normalise over `axis` and all later axes; scale and bias are broadcast to those."""
    tensor = node.tensor(0)
    node.without_rows(1, 2)
    first = axis_of(node.get("axis", -1), tensor.rank)
    axes = list(range(first, tensor.rank))
    untouched(tensor.state, axes, "normalises along")
    scaled = aligned([Tensor(tensor.state, tensor.dims), *node.given[1:]], node.symbols)
    if scaled.state != tensor.state or len(scaled.shape) != tensor.rank:
        raise Mixed("has a scale with more axes than its input")
    statistics = _without(tensor, axes, True)
    return [Tensor(tensor.state, tensor.dims), statistics, statistics][: len(node.used)]


@rule("MeanVarianceNormalization 9 13")
def mean_variance(node: Node) -> Tensor:
    """Normalise over axes (default: 0, 2 and 3)."""
    tensor = node.tensor(0)
    axes = axes_of(node.get("axes", [0, 2, 3]), tensor.rank)
    untouched(tensor.state, axes, "normalises along")
    return Tensor(tensor.state, tensor.dims)


@rule("CumSum 11 14", reads=(1,))
def running(node: Node) -> Tensor:
    """Sum cumulatively along one axis."""
    tensor = node.tensor(0)
    (axis,) = axes_of(node.integers(1), tensor.rank)
    untouched(tensor.state, [axis], "sums along")
    return Tensor(tensor.state, tensor.dims)


@rule("TopK 10 11 24", reads=(1,))
def top(node: Node) -> list[Tensor]:
    """Return the largest elements along one axis (default: the last), and their places."""
    tensor = node.tensor(0)
    axis = axis_of(node.get("axis", -1), tensor.rank)
    untouched(tensor.state, [axis], "sorts along")
    (places,) = node.elements(1)
    dims = list(tensor.shape)
    dims[axis] = places
    found = Tensor(tensor.state, tuple(dims))
    return [found, found]


@rule("Det 11 22")
def determinant(node: Node) -> Tensor:
    """Return determinants of the matrices in the last two axes."""
    tensor = node.tensor(0)
    untouched(tensor.state, [tensor.rank - 2, tensor.rank - 1])
    return Tensor(tensor.state, tensor.shape[:-2])
