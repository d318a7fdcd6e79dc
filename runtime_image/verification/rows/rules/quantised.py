"""Operators on quantised numbers. Scales and zero points have no rows and are one for all rows."""

from __future__ import annotations

from runtime_image.verification.rows.broadcasting import aligned
from runtime_image.verification.rows.node import Node, axes_of, axis_of, untouched
from runtime_image.verification.rows.rules.axes import joined
from runtime_image.verification.rows.rules.contraction import product_of, turned
from runtime_image.verification.rows.rules.registry import MICROSOFT, rule
from runtime_image.verification.rows.rules.spatial import filters, rows_first, window_sizes
from runtime_image.verification.rows.sizes import ONE, Size
from runtime_image.verification.rows.states import Mixed, Tensor


def one_for_all(node: Node, *positions: int) -> None:
    """Raise Mixed unless these inputs, where given, are single numbers without rows."""
    node.without_rows(*positions)
    for position in positions:
        if node.has(position) and any(size != ONE for size in node.tensor(position).shape):
            raise Mixed(f"has several scales or zero points in input {position}")


@rule("QuantizeLinear 10 13 19 21 23 24 25", "DequantizeLinear 10 13 19 21 23 24 25")
@rule("QuantizeLinear 1", "DequantizeLinear 1", domain=MICROSOFT)
def linear(node: Node) -> Tensor:
    """Scale each element by one scale, or by the scale of its place on `axis`."""
    tensor = node.tensor(0)
    node.without_rows(1, 2)
    scale = node.tensor(1)
    if tensor.state.has_axis and scale.rank > 1:
        raise Mixed("has scales for blocks")
    if scale.rank == 1 and scale.shape != (ONE,):
        untouched(tensor.state, [axis_of(node.get("axis", 1), tensor.rank)], "scales along")
    return Tensor(tensor.state, tensor.dims)


@rule("MatMulInteger 10")
def integer_product(node: Node) -> Tensor:
    """A @ B of integers with zero points."""
    one_for_all(node, 2)
    _second(node, 1, 3)
    return product_of(node, node.tensor(0), node.tensor(1))


@rule("QLinearMatMul 10 21")
def quantised_product(node: Node) -> Tensor:
    """Inputs: A, its scale and zero point; B likewise; the result's."""
    one_for_all(node, 1, 2, 6, 7)
    _second(node, 3, 4, 5)
    return product_of(node, node.tensor(0), node.tensor(3))


def _second(node: Node, position: int, *scales: int) -> None:
    """Raise Mixed for invalid scales of B; it may have one per column only if it has no rows."""
    if node.tensor(position).state.is_none:
        node.without_rows(*scales)
    else:
        one_for_all(node, *scales)


@rule("MatMulIntegerToFloat 1", domain=MICROSOFT)
def product_to_float(node: Node) -> Tensor:
    """A @ B of integers, scaled. Inputs: A, B, their scales, their zero points, a bias."""
    one_for_all(node, 2, 4)
    node.without_rows(1, 3, 5, 6)
    return product_of(node, node.tensor(0), node.tensor(1))


@rule("QLinearConv 10")
def quantised_convolution(node: Node) -> Tensor:
    """Inputs: x, its scale and zero point; w likewise, per channel; the result's; a bias."""
    tensor, weights = node.tensor(0), node.tensor(3)
    one_for_all(node, 1, 2, 6, 7)
    node.without_rows(3, 4, 5, 8)
    rows_first(tensor)
    filters(node.tensor(3))
    places = window_sizes(node, tensor, list(weights.sizes[2:]), 1)
    return Tensor(tensor.state, (tensor.size(0), weights.size(0), *places))


@rule("QLinearConv 1", domain=MICROSOFT)
def channels_last_convolution(node: Node) -> Tensor:
    """Same as QLinearConv; with `channels_last`, x is [rows, places, channels]."""
    if not node.flag("channels_last", 0):
        return quantised_convolution(node)
    tensor = node.tensor(0)
    one_for_all(node, 1, 2, 6, 7)
    node.without_rows(3, 4, 5, 8)
    rows_first(tensor)
    filters(node.tensor(3))
    places = tuple(node.symbols.fresh("window", 1) for _ in range(tensor.rank - 2))
    return Tensor(tensor.state, (tensor.size(0), *places, node.tensor(3).size(0)))


