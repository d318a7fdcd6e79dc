"""Operators of ONNX Runtime's own domain, written by its optimiser. Those with a past are mixed."""

from __future__ import annotations

from collections.abc import Sequence

from runtime_image.verification.rows.broadcasting import aligned
from runtime_image.verification.rows.node import Node, untouched
from runtime_image.verification.rows.rules import contraction, reduction, spatial
from runtime_image.verification.rows.rules.registry import MICROSOFT, rule
from runtime_image.verification.rows.sizes import ONE, Size
from runtime_image.verification.rows.states import Mixed, State, Tensor, rows


@rule("Gelu 1", "QuickGelu 1", domain=MICROSOFT)
def one_input(node: Node) -> Tensor:
    """Compute each element separately."""
    return Tensor(node.tensor(0).state, node.tensor(0).dims)


@rule("FastGelu 1", "BiasGelu 1", domain=MICROSOFT)
def with_bias(node: Node) -> Tensor:
    """Compute each element separately, after adding a bias along the last axis."""
    tensor = node.tensor(0)
    node.without_rows(1)
    untouched(tensor.state, [tensor.rank - 1])
    return Tensor(tensor.state, tensor.dims)


@rule("FusedMatMul 1", domain=MICROSOFT)
def fused_matmul(node: Node) -> Tensor:
    """alpha * A @ B, each optionally transposed."""
    left = _turned(node, node.tensor(0), "A")
    right = _turned(node, node.tensor(1), "B")
    return contraction.product_of(node, left, right)


def _turned(node: Node, tensor: Tensor, side: str) -> Tensor:
    matrices = node.flag(f"trans{side}", 0) and tensor.rank > 1
    batch = node.flag(f"transBatch{side}", 0)
    if batch and matrices:
        raise Mixed("transposes both the batch and the matrices")
    if batch:
        return _batch_turned(tensor)
    return contraction.turned(tensor) if matrices else tensor


def _batch_turned(tensor: Tensor) -> Tensor:
    """Move the first axis behind the other batch axes, before the last axis."""
    rank, state = tensor.rank, tensor.state
    order = [*range(1, rank - 1), 0, rank - 1]
    if rank < 3:
        raise Mixed("transposes a batch that it does not have")
    if state.has_axis:
        state = state.at(order.index(state.axis))
    return Tensor(state, tuple(tensor.shape[axis] for axis in order))


@rule("FusedGemm 1", domain=MICROSOFT)
def fused_gemm(node: Node) -> Tensor:
    """Gemm, followed by a function of each element."""
    return contraction.gemm(node)


@rule("FusedConv 1", domain=MICROSOFT)
def fused_convolution(node: Node) -> Tensor:
    """Conv, plus a tensor of the result's shape, followed by a function of each element."""
    tensor, weights = node.tensor(0), node.tensor(1)
    node.without_rows(1, 2)
    spatial.rows_first(tensor)
    spatial.filters(weights)
    places = spatial.window_sizes(node, tensor, list(weights.sizes[2:]), 1)
    if node.has(3) and node.tensor(3).state != tensor.state:
        raise Mixed("adds other rows")
    return Tensor(tensor.state, (tensor.size(0), weights.size(0), *places))


@rule("SimplifiedLayerNormalization 1", domain=MICROSOFT)
@rule("SimplifiedLayerNormalization 1", "LayerNormalization 1")
def simplified(node: Node) -> list[Tensor]:
    """Same as RMSNormalization."""
    return reduction.layer_normalization(node)


@rule("SkipLayerNormalization 1", "SkipSimplifiedLayerNormalization 1", domain=MICROSOFT)
def skip_normalization(node: Node) -> list[Tensor]:
    """Normalise the sum of two tensors over the last axis; the sum is the fourth output."""
    node.without_rows(2, 3, 4)
    total = aligned([node.tensor(0), node.tensor(1)], node.symbols)
    if len(total.shape) != node.tensor(0).rank:
        raise Mixed("skips a tensor with more axes than its input")
    untouched(total.state, [len(total.shape) - 1], "normalises along")
    statistics = Tensor(total.state, (*total.shape[:-1], ONE))
    return [total, statistics, statistics, total][: len(node.used)]


