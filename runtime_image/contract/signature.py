"""Signature of a function: names, element types and shapes of its inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from runtime_image.contract import dtypes

DYNAMIC = -1
"""A dimension whose size may differ between requests."""

UNKNOWN_RANK_MAX = 32
"""Max axes of a tensor for an input of unknown rank, as in NumPy 1."""

Kind = Literal["tensors", "json", "bytes", "http"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One named input or output. `dtype` is an Open Inference Protocol name; in `shape`, -1 is a
    dynamic dimension. `shape` None: the rank is unknown, as the model declares no shape; () is a
    scalar."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None

    @property
    def has_dynamic_rows(self) -> bool:
        """Whether there is a first axis, and it is dynamic."""
        return self.shape is not None and self.shape[:1] == (DYNAMIC,)

    @property
    def smallest_shape(self) -> tuple[int, ...]:
        """The shape of the smallest tensor without an empty axis; [1] for an unknown rank."""
        return (1,) if self.shape is None else tuple(1 if d == DYNAMIC else d for d in self.shape)

    @property
    def shape_text(self) -> str:
        """The shape in a sentence: "of shape [-1, 3]", "of any shape" for an unknown rank."""
        return "of any shape" if self.shape is None else f"of shape {list(self.shape)}"

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of `shape` fits: same rank, every fixed dimension equal. Axes may be
        empty. An unknown rank takes up to UNKNOWN_RANK_MAX axes."""
        if self.shape is None:
            return len(shape) <= UNKNOWN_RANK_MAX and all(size >= 0 for size in shape)
        return len(shape) == len(self.shape) and all(
            got >= 0 and want in (DYNAMIC, got) for want, got in zip(self.shape, shape, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of a function.

    Kinds: `tensors`: typed arrays by name. `json`: any JSON object. `bytes`: one raw body. `http`:
    the requests of a server function.
    """

    kind: Kind
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def input(self, name: str) -> TensorSpec | None:
        """The input called `name`, or None."""
        return next((spec for spec in self.inputs if spec.name == name), None)


def to_json(signature: Signature) -> dict[str, Any]:
    """Return the signature as plain JSON data; `from_json` is its inverse."""

    def tensors(specs: tuple[TensorSpec, ...]) -> list[dict[str, Any]]:
        return [
            {"name": s.name, "dtype": s.dtype, "shape": None if s.shape is None else list(s.shape)}
            for s in specs
        ]

    return {
        "kind": signature.kind,
        "inputs": tensors(signature.inputs),
        "outputs": tensors(signature.outputs),
    }


def from_json(data: dict[str, Any]) -> Signature:
    """Rebuild a signature from `to_json`. Raises ValueError on any other data."""
    kind = data.get("kind")
    if kind not in get_args(Kind):
        raise ValueError(f"signature kind: expected {', '.join(get_args(Kind))}, got {kind!r}")
    return Signature(
        cast("Kind", kind),
        tuple(_tensor(item) for item in data["inputs"]),
        tuple(_tensor(item) for item in data["outputs"]),
    )


def _tensor(item: dict[str, Any]) -> TensorSpec:
    name, dtype, shape = str(item["name"]), str(item["dtype"]), item["shape"]
    if dtype not in dtypes.ALL:
        raise ValueError(f"tensor {name}: unknown dtype {dtype!r}")
    if shape is None:
        return TensorSpec(name, dtype, None)
    if not all(isinstance(d, int) and (d == DYNAMIC or d >= 0) for d in shape):
        raise ValueError(f"tensor {name}: bad shape {shape!r}")
    return TensorSpec(name, dtype, tuple(shape))
