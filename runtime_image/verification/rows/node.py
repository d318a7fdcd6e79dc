"""One operator of a graph, as passed to its rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from onnx import FunctionProto, GraphProto

from runtime_image.verification.rows.sizes import Size, Symbols
from runtime_image.verification.rows.states import Mixed, State, Tensor

FLAGS: Final = frozenset(
    [
        "align_corners",
        "allowzero",
        "antialias",
        "ceil_mode",
        "channels_last",
        "count_include_pad",
        "exclude",
        "exclude_outside",
        "exclusive",
        "fmod",
        "input_forget",
        "interleaved",
        "is_case_sensitive",
        "is_causal",
        "keepdims",
        "largest",
        "layout",
        "linear_before_reset",
        "mark",
        "noop_with_empty_axes",
        "reverse",
        "saturate",
        "select_last_index",
        "sorted",
        "spatial",
        "storage_order",
        "training_mode",
        "transA",
        "transB",
        "transBatchA",
        "transBatchB",
        "unidirectional",
        "upper",
    ]
)
"""Attributes that are 0 or 1. For other values kernels behave arbitrarily: one writes nothing."""


class Subgraphs(Protocol):
    """Analyses the subgraphs and the function body of one node."""

    def run(self, graph: GraphProto, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the outputs of a subgraph for these inputs."""

    def captured(self, graph: GraphProto) -> list[Tensor]:
        """Return the values of surrounding graphs that a subgraph reads."""

    def body(self, function: FunctionProto, inputs: Sequence[Tensor | None]) -> list[Tensor]:
        """Return the outputs of a function's body for these inputs."""


def check_flags(attributes: Mapping[str, Any]) -> None:
    """Raise Mixed for a flag that is neither 0 nor 1."""
    for name in FLAGS & attributes.keys():
        if attributes[name] not in (0, 1):
            raise Mixed(f"has the attribute {name} = {attributes[name]}: expected 0 or 1")


@dataclass(frozen=True, slots=True)
class Node:
    """One operator. `inputs` has None for omitted optional inputs; `used`: which outputs are named.

    `must_run` is false in a branch or loop body, and if only a size of the result is used.
    Conditions for the success of such a node do not hold in every run.
    """

    domain: str
    operator: str
    since: int
    name: str
    inputs: tuple[Tensor | None, ...]
    used: tuple[bool, ...]
    attributes: dict[str, Any]
    symbols: Symbols
    subgraphs: Subgraphs
    must_run: bool = False

    def has(self, position: int) -> bool:
        """Whether this input is given."""
        return position < len(self.inputs) and self.inputs[position] is not None

    def tensor(self, position: int) -> Tensor:
        """Return an input. Raises Mixed if it is omitted."""
        found = self.inputs[position] if position < len(self.inputs) else None
        if found is None:
            raise Mixed(f"lacks input {position}")
        return found

    @property
    def given(self) -> list[Tensor]:
        """The inputs that are not omitted."""
        return [tensor for tensor in self.inputs if tensor is not None]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute."""
        return self.attributes.get(name, default)

    def flag(self, name: str, default: int) -> bool:
        """Return an attribute of `FLAGS` as a boolean."""
        assert name in FLAGS, name
        return bool(self.attributes.get(name, default))

    def elements(self, position: int) -> list[Size]:
        """Return the elements of a small integer tensor; unknown ones are fresh symbols.

        Raises Mixed if one may depend on rows or the tensor has no fixed length.
        """
        tensor = self.tensor(position)
        if tensor.numbers is not None:
            found: list[Size | None] = list(tensor.numbers.reshape(-1))
            if any(size is None for size in found):
                raise Mixed("takes a size that depends on the rows")
            return [size for size in found if size is not None]
        if not tensor.state.is_none:
            raise Mixed("takes a size from data that depends on the rows")
        count = 1
        for size in tensor.sizes:
            if size.constant is None:
                raise Mixed("takes a list of sizes whose length is not fixed")
            count *= size.constant
        if count > 64:
            raise Mixed("takes a list of sizes that is too long")
        return [self.symbols.fresh("element", None) for _ in range(count)]

    def integers(self, position: int) -> list[int]:
        """Return the elements of an input if all are constants; raises Mixed otherwise."""
        found = [size.constant for size in self.elements(position)]
        if any(number is None for number in found):
            raise Mixed(f"needs a constant as input {position}")
        return [number for number in found if number is not None]

    def integers_of(self, attribute: str, position: int) -> list[int] | None:
        """Return a list that is an attribute in older versions and an input in newer ones."""
        if attribute in self.attributes:
            return [int(number) for number in self.attributes[attribute]]
        return self.integers(position) if self.has(position) else None

    def without_rows(self, *positions: int) -> None:
        """Raise Mixed unless these inputs, where given, are independent of the rows."""
        for position in positions:
            if self.has(position) and not self.tensor(position).state.is_none:
                raise Mixed(f"has rows in input {position}")


def axis_of(axis: int, rank: int) -> int:
    """Return the axis counted from 0; raises Mixed if it does not exist."""
    if not -rank <= axis < rank:
        raise Mixed(f"names axis {axis} of a tensor with {rank} axes")
    return axis % rank


def axes_of(axes: Sequence[int], rank: int) -> list[int]:
    """Return several axes counted from 0; raises Mixed if one does not exist."""
    return [axis_of(axis, rank) for axis in axes]


def untouched(state: State, axes: Sequence[int], doing: str = "works along") -> None:
    """Raise Mixed if the row axis is among `axes`."""
    if state.has_axis and state.axis in axes:
        raise Mixed(f"{doing} the rows' axis {state.axis}")
