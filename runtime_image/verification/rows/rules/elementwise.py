"""Operators that compute each element from elements at the same place, after broadcasting."""

from __future__ import annotations

from collections.abc import Callable

from runtime_image.verification.rows.broadcasting import aligned, joined_dims
from runtime_image.verification.rows.node import Node
from runtime_image.verification.rows.numbering import is_false
from runtime_image.verification.rows.rules.registry import rule
from runtime_image.verification.rows.sizes import ONE, Size, Unknown, at_least
from runtime_image.verification.rows.states import Culprit, Mixed, State, Tensor, mixed

_Combine = Callable[[Tensor, Tensor], tuple[Size, Size] | None]


@rule(
    "Abs 6 13",
    "Acos 7 22",
    "Acosh 9 22",
    "Asin 7 22",
    "Asinh 9 22",
    "Atan 7 22",
    "Atanh 9 22",
    "BitwiseNot 18",
    "Ceil 6 13",
    "Celu 12",
    "Cos 7 22",
    "Cosh 9 22",
    "Elu 6 22",
    "Erf 9 13",
    "Exp 6 13",
    "Floor 6 13",
    "Gelu 20",
    "HardSigmoid 6 22",
    "HardSwish 14 22",
    "IsInf 10 20",
    "IsNaN 9 13 20",
    "LeakyRelu 6 16",
    "Log 6 13",
    "Mish 18 22",
    "Neg 6 13",
    "Not 1",
    "Reciprocal 6 13",
    "RegexFullMatch 20",
    "Relu 6 13 14",
    "Round 11 22",
    "Selu 6 22",
    "Shrink 9",
    "Sigmoid 6 13",
    "Sign 9 13",
    "Sin 7 22",
    "Sinh 9 22",
    "Softplus 1 22",
    "Softsign 1 22",
    "Sqrt 6 13",
    "Swish 24",
    "Tan 7 22",
    "Tanh 6 13",
    "ThresholdedRelu 10 22",
    tolerant=True,
)
def one_input(node: Node) -> Tensor:
    """Keep state and sizes of the only input."""
    tensor = node.tensor(0)
    return Tensor(tensor.state, tensor.dims)


@rule(
    "And 7",
    "BitShift 11",
    "BitwiseAnd 18",
    "BitwiseOr 18",
    "BitwiseXor 18",
    "Div 7 13 14",
    "Equal 7 11 13 19",
    "Greater 7 9 13",
    "GreaterOrEqual 12 16",
    "Less 7 9 13",
    "LessOrEqual 12 16",
    "Max 8 12 13",
    "Mean 8 13",
    "Min 8 12 13",
    "Mod 10 13",
    "Or 7",
    "Pow 7 12 13 15",
    "StringConcat 20",
    "Sub 7 13 14",
    "Sum 8 13",
    "Where 9 16",
    "Xor 7",
    tolerant=True,
    numbered=True,
)
def elementwise(node: Node) -> Tensor:
    """Broadcast all inputs. Row numbers become data here: their sizes are kept, the content
    mixed."""
    if any(tensor.state.kind in ("number", "index") for tensor in node.given):
        dims = joined_dims([tensor.shape for tensor in node.given], node.symbols)
        return Tensor(_as_data(node), dims)
    return aligned(node.given, node.symbols)


def _as_data(node: Node) -> State:
    return mixed(Culprit(node.operator, node.name, "uses the position of a row as data"))


@rule("Add 7 13 14", tolerant=True, numbered=True)
def add(node: Node) -> Tensor:
    """A row number plus a value in [0, c) has an offset below `below` + c - 1."""
    return _on_number(node, _added)


@rule("Mul 7 13 14", tolerant=True, numbered=True)
def multiply(node: Node) -> Tensor:
    """A row number times a constant size numbers the rows in larger steps."""
    return _on_number(node, _multiplied)


def _on_number(node: Node, combine: _Combine) -> Tensor:
    left, right = node.tensor(0), node.tensor(1)
    if left.state.kind != "number" and right.state.kind != "number":
        result = aligned(node.given, node.symbols)
        below = _below(left, right, node.operator) if result.state.is_none else None
        return result.with_(below=below)
    if right.state.kind == "number":
        left, right = right, left
    changed = combine(left, right)
    if changed is None:
        return elementwise(node)
    plain = Tensor(State("rows", left.state.axis, *left.state.factors), left.dims)
    result = aligned([plain, right], node.symbols)
    scale, below = changed
    state = State("number", result.state.axis, *result.state.factors, scale, below)
    return Tensor(state, result.dims)


def _added(number: Tensor, other: Tensor) -> tuple[Size, Size] | None:
    if not other.state.is_none or other.below is None:
        return None
    return number.state.scale, number.state.below + other.below - ONE


def _multiplied(number: Tensor, other: Tensor) -> tuple[Size, Size] | None:
    if not other.state.is_none or other.numbers is None or other.numbers.size != 1:
        return None
    step = other.numbers.reshape(-1)[0]
    if not at_least(step, 1):
        return None
    return number.state.scale * step, (number.state.below - ONE) * step + ONE


def _below(left: Tensor, right: Tensor, operator: str) -> Size | None:
    """Return a bound above all sums or products of non-negative operands, None if unknown."""
    if left.below is None or right.below is None:
        return None
    try:
        if operator == "Add":
            return left.below + right.below - ONE
        return (left.below - ONE) * (right.below - ONE) + ONE
    except Unknown:
        return None


@rule("Clip 6 11 12 13", "CastLike 15 19 21 23 24 25")
def with_scalars(node: Node) -> Tensor:
    """Keep the first input's places. Clip's bounds are scalars; CastLike's second gives a type."""
    tensor = node.tensor(0)
    if node.operator == "Clip":
        node.without_rows(1, 2)
    return Tensor(tensor.state, tensor.dims)


@rule("PRelu 7 9 16")
def slope(node: Node) -> Tensor:
    """The slope is broadcast to the input, never the reverse."""
    result = aligned(node.given, node.symbols)
    if result.dims is None or len(result.dims) != node.tensor(0).rank:
        raise Mixed("has a slope with more axes than its input")
    return result


@rule("Dropout 7 10 12 13 22", reads=())
def dropout(node: Node) -> list[Tensor]:
    """Return the input unchanged, unless in training. The mask has the same places."""
    tensor = node.tensor(0)
    node.without_rows(1, 2)
    if node.has(2) and not is_false(node.tensor(2)):
        raise Mixed("drops elements at random: training_mode is not off")
    plain = Tensor(tensor.state, tensor.dims)
    return [plain, plain]
