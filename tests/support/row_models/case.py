"""A model that mixes rows, and what makes it do so at run time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import onnx

IR_VERSION: Final = 10
KINDS: Final = {"i": "int64", "f": "float", "b": "bool", "U": "string"}


def constant(name: str, value: Any) -> str:
    """A node of ONNX's text form that gives `value`, a number or a nested list."""
    array = np.asarray(value)
    shape = f"[{','.join(map(str, array.shape))}]" if array.ndim else ""
    flat = (array.astype(np.int64) if array.dtype.kind == "b" else array).ravel().tolist()
    parts = ", ".join(f'"{part}"' if isinstance(part, str) else str(part) for part in flat)
    return f"{name} = Constant <value = {KINDS[array.dtype.kind]}{shape} {{{parts}}}> ()"


@dataclass(frozen=True, slots=True)
class Case:
    """One graph whose rows are not independent, in ONNX's text form.

    Where it does not say otherwise the graph takes `x` FP32 [n, 4] and gives `y` FP32 [n, 4].
    `operators` are the types of which the analysis may name any: the one that mixes first, and
    those that first use what it mixed. `constants` are by name and come before the body: whole
    numbers become int64, others float32, bool or string. `shown` tells how a run shows the mixing:
    "neighbours" (the same row in the same place of a batch of the same size changes with the other
    rows, or rows are lost or added), "alone" (a batch of one differs from a larger one) or "again"
    (random values: the same batch differs from itself). `rows` are the rows that each input is
    tried with, nested lists; inputs without them get the usual rows of their type. `build` makes
    the model in place of the text.
    """

    name: str
    operators: str | tuple[str, ...]
    body: str = ""
    constants: Mapping[str, Any] = field(default_factory=dict)
    given: str = "float[n,4] x"
    gives: str = "float[n,4] y"
    opset: int = 21
    ml: int = 3
    shown: str = "neighbours"
    rows: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    functions: str = ""
    build: Callable[[], onnx.ModelProto] | None = None

    @property
    def blamed(self) -> tuple[str, ...]:
        return (self.operators,) if isinstance(self.operators, str) else self.operators

    def model(self) -> onnx.ModelProto:
        """The model; `onnx.parser` raises ParseError where the text is none."""
        if self.build is not None:
            return self.build()
        constants = " ".join(constant(name, value) for name, value in self.constants.items())
        house = ', "house" : 1' if self.functions else ""
        return onnx.parser.parse_model(
            f"""<ir_version: {IR_VERSION}, opset_import:
            ["" : {self.opset}, "ai.onnx.ml" : {self.ml}, "com.microsoft" : 1{house}]>
            {self.name} ({self.given}) => ({self.gives}) {{ {constants} {self.body} }}
            {self.functions}"""
        )
