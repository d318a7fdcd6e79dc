"""Walks a graph: applies each operator's rule in order and checks the rule's results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, defs, helper

from runtime_image.verification.rows import numbering
from runtime_image.verification.rows.constants import constant
from runtime_image.verification.rows.node import Node, check_flags
from runtime_image.verification.rows.rules.registry import MICROSOFT, ML, RULES, Rule
from runtime_image.verification.rows.sizes import ZERO, Symbols, Unknown
from runtime_image.verification.rows.states import (
    Culprit,
    Mixed,
    Tensor,
    mixed,
)

DEPTH_MAX: Final = 16
"""Max nesting of subgraphs and function bodies."""
OWN: Final = ("SimplifiedLayerNormalization", "LayerNormalization")
"""Operators missing in ONNX's domain that ONNX Runtime adds to it."""
JUDGED: Final = ("", ML, MICROSOFT)


class NotAnalysed(Exception):
    """The graph is invalid for engines; the text is the reason."""


@dataclass(slots=True)
class Scope:
    """Values by name, with fallback to the surrounding graph's scope."""

    parent: Scope | None = None
    values: dict[str, Tensor] = field(default_factory=dict)

    def find(self, name: str) -> Tensor:
        """Return a value. Raises NotAnalysed if no earlier node produces it."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.parent
        raise NotAnalysed(f"{name!r} is read before any node produces it")

    def add(self, name: str, tensor: Tensor) -> None:
        """Add a value. Raises NotAnalysed for a duplicate name: engines differ in its meaning."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                raise NotAnalysed(f"two values are called {name!r}")
            scope = scope.parent
        self.values[name] = tensor