@rule("EmbedLayerNormalization 1", domain=MICROSOFT)
def embed(node: Node) -> list[Tensor]:
    """Look up words, segments and positions in tables; add and normalise."""
    words = node.tensor(0)
    node.without_rows(2, 3, 4, 5, 6)
    _first(words)
    if words.rank != 2:
        raise Mixed("needs lines of words")
    for position in (1, 7):
        if node.has(position) and node.tensor(position).state != words.state:
            raise Mixed(f"has an input {position} that does not have the same rows")
    if node.has(8):
        _own_or_shared(node, 8, words.state)
    dims = (*words.sizes, node.tensor(2).size(1))
    found = [Tensor(words.state, dims), Tensor(words.state, (words.size(0),))]
    return [*found, Tensor(words.state, dims)][: len(node.used)]


def _first(tensor: Tensor) -> None:
    """Raise Mixed unless the rows, if any, are the first axis."""
    if tensor.state.has_axis and tensor.state != rows(0):
        raise Mixed("takes rows on another axis than the first")


def _own_or_shared(node: Node, position: int, state: State) -> None:
    """Raise Mixed unless an input has the same rows, or is shared by all rows."""
    tensor = node.tensor(position)
    shared = tensor.state.is_none and tensor.rank > 0 and tensor.size(0) == ONE
    if tensor.state != state and not shared and not (state.is_none and tensor.state.is_none):
        raise Mixed(f"has an input {position} that does not have the same rows")


def _own(node: Node, positions: Sequence[int], state: State) -> None:
    for position in positions:
        if node.has(position) and node.tensor(position).state != state:
            raise Mixed(f"has an input {position} that does not have the same rows")


@rule("Attention 1", domain=MICROSOFT)
def attention(node: Node) -> Tensor:
    """Self-attention over the words of each row; weights for queries, keys and values."""
    tensor = node.tensor(0)
    node.without_rows(1, 2)
    if node.has(4) or node.has(6) or any(node.used[1:]):
        raise Mixed("has a past, which is not judged")
    _first(tensor)
    if tensor.rank != 3:
        raise Mixed("needs lines of words")
    _own(node, [3], tensor.state)
    if node.has(5):
        _own_or_shared(node, 5, tensor.state)
    sizes = node.get("qkv_hidden_sizes")
    width = Size.of(sizes[2]) if sizes else node.tensor(1).size(1).divided(Size.of(3))
    if width is None:
        raise Mixed("has weights whose width is no multiple of 3")
    return Tensor(tensor.state, (*tensor.sizes[:2], width))


@rule("MultiHeadAttention 1", domain=MICROSOFT)
def multi_head(node: Node) -> Tensor:
    """Attention of each row's queries to its own keys and values."""
    query = node.tensor(0)
    node.without_rows(3)
    if any(node.has(position) for position in (6, 7, 8, 9)) or any(node.used[1:]):
        raise Mixed("has a past, which is not judged")
    _first(query)
    _own(node, [1, 2, 4], query.state)
    if node.has(5):
        _own_or_shared(node, 5, query.state)
    return Tensor(query.state, (*query.sizes[:2], _width(node, query)))


def _width(node: Node, query: Tensor) -> Size:
    if not node.has(2):
        return node.symbols.fresh("width", 1)
    value = node.tensor(2)
    if value.rank == 3 and query.rank == 3:
        return value.size(2)
    if value.rank == 4:
        return value.size(1) * value.size(3)
    raise Mixed("has values of a form that is not judged")


@rule("RotaryEmbedding 1", domain=MICROSOFT)
def rotary(node: Node) -> Tensor:
    """Rotate each word by its position."""
    tensor, places = node.tensor(0), node.tensor(1)
    node.without_rows(2, 3)
    _first(tensor)
    if node.get("is_packed_batching", 0):
        raise Mixed("packs rows")
    if places.state != tensor.state and not (places.state.is_none and places.shape == (ONE,)):
        raise Mixed("has positions that do not have the same rows")
    return Tensor(tensor.state, tensor.dims)


@rule("MatMulNBits 1", domain=MICROSOFT)
def packed_product(node: Node) -> Tensor:
    """A @ B with B quantised to few bits."""
    tensor = node.tensor(0)
    node.without_rows(1, 2, 3, 4, 5)
    untouched(tensor.state, [tensor.rank - 1], "sums over")
    return Tensor(tensor.state, (*tensor.shape[:-1], Size.of(node.get("N"))))
