"""The table of rules: by domain, operator and the version of the operator they were written for."""

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
    """How one operator passes the states of its inputs on.

    `reads`: positions of inputs of which only the numbers are read (a shape, axes): such an input
    may hold the number of rows. `tolerant`: the function takes mixed inputs, too, and gives mixed
    results with the sizes that are known. `numbered`: it knows what becomes of the row number;
    `padded`: of rows that are padded to the longest; `sequences`: of sequences.
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
    """Register a function for operators, each "Name VERSION...": the since_versions it holds for.

    The function gives the outputs' tensors, raises Mixed with a reason, or Unknown.
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