@rule("NhwcMaxPool 1", domain=MICROSOFT)
def channels_last_pool(node: Node) -> Tensor:
    """Pool the places of each row and channel of [rows, places, channels]."""
    tensor = node.tensor(0)
    rows_first(tensor)
    places = tuple(node.symbols.fresh("window") for _ in range(tensor.rank - 2))
    return Tensor(tensor.state, (tensor.size(0), *places, tensor.size(tensor.rank - 1)))


@rule("QGemm 1", domain=MICROSOFT)
def quantised_gemm(node: Node) -> Tensor:
    """Inputs: A, its scale and zero point; B likewise; C; the result's."""
    one_for_all(node, 1, 2, 7, 8)
    node.without_rows(3, 4, 5, 6)
    left, right = node.tensor(0), node.tensor(3)
    left = turned(left) if node.flag("transA", 0) else left
    right = turned(right) if node.flag("transB", 0) else right
    if left.rank != 2 or (node.has(6) and node.tensor(6).rank > 1):
        raise Mixed("has operands that are not judged")
    return product_of(node, left, right)


@rule("QLinearAdd 1", "QLinearMul 1", domain=MICROSOFT)
def quantised_pair(node: Node) -> Tensor:
    """Inputs: A and B, each with scale and zero point, broadcast."""
    one_for_all(node, 1, 2, 4, 5, 6, 7)
    return aligned([node.tensor(0), node.tensor(3)], node.symbols)


@rule("QLinearLeakyRelu 1", "QLinearSigmoid 1", domain=MICROSOFT)
def quantised_element(node: Node) -> Tensor:
    """Compute each element separately."""
    tensor = node.tensor(0)
    one_for_all(node, *range(1, len(node.inputs)))
    return Tensor(tensor.state, tensor.dims)


@rule("QLinearConcat 1", domain=MICROSOFT)
def quantised_concat(node: Node) -> Tensor:
    """Inputs: the result's scale and zero point, then each part with its own."""
    parts = [node.tensor(position) for position in range(2, len(node.inputs), 3)]
    numbers = [p for p in range(len(node.inputs)) if p < 2 or (p - 2) % 3]
    one_for_all(node, *numbers)
    return joined(parts, axis_of(node.get("axis", 0), parts[0].rank))


@rule("QLinearGlobalAveragePool 1", "QLinearAveragePool 1", domain=MICROSOFT)
def quantised_pool(node: Node) -> Tensor:
    """Pool the places of each row and channel."""
    tensor = node.tensor(0)
    one_for_all(node, *range(1, len(node.inputs)))
    rows_first(tensor)
    if node.operator == "QLinearAveragePool":
        if node.flag("channels_last", 0):
            raise Mixed("has its channels last, which is not judged")
        kernel = [Size.of(size) for size in node.get("kernel_shape", [])]
        return Tensor(tensor.state, (*tensor.sizes[:2], *window_sizes(node, tensor, kernel, 0)))
    ones = (ONE,) * (tensor.rank - 2)
    first, last = tensor.size(0), tensor.size(tensor.rank - 1)
    if node.flag("channels_last", 0):
        return Tensor(tensor.state, (first, *ones, last))
    return Tensor(tensor.state, (*tensor.sizes[:2], *ones))


@rule("QLinearSoftmax 1", domain=MICROSOFT)
def quantised_softmax(node: Node) -> Tensor:
    """Same as Softmax of the opset in its attribute."""
    tensor = node.tensor(0)
    one_for_all(node, *range(1, len(node.inputs)))
    axis = axis_of(node.get("axis", -1), tensor.rank)
    together = [axis] if node.get("opset", 13) >= 13 else list(range(axis, tensor.rank))
    untouched(tensor.state, axes_of(together, tensor.rank), "normalises along")
    return Tensor(tensor.state, tensor.dims)