@dataclass(frozen=True, slots=True)
class NodeSubgraphs:
    """Runs the subgraphs of one node; subgraphs can read the surrounding values."""

    walk: Walk
    scope: Scope
    depth: int

    def run(self, graph: GraphProto, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the outputs of a subgraph for these inputs."""
        if self.depth >= DEPTH_MAX:
            raise Mixed(f"nests subgraphs deeper than {DEPTH_MAX}")
        scope = Scope(self.scope)
        if len(inputs) != len(graph.input):
            raise Mixed(f"gives {len(inputs)} values to a subgraph with {len(graph.input)} inputs")
        for value, tensor in zip(graph.input, inputs, strict=True):
            scope.add(value.name, tensor)
        return self.walk.graph(graph, scope, depth=self.depth + 1)

    def captured(self, graph: GraphProto) -> list[Tensor]:
        """Return the values of surrounding graphs that a subgraph reads."""
        found = (self.scope_value(name) for name in outer_names(graph))
        return [tensor for tensor in found if tensor is not None]

    def scope_value(self, name: str) -> Tensor | None:
        """Return a value of the surrounding graphs, None for an unknown name."""
        try:
            return self.scope.find(name)
        except NotAnalysed:
            return None

    def body(self, function: FunctionProto, inputs: Sequence[Tensor | None]) -> list[Tensor]:
        """Return the outputs of a function's body."""
        if self.depth >= DEPTH_MAX:
            raise Mixed(f"nests functions deeper than {DEPTH_MAX}")
        scope = Scope()
        for position, name in enumerate(function.input):
            tensor = inputs[position] if position < len(inputs) else None
            if tensor is not None:
                scope.add(name, tensor)
        versions = opsets(function.opset_import)
        walk = replace(self.walk, versions=versions)
        try:
            walk.nodes(function.node, scope, depth=self.depth + 1)
            return [scope.find(name) for name in function.output]
        except NotAnalysed as error:
            raise Mixed(f"has a body that is not understood: {error}") from error


def opsets(imports: Iterable[Any]) -> dict[str, int]:
    """Return the opset versions by domain. Raises NotAnalysed if a domain has two."""
    found: dict[str, int] = {}
    for entry in imports:
        domain = domain_of(entry.domain)
        if found.setdefault(domain, entry.version) != entry.version:
            raise NotAnalysed(
                f"the opset import names the domain {domain or 'ai.onnx'!r} with versions"
                f" {found[domain]} and {entry.version}"
            )
    return found


def domain_of(domain: str) -> str:
    """Normalise a domain: ONNX has two names for its own domain."""
    return "" if domain == "ai.onnx" else domain


def outer_names(graph: GraphProto) -> set[str]:
    """Return the names that a subgraph reads from surrounding graphs."""
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    found: set[str] = set()
    for node in graph.node:
        found.update(name for name in reads(node) if name and name not in own)
        own.update(node.output)
    found.update(value.name for value in graph.output if value.name not in own)
    return found


def reads(node: NodeProto) -> set[str]:
    """Return the names that a node or its subgraphs read."""
    found = set(node.input)
    for attribute in node.attribute:
        for graph in _graphs(attribute):
            found |= outer_names(graph)
    return found


NODES_MAX: Final = 200_000
"""Max operators judged in one walk: loops and functions may repeat theirs many times."""

FunctionKey = tuple[str, str, str]
"""Domain, name and overload."""


@dataclass(slots=True)
class Walk:
    """One walk of a model under fixed assumptions about its sizes.

    `functions` are those of the model.
    """

    versions: Mapping[str, int]
    symbols: Symbols
    functions: Mapping[FunctionKey, FunctionProto] = field(default_factory=dict)
    judged: Iterator[int] = field(default_factory=count)

    def graph(
        self, graph: GraphProto, scope: Scope, depth: int = 0, needed: Needed | None = None
    ) -> list[Tensor]:
        """Return the outputs of a graph whose inputs are in `scope`. Raises NotAnalysed."""
        inputs = set(scope.values)
        for tensor in graph.initializer:
            if tensor.name not in inputs:
                scope.add(tensor.name, constant(tensor))
        for sparse in graph.sparse_initializer:
            scope.add(sparse.values.name, constant(onnx.TensorProto(dims=sparse.dims)))
        self.nodes(graph.node, scope, depth, needed)
        return [scope.find(value.name) for value in graph.output]

    def nodes(
        self,
        nodes: Iterable[NodeProto],
        scope: Scope,
        depth: int,
        needed: Needed | None = None,
    ) -> None:
        """Judge nodes in order and add their outputs to `scope`."""
        for index, proto in enumerate(nodes):
            if needed is not None and index not in needed.nodes:
                continue
            must_run = needed is not None and index in needed.content
            for name, tensor in zip(
                proto.output, self._outputs(proto, scope, depth, must_run), strict=False
            ):
                if name:
                    scope.add(name, tensor)

    def _outputs(self, proto: NodeProto, scope: Scope, depth: int, must_run: bool) -> list[Tensor]:
        if next(self.judged) >= NODES_MAX:
            raise NotAnalysed(f"there are more than {NODES_MAX} operators")
        inputs = tuple(scope.find(name) if name else None for name in proto.input)
        operator = proto.op_type if not proto.domain else f"{proto.domain}.{proto.op_type}"
        operator = proto.op_type if domain_of(proto.domain) == "" else operator
        culprit = Culprit(operator, proto.name or (proto.output[0] if proto.output else ""), "")
        places = len(proto.output)
        try:
            subgraphs = NodeSubgraphs(self, scope, depth)
            key = (domain_of(proto.domain), proto.op_type, proto.overload)
            if key in self.functions:
                function = _with_attributes(self.functions[key], proto)
                found = subgraphs.body(function, inputs)
            else:
                found = self._apply(self._node(proto, inputs, subgraphs, must_run), proto)
        except Mixed as error:
            found = [Tensor(mixed(error.culprit or replace(culprit, why=str(error))))] * places
        except (Unknown, IndexError, KeyError, ValueError, TypeError, OverflowError) as error:
            why = str(error) if isinstance(error, Unknown) else "is not understood"
            found = [Tensor(mixed(replace(culprit, why=why or "has unknown sizes")))] * places
        found += [Tensor(mixed(replace(culprit, why="has an output without a rule")))] * (
            places - len(found)
        )
        return [_checked(tensor, culprit) for tensor in found]

    def _node(
        self,
        proto: NodeProto,
        inputs: tuple[Tensor | None, ...],
        subgraphs: NodeSubgraphs,
        must_run: bool,
    ) -> Node:
        domain = domain_of(proto.domain)
        return Node(
            domain,
            proto.op_type,
            self._since(domain, proto.op_type),
            proto.name,
            inputs,
            tuple(bool(name) for name in proto.output),
            _attributes(proto),
            self.symbols,
            subgraphs,
            must_run,
        )

    def _since(self, domain: str, operator: str) -> int:
        version = self.versions.get(domain)
        if domain not in JUDGED:
            raise Mixed("is of a domain without rules")
        if domain == MICROSOFT:
            return 1
        if version is None:
            raise Mixed("is of a domain that the model does not import")
        if domain == "" and version > defs.onnx_opset_version():
            raise Mixed(f"has opset {version}, which is newer than the rules")
        try:
            schema = defs.get_schema(operator, version, domain)
        except defs.SchemaError:
            if domain == "" and operator in OWN:
                return 1
            raise Mixed(f"does not exist in version {version} of its domain") from None
        if schema.deprecated:
            raise Mixed(f"is deprecated in version {version}")
        return int(schema.since_version)

    def _apply(self, node: Node, proto: NodeProto) -> list[Tensor]:
        numbers = numbering.evaluate(node)
        if numbers is not None:
            return numbers
        rule = RULES.get((node.domain, node.operator, node.since))
        if rule is None:
            _raise_earlier(node)
            return self._body(node, proto)
        spoilt = _spoilt(node, rule)
        if spoilt is not None and not (rule.tolerant and spoilt.dims is not None):
            return [Tensor(spoilt.state)] * len(proto.output)
        try:
            result = rule.function(node)
        except (Mixed, Unknown):
            if spoilt is None:
                raise
            return [Tensor(spoilt.state)] * len(proto.output)
        return [result] if isinstance(result, Tensor) else list(result)

    def _body(self, node: Node, proto: NodeProto) -> list[Tensor]:
        if node.domain not in ("", ML):
            raise Mixed("has no rule")
        schema = defs.get_schema(node.operator, self.versions[node.domain], node.domain)
        if not schema.has_function:
            raise Mixed(f"has no rule for version {node.since}")
        defaults = [
            declared.default_value
            for declared in schema.attributes.values()
            if declared.default_value.name
        ]
        function = _with_attributes(schema.function_body, proto, defaults)
        return [
            _renamed(tensor, node.given) for tensor in node.subgraphs.body(function, node.inputs)
        ]


def _renamed(tensor: Tensor, given: Sequence[Tensor]) -> Tensor:
    """Return a result of a function's body; blame the graph's operator, not one of the body."""
    culprit = tensor.state.culprit
    if culprit is not None and all(tensor.state != other.state for other in given):
        raise Mixed(f"computes {culprit.operator}, which {culprit.why}")
    return tensor


def _raise_earlier(node: Node) -> None:
    """Raise Mixed with an input's culprit, if there is one, because the first operator counts."""
    for tensor in node.given:
        if tensor.state.culprit is not None:
            raise Mixed(tensor.state.culprit.why, tensor.state.culprit)


def _spoilt(node: Node, rule: Rule) -> Tensor | None:
    """Return the first input that is mixed already, None without one. Raises Mixed for an input
    that the rule cannot read."""
    for position, tensor in enumerate(node.inputs):
        if tensor is None or position in rule.reads:
            continue
        if tensor.state.is_mixed and tensor.state.culprit is None:
            raise Mixed("uses the number of rows as data")
        if tensor.state.is_mixed:
            return tensor
        if tensor.state.kind in ("number", "index") and not rule.numbered:
            raise Mixed("uses the position of a row as data")
        if tensor.state.kind == "padded" and not rule.padded:
            raise Mixed("takes rows that are padded to the longest", tensor.state.culprit)
        if tensor.is_sequence and not rule.sequences:
            raise Mixed("takes a sequence")
    return None


def _checked(tensor: Tensor, culprit: Culprit) -> Tensor:
    """Return the tensor from its rule, mixed if its sizes contradict its state."""
    if tensor.state.is_mixed or tensor.state.kind == "padded":
        return tensor
    why = _fault(tensor)
    return Tensor(mixed(replace(culprit, why=why)), tensor.dims) if why else tensor


def _fault(tensor: Tensor) -> str:
    dims, state = tensor.dims, tensor.state
    if dims is None or None in dims:
        return "gives sizes that are not known"
    if state.has_axis and (state.axis >= len(dims) or dims[state.axis] != state.size):
        return "loses the rows' axis"
    others = [size for axis, size in enumerate(dims) if not state.has_axis or axis != state.axis]
    if any(size is not None and size.has_rows for size in others):
        return "gives an axis whose size depends on the number of rows but has other content"
    if state.has_axis and ZERO in others:
        # For empty sums, some kernels leave memory uninitialised, with other callers' data in it.
        return "gives rows without places"
    return ""


def _attributes(proto: NodeProto) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for attribute in proto.attribute:
        if attribute.ref_attr_name:
            raise Mixed(f"takes its attribute {attribute.name!r} from a function's caller")
        if attribute.name in found:
            raise Mixed(f"has two attributes {attribute.name!r}")
        value = helper.get_attribute_value(attribute)
        found[attribute.name] = (
            value.decode(errors="replace") if isinstance(value, bytes) else value
        )
    check_flags(found)
    return found


def _with_attributes(
    function: FunctionProto, caller: NodeProto, defaults: Iterable[AttributeProto] = ()
) -> FunctionProto:
    """Return a copy of the body with the caller's attributes, or their defaults, filled in."""
    given = {attribute.name: attribute for attribute in (*defaults, *function.attribute_proto)}
    given |= {attribute.name: attribute for attribute in caller.attribute}
    copy = FunctionProto()
    copy.CopyFrom(function)
    _bind(copy.node, given)
    return copy


def _bind(nodes: Iterable[NodeProto], given: Mapping[str, AttributeProto]) -> None:
    for node in nodes:
        kept = [_bound(attribute, given) for attribute in node.attribute]
        del node.attribute[:]
        node.attribute.extend(attribute for attribute in kept if attribute is not None)
        for attribute in node.attribute:
            for graph in _graphs(attribute):
                _bind(graph.node, given)


def _graphs(attribute: AttributeProto) -> list[GraphProto]:
    return [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def _bound(attribute: AttributeProto, given: Mapping[str, AttributeProto]) -> AttributeProto | None:
    if not attribute.ref_attr_name:
        return attribute
    if attribute.ref_attr_name not in given:
        return None
    bound = AttributeProto()
    bound.CopyFrom(given[attribute.ref_attr_name])
    bound.name = attribute.name
    return bound


@dataclass(frozen=True, slots=True)
class Needed:
    """Nodes that a graph's outputs depend on; engines remove the others.

    `content`: nodes of which more than a size is used. Engines infer sizes without running nodes.
    """

    nodes: frozenset[int]
    content: frozenset[int]

    @staticmethod
    def of(graph: GraphProto) -> Needed:
        """Find the nodes in one pass from the end; a graph's nodes are in topological order."""
        wanted = {value.name for value in graph.output}
        content = set(wanted)
        nodes, contents = set(), set()
        for index in range(len(graph.node) - 1, -1, -1):
            node = graph.node[index]
            if wanted.isdisjoint(node.output):
                continue
            nodes.add(index)
            wanted |= reads(node)
            if content.isdisjoint(node.output):
                continue
            contents.add(index)
            if node.op_type not in ("Shape", "Size"):
                content |= reads(node)
        return Needed(frozenset(nodes), frozenset(contents))
