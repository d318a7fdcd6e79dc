"""Decides whether a model's rows are independent: one walk of its graph per set of assumptions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import onnx
from onnx import GraphProto, ModelProto

from runtime_image.contract.rows import CONSTANT, RowVerdict
from runtime_image.verification.rows.graph import (
    Needed,
    NotAnalysed,
    Scope,
    Walk,
    domain_of,
    opsets,
)
from runtime_image.verification.rows.reading import read_model
from runtime_image.verification.rows.rules import (
    axes,
    contraction,
    control,
    elementwise,
    indexing,
    layout,
    microsoft,
    ml,
    quantised,
    recurrent,
    reduction,
    spatial,
    training,
)
from runtime_image.verification.rows.sizes import N, Size, Symbols
from runtime_image.verification.rows.states import Tensor, rows

RESTARTS_MAX: Final = 8
GROUPS_TRIED_MAX: Final = 8
"""Max groups of equal axes that are tentatively dropped from a proof."""
FAMILIES: Final = (
    axes,
    contraction,
    control,
    elementwise,
    indexing,
    layout,
    microsoft,
    ml,
    quantised,
    recurrent,
    reduction,
    spatial,
    training,
)
"""Modules that register their rules on import."""

Axis = tuple[str, int]


@dataclass(slots=True)
class _Assumptions:
    """Assumptions about axes of the inputs: which are equal, and which have a single size."""

    equal: tuple[tuple[Axis, ...], ...] = ()
    fixed: dict[Axis, int] = field(default_factory=dict)

    def of(self, axis: Axis) -> Axis:
        """Return the axis whose symbol represents this one."""
        return next((group[0] for group in self.equal if axis in group), axis)


def analyse_file(path: Path) -> RowVerdict:
    """Return the verdict on a file. Its large tensors are not read."""
    try:
        model = read_model(path)
    except Exception as error:  # noqa: BLE001 - a parser may raise anything
        return RowVerdict(False, False, f"the file cannot be read: {error}"[:500])
    return analyse(model)


def analyse(model: ModelProto, constant_initialisers: bool = True) -> RowVerdict:
    """Return the verdict on a model. Never raises for a faulty model.

    `constant_initialisers`: callers cannot replace an initialiser that is also an input.
    """
    try:
        return _analysed(model, constant_initialisers)
    except NotAnalysed as error:
        return RowVerdict(False, False, str(error)[:500])
    except Exception as error:  # noqa: BLE001 - a model may have any fault
        return RowVerdict(False, False, f"{type(error).__name__}: {error}"[:500])


def _analysed(model: ModelProto, constant_initialisers: bool) -> RowVerdict:
    _check_functions(model)
    inputs = _inputs(model.graph, constant_initialisers)
    refusal = _refusal(inputs)
    if refusal is not None:
        return refusal
    verdict = _judged(model, inputs, ())
    groups = _equal_axes(inputs)
    if verdict.proven or not groups:
        return verdict
    joined = _judged(model, inputs, groups)
    return _with_fewest(model, inputs, joined, groups) if joined.proven else verdict


def _with_fewest(
    model: ModelProto,
    inputs: list[onnx.ValueInfoProto],
    proven: RowVerdict,
    groups: tuple[tuple[Axis, ...], ...],
) -> RowVerdict:
    """Repeat the proof without groups it does not need: each group keeps some requests apart."""
    for group in groups[:GROUPS_TRIED_MAX]:
        others = tuple(other for other in groups if other != group)
        fewer = _judged(model, inputs, others)
        if fewer.proven:
            proven, groups = fewer, others
    return proven


def _check_functions(model: ModelProto) -> None:
    """Refuse functions with an operator's name: engines differ in which one they run."""
    found = set()
    for function in model.functions:
        key = (domain_of(function.domain), function.name, function.overload)
        if key in found:
            raise NotAnalysed(f"the model has two functions {function.name!r}")
        found.add(key)
        if key[0] == "" or function.domain.startswith(("ai.onnx", "com.microsoft")):
            raise NotAnalysed(
                f"the model has a function {function.name!r} of its own in the domain"
                f" {function.domain or 'ai.onnx'!r}"
            )


def _inputs(graph: GraphProto, constant_initialisers: bool) -> list[onnx.ValueInfoProto]:
    """Return the inputs that a caller sends."""
    constants = {tensor.name for tensor in graph.initializer}
    constants |= {tensor.values.name for tensor in graph.sparse_initializer}
    if not constant_initialisers:
        constants = set()
    return [value for value in graph.input if value.name not in constants]


