"""Operators that multiply and sum: MatMul, Gemm, Einsum."""

from __future__ import annotations

from runtime_image.verification.rows.broadcasting import aligned, meet
from runtime_image.verification.rows.node import Node
from runtime_image.verification.rows.rules.registry import rule
from runtime_image.verification.rows.sizes import ONE, Size
from runtime_image.verification.rows.states import NONE, Mixed, State, Tensor, rows

CONTRACTS = "sums over the rows' axis"


@rule("MatMul 9 13")
def matmul(node: Node) -> Tensor:
    """Multiply as NumPy's matmul."""
    return product_of(node, node.tensor(0), node.tensor(1))


def product_of(node: Node, left: Tensor, right: Tensor) -> Tensor:
    """left @ right: rows in the batch axes of both, or in M of the left, or in N of the right."""
    if left.rank == 0 or right.rank == 0:
        raise Mixed("multiplies scalars")
    flat_left, flat_right = left.rank == 1, right.rank == 1
    if flat_left:
        left = _with_axis(left, 0)
    if flat_right:
        right = _with_axis(right, 1)
    result = _matrices(node, left, right)
    dims, state = list(result.shape), result.state
    if flat_right:
        state = _dropped(state, len(dims) - 1)
        dims = dims[:-1]
    if flat_left:
        place = len(dims) - (1 if flat_right else 2)
        state = _dropped(state, place)
        del dims[place]
    return Tensor(state, tuple(dims))


def _with_axis(vector: Tensor, place: int) -> Tensor:
    if vector.state.has_axis:
        raise Mixed(CONTRACTS)
    dims = (ONE, *vector.shape) if place == 0 else (*vector.shape, ONE)
    return Tensor(vector.state, dims)


def _dropped(state: State, place: int) -> State:
    if not state.has_axis:
        return state
    if state.axis == place:
        raise Mixed(CONTRACTS)
    return state.at(state.axis - (state.axis > place))


def _matrices(node: Node, left: Tensor, right: Tensor) -> Tensor:
    for tensor, contracted in ((left, left.rank - 1), (right, right.rank - 2)):
        if tensor.state.has_axis and tensor.state.axis == contracted:
            raise Mixed(CONTRACTS)
    heads = [_batch(left), _batch(right)]
    batch = aligned(heads, node.symbols)
    dims = (*batch.shape, left.shape[-2], right.shape[-1])
    found = [batch.state] if batch.state.has_axis else []
    if left.state.has_axis and left.state.axis == left.rank - 2:
        found.append(rows(len(dims) - 2, *left.state.factors))
    if right.state.has_axis and right.state.axis == right.rank - 1:
        found.append(rows(len(dims) - 1, *right.state.factors))
    if len(found) > 1:
        raise Mixed("multiplies rows with other rows")
    return Tensor(found[0] if found else NONE, dims)


def _batch(tensor: Tensor) -> Tensor:
    """Return the batch axes before the matrices; rows in the matrices count as none here."""
    state = tensor.state
    if state.has_axis and state.axis >= tensor.rank - 2:
        state = NONE
    return Tensor(state, tensor.shape[:-2])


@rule("Gemm 7 9 11 13")
def gemm(node: Node) -> Tensor:
    """A @ B + C, with A and B optionally transposed; C is broadcast to the product."""
    left = turned(node.tensor(0)) if node.flag("transA", 0) else node.tensor(0)
    right = turned(node.tensor(1)) if node.flag("transB", 0) else node.tensor(1)
    if left.rank != 2 or right.rank != 2:
        raise Mixed("multiplies tensors that are not matrices")
    result = _matrices(node, left, right)
    return plus(node, result, 2)


def plus(node: Node, result: Tensor, position: int) -> Tensor:
    """Return a product plus the optional input at `position`, which is broadcast to it."""
    if not node.has(position):
        return result
    both = aligned([result, node.tensor(position)], node.symbols)
    if both.state != result.state or len(both.shape) != result.rank:
        raise Mixed("adds rows or axes that the product does not have")
    return result


def turned(tensor: Tensor) -> Tensor:
    """Return the tensor with its last two axes exchanged."""
    rank, state = tensor.rank, tensor.state
    if state.has_axis and state.axis >= rank - 2:
        state = state.at(2 * rank - 3 - state.axis)
    dims = (*tensor.shape[:-2], tensor.shape[-1], tensor.shape[-2])
    return Tensor(state, dims)


@rule("Einsum 12")
def einsum(node: Node) -> Tensor:
    """The rows' letter is once in each operand with rows, in no other operand, and in the
    output."""
    terms, output = _equation(node.get("equation", ""), len(node.inputs))
    letters: dict[str, Size] = {}
    found: set[tuple[str, State]] = set()
    for position, term in enumerate(terms):
        tensor = node.tensor(position)
        _add_letters(node, letters, term, tensor)
        if tensor.state.has_axis:
            found.add((term[tensor.state.axis], tensor.state.at(0)))
    dims = tuple(letters[letter] for letter in output)
    if not found:
        return Tensor(NONE, dims)
    if len(found) > 1:
        raise Mixed("combines rows on different axes")
    letter, state = found.pop()
    if any(letter in term for term, t in zip(terms, node.given, strict=True) if t.state.is_none):
        raise Mixed("combines rows with an axis that has no rows")
    if letter not in output:
        raise Mixed(CONTRACTS)
    return Tensor(state.at(output.index(letter)), dims)


def _add_letters(node: Node, letters: dict[str, Size], term: str, tensor: Tensor) -> None:
    if len(term) != tensor.rank:
        raise Mixed("has an equation that does not fit its inputs")
    for letter, size in zip(term, tensor.sizes, strict=True):
        letters[letter] = _met(node, letters.get(letter, ONE), size)


def _met(node: Node, left: Size, right: Size) -> Size:
    if left.has_rows and right == ONE:
        return left
    return left if left == right else meet(left, right, node.symbols)


def _equation(equation: str, count: int) -> tuple[list[str], str]:
    text = equation.replace(" ", "")
    left, arrow, output = text.partition("->")
    terms = left.split(",")
    if "." in text:
        raise Mixed("has an ellipsis in its equation")
    if not arrow:
        joined = "".join(terms)
        output = "".join(sorted(c for c in set(joined) if joined.count(c) == 1))
    if len(terms) != count or any(len(set(term)) != len(term) for term in (*terms, output)):
        raise Mixed("has an equation that is not judged")
    return terms, output
