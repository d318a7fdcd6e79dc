"""If, Loop and Scan. Conditions and counts must be the same for all rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from runtime_image.verification.rows.node import Node, axis_of, untouched
from runtime_image.verification.rows.rules.registry import rule
from runtime_image.verification.rows.sizes import Size
from runtime_image.verification.rows.states import NONE, Dims, Mixed, Tensor, rows

ROUNDS_MAX: Final = 8
"""Max walks of a loop's body until the carried values are stable."""


@rule("If 1 11 13 16 19 21 23 24 25")
def branch(node: Node) -> list[Tensor]:
    """Return the branch of a decided condition, otherwise the common state of both branches."""
    condition = node.tensor(0)
    if not condition.state.is_none:
        raise Mixed("has a condition that depends on rows")
    number = None
    if condition.numbers is not None and condition.numbers.size == 1:
        number = condition.numbers.reshape(-1)[0].constant
    graphs = [node.get("then_branch"), node.get("else_branch")]
    if number is not None:
        return node.subgraphs.run(graphs[0 if number else 1], [])
    found = [node.subgraphs.run(graph, []) for graph in graphs]
    return [_either(node, *pair) for pair in zip(*found, strict=True)]


def _either(node: Node, left: Tensor, right: Tensor) -> Tensor:
    """Return the common state of a value that is one of these."""
    for tensor in (left, right):
        if tensor.state.is_mixed:
            if tensor.state.culprit is None:
                raise Mixed("uses the number of rows as data")
            return Tensor(tensor.state)
    if left.state != right.state or left.rank != right.rank:
        raise Mixed("gives tensors with different rows or axes in its branches")
    return Tensor(left.state, _loosened(node, left.sizes, right.sizes))


def _loosened(node: Node, left: Sequence[Size], right: Sequence[Size]) -> Dims:
    return tuple(
        one if one == other else node.symbols.fresh("either")
        for one, other in zip(left, right, strict=True)
    )


@rule("Loop 1 11 13 16 19 21 23 24 25")
def loop(node: Node) -> list[Tensor]:
    """Repeat the body; the first two inputs and the body's condition determine how often."""
    node.without_rows(0, 1)
    carried = [node.tensor(position) for position in range(2, len(node.inputs))]
    scalar = Tensor(NONE, ())
    body = node.get("body")
    mark = node.symbols.created

    def run(values: list[Tensor]) -> list[Tensor]:
        found = node.subgraphs.run(body, [scalar, scalar, *values])
        if not found[0].state.is_none:
            raise Mixed("has a loop condition that depends on rows")
        return found[1:]

    carried, scanned = _stable(node, carried, run)
    outputs = [_left(node, tensor, mark) for tensor in carried]
    return outputs + [_stacked(node, tensor, mark, 0, None) for tensor in scanned]


def _stable(
    node: Node, carried: list[Tensor], run: Callable[[list[Tensor]], list[Tensor]]
) -> tuple[list[Tensor], list[Tensor]]:
    """Return carried values with states that hold in every round, and the body's other results."""
    carried = [Tensor(tensor.state, tensor.dims) for tensor in carried]
    loose: set[Size] = set()
    for _ in range(ROUNDS_MAX):
        found = run(carried)
        joined = [
            _joined(node, old, new, loose)
            for old, new in zip(carried, found[: len(carried)], strict=True)
        ]
        if joined == carried:
            return carried, found[len(carried) :]
        carried = joined
    raise Mixed("carries values that do not become stable")


def _joined(node: Node, old: Tensor, new: Tensor, loose: set[Size]) -> Tensor:
    """Return the state of a carried value before and after a round; changed sizes become
    symbols."""
    if new.state.is_mixed and new.state.culprit is not None:
        raise Mixed(new.state.culprit.why, new.state.culprit)
    if old.state != new.state or old.rank != new.rank:
        raise Mixed("carries a value that gains or loses rows, or axes")
    dims = []
    for one, other in zip(old.sizes, new.sizes, strict=True):
        if one != other and one not in loose:
            one = node.symbols.fresh("carried")
            loose.add(one)
        dims.append(one)
    return Tensor(old.state, tuple(dims))


