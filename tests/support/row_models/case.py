"""A model that mixes rows, and the inputs that show it at run time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import onnx

IR_VERSION: Final = 10
KINDS: Final = {"i": "int64", "f": "float", "b": "bool", "U": "string"}


def constant(name: str, value: Any) -> str:
    """Return a text-form node that yields `value`, a number or a nested list."""
    array = np.asarray(value)
    shape = f"[{','.join(map(str, array.shape))}]" if array.ndim else ""
    flat = (array.astype(np.int64) if array.dtype.kind == "b" else array).ravel().tolist()
    parts = ", ".join(f'"{part}"' if isinstance(part, str) else str(part) for part in flat)
    return f"{name} = Constant <value = {KINDS[array.dtype.kind]}{shape} {{{parts}}}> ()"


@dataclass(frozen=True, slots=True)
class Case:
    """One graph whose rows are not independent, in ONNX's text form.

    Unless stated otherwise the graph takes `x` FP32 [n, 4] and gives `y` FP32 [n, 4]. `operators`:
    types of which the analysis may name any: the first that mixes, and those that first use its
    output. `constants`: values by name, placed before the body; whole numbers become int64, others
    float32, bool or string. `rows`: rows to try for each input, as nested lists; other inputs get
    the usual rows of their type. `build` replaces the text.

    `shown` names the evidence in a run: "neighbours" (the same row at the same position of an
    equally large batch changes with the other rows, or rows are lost or added), "alone" (a batch of
    one differs from a larger one) or "again" (random values: the same batch differs from itself).
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
        """Build the model; `onnx.parser` raises ParseError for an invalid text."""
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