def _refusal(inputs: list[onnx.ValueInfoProto]) -> RowVerdict | None:
    """Return a verdict if the inputs alone rule out joining rows."""
    if not inputs:
        return RowVerdict(True, False, "the model has no inputs")
    for value in inputs:
        kind = value.type.tensor_type
        why = ""
        if not value.type.HasField("tensor_type"):
            why = "is not a tensor"
        elif not kind.HasField("shape"):
            why = "declares no shape"
        elif not kind.shape.dim:
            why = "has no axes"
        elif kind.shape.dim[0].HasField("dim_value"):
            why = f"has a fixed first axis of {kind.shape.dim[0].dim_value} rows"
        if why:
            return RowVerdict(True, False, f"input {value.name!r} {why}")
    return None


def _equal_axes(inputs: Iterable[onnx.ValueInfoProto]) -> tuple[tuple[Axis, ...], ...]:
    """Return groups of axes with the same name. Names of batch axes are excluded, because exporters
    also give them to later axes by mistake."""
    found: dict[str, list[Axis]] = {}
    batch = set()
    for value in inputs:
        dims = value.type.tensor_type.shape.dim
        batch.add(dims[0].dim_param)
        for axis, dim in enumerate(dims):
            if axis and dim.dim_param:
                found.setdefault(dim.dim_param, []).append((value.name, axis))
    return tuple(
        tuple(group) for name, group in found.items() if len(group) > 1 and name not in batch
    )


def _judged(
    model: ModelProto,
    inputs: list[onnx.ValueInfoProto],
    equal: tuple[tuple[Axis, ...], ...],
) -> RowVerdict:
    assumptions = _Assumptions(equal)
    functions = {(domain_of(f.domain), f.name, f.overload): f for f in model.functions}
    for _ in range(RESTARTS_MAX + 1):
        walk = Walk(opsets(model.opset_import), Symbols(), functions)
        scope, symbols = _opened(inputs, walk, assumptions)
        try:
            outputs = walk.graph(model.graph, scope, needed=Needed.of(model.graph))
        except layout.Fixed as found:
            assumptions.fixed[symbols[found.size]] = found.value
            continue
        names = [value.name for value in model.graph.output]
        verdict = _verdict(dict(zip(names, outputs, strict=True)))
        conditions = (
            *equal,
            *(_condition(place, size) for place, size in assumptions.fixed.items()),
        )
        return replace(verdict, equal_axes=conditions if verdict.proven else ())
    return RowVerdict(True, False, f"more than {RESTARTS_MAX} axes have a single valid size")


def _condition(place: Axis, size: int) -> tuple[Axis, ...]:
    """Return the condition for an axis with a single valid size.

    The graph as written fails for other sizes, but the engine may run a rewritten graph: ONNX
    Runtime turns [Shape(x)[0], 12] into [-1, 12], which fits more sizes.
    """
    return place, (CONSTANT, size)


def _opened(
    inputs: list[onnx.ValueInfoProto], walk: Walk, assumptions: _Assumptions
) -> tuple[Scope, dict[Size, Axis]]:
    """Return the inputs as tensors with rows, and the axis represented by each symbol."""
    scope = Scope()
    symbols: dict[Axis, Size] = {}
    for value in inputs:
        dims = value.type.tensor_type.shape.dim
        sizes = [N]
        for axis in range(1, len(dims)):
            if dims[axis].HasField("dim_value"):
                sizes.append(Size.of(max(0, dims[axis].dim_value)))
                continue
            place = assumptions.of((value.name, axis))
            if place in assumptions.fixed:
                sizes.append(Size.of(assumptions.fixed[place]))
                continue
            if place not in symbols:
                symbols[place] = walk.symbols.of_input(f"{place[0]}[{place[1]}]", 1)
            sizes.append(symbols[place])
        scope.add(value.name, Tensor(rows(0), tuple(sizes)))
    return scope, {size: axis for axis, size in symbols.items()}


def _verdict(outputs: dict[str, Tensor]) -> RowVerdict:
    if not outputs:
        return RowVerdict(True, False, "the model has no outputs")
    for name, tensor in outputs.items():
        why, operator = _objection(tensor)
        if why:
            return RowVerdict(True, False, f"output {name!r}: {why}", operator)
    return RowVerdict(True, True)


def _objection(tensor: Tensor) -> tuple[str, str]:
    """Return why an output cannot be split into rows ("" if it can), and the operator at fault."""
    state = tensor.state
    if tensor.is_sequence:
        return "it is a sequence", ""
    if state.culprit is not None:
        culprit = state.culprit
        node = f" (node {culprit.node!r})" if culprit.node else ""
        return f"{culprit.operator}{node} {culprit.why}", culprit.operator
    if state.is_mixed:
        return "it depends on the number of rows", ""
    if state.is_none:
        return "it has no axis of rows", ""
    if state.kind != "rows":
        return "it holds the numbers of rows", ""
    if state.axis != 0:
        return f"it has its rows on axis {state.axis}, not on the first", ""
    if state.size != N:
        return f"it has {state.size} places on its first axis for N rows", ""
    return "", ""
