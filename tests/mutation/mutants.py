"""Generation of mutants: one change of one place in one file.

The hash of seed, folder, statement and change selects a mutant. Moving or merging files within a
folder does not alter the selection, so one seed compares two commits.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
"""Boundary change, where there is one, and negation."""
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
SWAPPED = {"min": "max", "max": "min", "any": "all", "all": "any"}
FIXED_FIELDS = frozenset({"annotation", "returns", "decorator_list", "bases"})
"""Fields of a node that are never changed: types and decorators."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
DELETED = (ast.AugAssign, ast.Break, ast.Continue, ast.Delete, ast.Raise)
"""Deletable statements, beside calls and assignments to attributes or items."""


@dataclass(frozen=True)
class Place:
    """Position of a node in the syntax tree: `parent.field`, or `parent.field[at]`."""

    parent: ast.AST
    field: str
    at: int | None
    in_function: bool
    statement: ast.stmt | None

    def put(self, node: ast.AST) -> None:
        """Replace the node at this place."""
        if self.at is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.at] = node


@dataclass(frozen=True)
class Change:
    """`new` instead of `old` at a place."""

    place: Place
    old: ast.AST
    new: ast.AST
    kind: str


@dataclass(frozen=True)
class Mutant:
    """A change of one file; `number` is its index among all possible changes of the file."""

    folder: str
    file: str
    line: int
    number: int
    kind: str
    before: str
    after: str
    key: str


def choose(checkout: Path, folders: Iterable[str], seed: int, count: int) -> list[Mutant]:
    """Return the `count` mutants with the lowest keys; a higher count only adds mutants."""
    mutants = [mutant for folder in folders for mutant in all_of(checkout, folder, seed)]
    return sorted(mutants, key=lambda mutant: mutant.key)[:count]


def all_of(checkout: Path, folder: str, seed: int) -> Iterator[Mutant]:
    """Yield every mutant of the files below `folder`."""
    seen: Counter[str] = Counter()
    for path in sorted((checkout / folder).rglob("*.py")):
        for number, change in enumerate(changes(ast.parse(path.read_text("utf-8")))):
            before, after = _text(change.old), _text(change.new)
            identity = f"{folder}\n{_text(change.place.statement)}\n{before}\n{after}"
            seen[identity] += 1
            salted = f"{seed}\n{identity}\n{seen[identity]}"
            yield Mutant(
                folder=folder,
                file=path.relative_to(checkout).as_posix(),
                line=getattr(change.old, "lineno", 0),
                number=number,
                kind=change.kind,
                before=before,
                after=after,
                key=hashlib.sha256(salted.encode()).hexdigest()[:16],
            )


def mutated(text: str, number: int) -> ast.Module:
    """Return the syntax tree of `text` with one change. Raises IndexError for an unknown number."""
    tree = ast.parse(text)
    for at, change in enumerate(changes(tree)):
        if at == number:
            change.place.put(ast.copy_location(change.new, change.old))
            return ast.fix_missing_locations(tree)
    raise IndexError(f"expected a change {number} in the text, got fewer")


def changes(tree: ast.Module) -> Iterator[Change]:
    """Yield every possible change of `tree`, in source order."""
    for place, node in _places(tree, in_function=False, statement=None):
        for new, kind in (*_of_expression(place, node), *_of_statement(place, node)):
            yield Change(place, node, new, kind)


def _places(
    parent: ast.AST, *, in_function: bool, statement: ast.stmt | None
) -> Iterator[tuple[Place, ast.AST]]:
    """Yield the nodes below `parent`, except annotations, decorators, assertions and imports."""
    if isinstance(parent, ast.Assert | ast.Import | ast.ImportFrom) or _is_for_types(parent):
        return
    for field, value in ast.iter_fields(parent):
        if field in FIXED_FIELDS or (field == "keywords" and isinstance(parent, ast.ClassDef)):
            continue
        several = isinstance(value, list)
        for at, node in enumerate(value if several else [value]):
            if isinstance(node, ast.AST):
                around = node if isinstance(node, ast.stmt) else statement
                place = Place(parent, field, at if several else None, in_function, around)
                yield place, node
                within = in_function or isinstance(node, FUNCTIONS)
                yield from _places(node, in_function=within, statement=around)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and _text(node.test).endswith("TYPE_CHECKING")


def _of_expression(place: Place, node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    match node:
        case ast.Compare():
            yield from ((other, "compare") for other in _compared(node))
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values), "and/or"
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand, "sign"
        case ast.BinOp(left=left, op=op, right=right) if _is_arithmetic(place, node):
            yield ast.BinOp(left, ARITHMETIC[type(op)](), right), "arithmetic"
        case ast.Constant():
            yield from ((ast.Constant(value), "constant") for value in _values(node.value))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords):
            if name in SWAPPED:
                yield ast.Call(ast.Name(SWAPPED[name], ast.Load()), arguments, keywords), "min/max"
    if place.field in ("test", "ifs", "guard") and not _negates_itself(node):
        yield ast.UnaryOp(ast.Not(), node), "condition"  # type: ignore[arg-type]


def _compared(node: ast.Compare) -> Iterator[ast.Compare]:
    """Yield the comparison with one of its operators changed."""
    for at, op in enumerate(node.ops):
        for other in COMPARISONS[type(op)]:
            yield ast.Compare(
                node.left, [*node.ops[:at], other(), *node.ops[at + 1 :]], node.comparators
            )


def _values(value: object) -> Iterator[bool | float]:
    """Yield the replacements of a constant."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield value + 1
        yield value - 1


def _of_statement(place: Place, node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    match node:
        case ast.AugAssign(target=target, op=op, value=value) if type(op) in ARITHMETIC:
            yield ast.AugAssign(target, ARITHMETIC[type(op)](), value), "arithmetic"
        case ast.Return(value=ast.expr() as value) if _text(value) != "None":
            yield ast.Return(ast.Constant(None)), "return"
    if place.in_function and _is_deletable(node):
        yield ast.Pass(), "delete"


def _is_deletable(node: ast.AST) -> bool:
    """Return whether a statement can be deleted without leaving a local name undefined."""
    match node:
        case ast.Expr(value=ast.Call()) | ast.Return(value=None):
            return True
        case ast.Assign(targets=targets):
            return all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets)
        case ast.AnnAssign(target=ast.Attribute(), value=ast.expr()):
            return True
    return isinstance(node, DELETED)


def _is_arithmetic(place: Place, node: ast.BinOp) -> bool:
    """Return whether an operator works on numbers or sets, not on strings, lists or types."""
    texts = (ast.JoinedStr, ast.List, ast.Tuple)
    joins = any(
        isinstance(side, texts) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )
    types = isinstance(node.op, ast.BitOr) and not place.in_function
    return type(node.op) in ARITHMETIC and not joins and not types


def _negates_itself(node: ast.AST) -> bool:
    """Return whether another change already negates the condition."""
    match node:
        case ast.Compare(ops=[_]) | ast.UnaryOp(op=ast.Not()) | ast.Constant():
            return True
    return False


def _text(node: ast.AST | None) -> str:
    """Return the first line of a node, unparsed."""
    return ast.unparse(node).partition("\n")[0] if node else ""