def _left(node: Node, tensor: Tensor, mark: int) -> Tensor:
    """Return a tensor outside the loop. Symbols created in the body may differ between rounds, so
    their sizes are replaced."""
    dims = tuple(
        node.symbols.fresh("looped")
        if any(symbol.order > mark for symbol in size.symbols)
        else size
        for size in tensor.sizes
    )
    return Tensor(tensor.state, dims)


def _stacked(node: Node, tensor: Tensor, mark: int, axis: int, length: Size | None) -> Tensor:
    """Return the results of all rounds, stacked along a new axis."""
    if tensor.state.is_mixed:
        return Tensor(tensor.state)
    inner = _left(node, Tensor(tensor.state, tensor.dims), mark)
    axis = axis_of(axis, inner.rank + 1)
    state = inner.state
    if state.kind in ("number", "index"):
        raise Mixed("uses the position of a row as data")
    if state.has_axis:
        state = state.at(state.axis + (state.axis >= axis))
    rounds = length if length is not None else node.symbols.fresh("rounds")
    return Tensor(state, (*inner.shape[:axis], rounds, *inner.shape[axis:]))


@rule("Scan 9 11 16 19 21 23 24 25")
def scan(node: Node) -> list[Tensor]:
    """Run the body once for each place of an axis of its last inputs, not the row axis."""
    count = node.get("num_scan_inputs")
    given = [node.tensor(position) for position in range(len(node.inputs))]
    states, scanned = given[: len(given) - count], given[len(given) - count :]
    places = node.get("scan_input_axes") or [0] * count
    body, mark = node.get("body"), node.symbols.created
    slices, length = [], None
    for tensor, axis in zip(scanned, places, strict=True):
        axis = axis_of(axis, tensor.rank)
        untouched(tensor.state, [axis], "goes along")
        length = tensor.size(axis)
        slices.append(_slice(tensor, axis))
    carried, results = _stable(node, states, lambda v: node.subgraphs.run(body, [*v, *slices]))
    outputs = [_left(node, tensor, mark) for tensor in carried]
    axes = node.get("scan_output_axes") or [0] * len(results)
    return outputs + [
        _stacked(node, tensor, mark, axis, length)
        for tensor, axis in zip(results, axes, strict=True)
    ]


def _slice(tensor: Tensor, axis: int) -> Tensor:
    state = tensor.state
    if state.has_axis:
        state = state.at(state.axis - (state.axis > axis))
    return Tensor(state, (*tensor.shape[:axis], *tensor.shape[axis + 1 :]))


@rule("Scan 8")
def batched_scan(node: Node) -> list[Tensor]:
    """Run the body once for each row and place: [batch, time, ...], states [batch, ...].

    The body gets one row at a time, so it may do anything that is the same in every run. It must
    not read other rows through the surrounding values.
    """
    if node.has(0):
        raise Mixed("has lengths of sequences, which are not judged")
    count, body = node.get("num_scan_inputs"), node.get("body")
    given = [node.tensor(position) for position in range(1, len(node.inputs))]
    if any(tensor.state != rows(0) for tensor in given):
        raise Mixed("has an input whose first axis is not the rows'")
    if any(not tensor.state.is_none for tensor in node.subgraphs.captured(body)):
        raise Mixed("reads rows from around its body")
    states, scanned = given[: len(given) - count], given[len(given) - count :]
    slices = [Tensor(NONE, tensor.shape[2:]) for tensor in scanned]
    length, mark = scanned[0].size(1), node.symbols.created
    carried = [Tensor(NONE, tensor.shape[1:]) for tensor in states]
    stable, results = _stable(node, carried, lambda v: node.subgraphs.run(body, [*v, *slices]))
    if any(not tensor.state.is_none for tensor in results):
        raise Mixed("gives results in its body that are not judged")
    batch = given[0].size(0)
    outputs = [_left(node, tensor, mark) for tensor in stable]
    outputs += [_stacked(node, tensor, mark, 0, length) for tensor in results]
    return [Tensor(rows(0), (batch, *tensor.shape)) for tensor in outputs]
