"""Table of rules, by domain, operator and the operator versions that each was written for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from runtime_image.verification.rows.node import Node
from runtime_image.verification.rows.states import Tensor

Result = Tensor | Sequence[Tensor]
Function = Callable[[Node], Result]

ML: Final = "ai.onnx.ml"
MICROSOFT: Final = "com.microsoft"


@dataclass(frozen=True, slots=True)
class Rule:
    """Rule that derives an operator's output states from its input states.

    `reads`: positions of inputs of which only the numbers are used (a shape, axes); such an input
    may contain the number of rows. `tolerant`: the function also accepts mixed inputs and returns
    mixed results with the known sizes. `numbered`: it handles row numbers; `padded`: rows padded to
    the longest; `sequences`: sequences.
    """

    function: Function
    reads: frozenset[int]
    tolerant: bool
    numbered: bool
    padded: bool
    sequences: bool


RULES: Final[dict[tuple[str, str, int], Rule]] = {}


_Rule = TypeVar("_Rule", bound=Function)


def rule(
    *operators: str,
    domain: str = "",
    reads: Sequence[int] = (),
    tolerant: bool = False,
    numbered: bool = False,
    padded: bool = False,
    sequences: bool = False,
) -> Callable[[_Rule], _Rule]:
    """Register a function for operators, each "Name VERSION...", by its valid since_versions.

    The function returns the outputs' tensors, or raises Mixed with a reason, or Unknown.
    """

    def register(function: _Rule) -> _Rule:
        known = Rule(function, frozenset(reads), tolerant, numbered, padded, sequences)
        for name, *versions in (operator.split() for operator in operators):
            for version in versions:
                key = (domain, name, int(version))
                assert key not in RULES, key
                RULES[key] = known
        return function

    return register
