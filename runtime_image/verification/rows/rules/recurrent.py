"""RNN, GRU and LSTM: each row of the batch axis has its own state."""

from __future__ import annotations

from runtime_image.verification.rows.node import Node
from runtime_image.verification.rows.rules.registry import rule
from runtime_image.verification.rows.rules.spatial import filters
from runtime_image.verification.rows.states import NONE, Mixed, State, Tensor


@rule("RNN 7 14 22", "GRU 7 14 22", "LSTM 7 14 22")
def recurrent(node: Node) -> list[Tensor]:
    """From X [time, batch, values]: Y [time, directions, batch, hidden], Y_h and Y_c
    [directions, batch, hidden]. With layout 1, the batch comes first everywhere."""
    tensor, weights = node.tensor(0), node.tensor(2)
    node.without_rows(1, 2, 3, 7)
    filters(node.tensor(1))
    filters(weights)
    first = node.flag("layout", 0)
    state = _batch(tensor, 0 if first else 1)
    _belongs(node, 4, state, 0)
    for position in (5, 6):
        _belongs(node, position, state, 0 if first else 1)
    directions, hidden = weights.size(0), weights.size(2)
    if first:
        batch, time = tensor.sizes[:2]
        whole, last = (batch, time, directions, hidden), (batch, directions, hidden)
    else:
        time, batch = tensor.sizes[:2]
        whole, last = (time, directions, batch, hidden), (directions, batch, hidden)
    places = (0, 0, 0) if first else (2, 1, 1)
    states = [state.at(place) if state.has_axis else NONE for place in places]
    shapes = (whole, last, last)
    return [Tensor(s, dims) for s, dims in zip(states, shapes, strict=True)][: len(node.used)]


def _batch(tensor: Tensor, axis: int) -> State:
    state = tensor.state
    if state.has_axis and state.axis != axis:
        raise Mixed(f"has rows on axis {state.axis}, its batch lies on axis {axis}")
    return state


def _belongs(node: Node, position: int, state: State, axis: int) -> None:
    """Raise Mixed unless this input, where given, has the same rows."""
    if not node.has(position):
        return
    given = node.tensor(position).state
    if given != (state.at(axis) if state.has_axis else NONE):
        raise Mixed(f"has an input {position} that does not have the same rows")
