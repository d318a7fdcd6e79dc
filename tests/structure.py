"""The structure of a checkout in figures: `python -m tests.structure [--json] [CHECKOUT]`.

Everything is read from the source text; nothing of the checkout is imported.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from pathlib import Path, PurePosixPath
from typing import Any

from tests.support import rules
from tests.support.rules import Source

PRODUCT = (
    "registry",
    "runtime_image",
    "python_runner",
    "environments",
    "hosts",
    "pool_manager",
    "gateway",
    "admin",
)
FILE_LINES, FUNCTION_LINES = 500, 60
COUNTED = frozenset({"modules with one importer", "modules that share a file name"})
"""Lists that the table only counts; --json has them."""

Graph = Mapping[str, set[str]]
"""Imported modules or folders by the importing one."""


class When(IntEnum):
    """The time of an import; FOR_TYPES is under TYPE_CHECKING."""

    AT_IMPORT = 0
    FOR_TYPES = 1
    IN_FUNCTION = 2


def main() -> None:
    """Print the figures of one checkout."""
    parser = argparse.ArgumentParser(prog="python -m tests.structure", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one object, with every list")
    parser.add_argument("checkout", type=Path, nargs="?", default=Path())
    given = parser.parse_args()
    found = figures(rules.read(given.checkout, PRODUCT), rules.read(given.checkout, ("tests",)))
    sys.stdout.write(json.dumps(found, indent=2) + "\n" if given.json else table(found))


def figures(product: list[Source], suite: list[Source]) -> dict[str, Any]:
    """All figures by name. A list has one line for each counted thing."""
    modules = [source for source in product if not is_package(source)]
    edges = imports(product)
    return {
        "modules": len(modules),
        "folders": len({folder(source.path) for source in modules}),
        "product lines": sum(len(source.lines) for source in product),
        "test lines": sum(len(source.lines) for source in suite),
        **sizes(product, modules),
        "modules with one importer": single_importers(modules, edges),
        "modules without an importer": without_importers(modules, edges),
        **slots(product),
        **all_circles(edges),
        **names(modules),
    }


def table(found: Mapping[str, Any]) -> str:
    """Format the figures as text; a list becomes its length and its lines."""
    lines = []
    for name, value in found.items():
        several = value if isinstance(value, list) else []
        shown = (
            ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        )
        lines.append(f"{name:45} {len(value) if isinstance(value, list) else shown}")
        lines += [f"    {line}" for line in several if name not in COUNTED]
    return "\n".join(lines) + "\n"


def is_package(source: Source) -> bool:
    """Whether the file is the `__init__` of a folder."""
    return source.path.endswith("/__init__.py")


def folder(path: str) -> str:
    """Return the folder of a file."""
    return str(PurePosixPath(path).parent)


def module_name(source: Source) -> str:
    """Return the dotted name of a module or package."""
    return source.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def sizes(product: list[Source], modules: list[Source]) -> dict[str, Any]:
    """Measure files and functions in lines; a docstring does not count for its function."""
    functions = [
        (rules.lines_of(function), f"{source.path}:{function.lineno} {function.name}")
        for source in product
        for function in source.functions()
    ]
    files = [(len(source.lines), source.path) for source in modules]
    return {
        "lines per file": spread(length for length, _ in files),
        f"files over {FILE_LINES} lines": longer(FILE_LINES, files),
        "functions": len(functions),
        "lines per function": spread(length for length, _ in functions),
        f"functions over {FUNCTION_LINES} lines": longer(FUNCTION_LINES, functions),
    }


def spread(values: Iterable[int]) -> dict[str, float]:
    """Return median, 90th percentile and maximum."""
    ordered = sorted(values) or [0]
    p90 = ordered[math.ceil(0.9 * len(ordered)) - 1]
    return {"median": statistics.median(ordered), "p90": p90, "max": ordered[-1]}


def longer(limit: int, measured: Iterable[tuple[int, str]]) -> list[str]:
    """List the things of more than `limit` lines, the longest first."""
    return [f"{what} ({length})" for length, what in sorted(measured)[::-1] if length > limit]


def names(modules: list[Source]) -> dict[str, Any]:
    """List file names that are not unique, alone and together with their folder."""
    paths = [PurePosixPath(source.path) for source in modules]
    files = Counter(path.name for path in paths)
    pairs = Counter(f"{path.parent.name}/{path.name}" for path in paths)
    return {
        "modules that share a file name": [str(path) for path in paths if files[path.name] > 1],
        "file names of three modules or more": [
            f"{n} ({c})" for n, c in files.most_common() if c > 2
        ],
        "folder/file that is not unique": [f"{n} ({c})" for n, c in pairs.items() if c > 1],
    }


def imports(product: list[Source]) -> dict[str, dict[str, When]]:
    """Return, by module, the imported product modules and the earliest time of each import."""
    known = {module_name(source) for source in product}
    edges: dict[str, dict[str, When]] = {name: {} for name in sorted(known)}
    for source in product:
        name = module_name(source)
        package = name if is_package(source) else name.rpartition(".")[0]
        for node, when in imported(ast.parse(source.text), When.AT_IMPORT):
            for other in targets(node, package, known) - {name}:
                edges[name][other] = min(when, edges[name].get(other, when))
    return edges


def imported(node: ast.AST, when: When) -> Iterator[tuple[ast.Import | ast.ImportFrom, When]]:
    """Yield the import statements below `node`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, when
        elif isinstance(child, rules.Function):
            yield from imported(child, When.IN_FUNCTION)
        elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            yield from imported(child, max(when, When.FOR_TYPES))
        else:
            yield from imported(child, when)


def targets(node: ast.Import | ast.ImportFrom, package: str, known: set[str]) -> set[str]:
    """Return the modules among `known` that a statement in `package` imports."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names} & known
    parents = package.split(".")
    above = parents[: len(parents) + 1 - node.level] if node.level else []
    base = ".".join([*above, *([node.module] if node.module else [])])
    wanted = {f"{base}.{alias.name}" for alias in node.names}
    return (wanted & known) or ({base} & known)


def importers(edges: Mapping[str, Mapping[str, When]]) -> dict[str, set[str]]:
    """Return the importers of each module, at any time."""
    found = defaultdict(set)
    for name, others in edges.items():
        for other in others:
            found[other].add(name)
    return found


def single_importers(modules: list[Source], edges: Mapping[str, Mapping[str, When]]) -> list[str]:
    """List modules with exactly one importer in the product, and the importer."""
    found = importers(edges)
    return [
        f"{name} <- {one}"
        for name in map(module_name, modules)
        if len(found[name]) == 1
        for one in found[name]
    ]


def without_importers(modules: list[Source], edges: Mapping[str, Mapping[str, When]]) -> list[str]:
    """List modules without importers: entry points, plugins found by name, dead code."""
    found = importers(edges)
    return [name for name in map(module_name, modules) if not found[name]]


def all_circles(edges: Mapping[str, Mapping[str, When]]) -> dict[str, list[str]]:
    """List circles of imports at load time, and with the imports under TYPE_CHECKING."""
    packages = {name.rpartition(".")[0] for name in edges if "." in name}

    def home(name: str) -> str:
        return name if name in packages else name.rpartition(".")[0]

    found = {}
    for what, latest in (("", When.AT_IMPORT), (", with types", When.FOR_TYPES)):
        graph = {
            name: {other for other, when in others.items() if when <= latest}
            for name, others in edges.items()
        }
        found[f"circles of modules{what}"] = circles(graph)
        found[f"circles of folders{what}"] = circles(folded(graph, home))
        found[f"circles of siblings{what}"] = [
            circle for package in sorted(packages) for circle in circles(siblings(graph, package))
        ]
    return found


def siblings(graph: Graph, package: str) -> Graph:
    """Return the imports between the children of a package, each with all its descendants."""
    depth = package.count(".") + 2
    below = {
        name: {other for other in others if other.startswith(f"{package}.")}
        for name, others in graph.items()
        if name.startswith(f"{package}.")
    }
    return folded(below, lambda name: ".".join(name.split(".")[:depth]))


def folded(graph: Graph, group: Callable[[str], str]) -> Graph:
    """Merge the nodes of each group into one."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, others in graph.items():
        found[group(name)] |= {group(other) for other in others} - {group(name)}
    return found


def circles(graph: Graph) -> list[str]:
    """List the strongly connected components of two nodes or more."""
    reached = {name: reachable(graph, name) for name in graph}
    components = {
        frozenset(other for other in others if name in reached.get(other, set()))
        for name, others in reached.items()
        if name in others
    }
    return sorted(" <-> ".join(sorted(component)) for component in components)


def reachable(graph: Graph, start: str) -> set[str]:
    """Return the nodes on paths from `start`; `start` is one only if it is on a circle."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph.get(waiting.pop(), set()) - found
        found |= new
        waiting.extend(new)
    return found


def slots(product: list[Source]) -> dict[str, list[str]]:
    """List assignments to callback attributes after construction, with their places."""
    aliases = {"Callable", *callable_aliases(product)}
    declared = {
        name for source in product for node in source.nodes for name in declares(node, aliases)
    }
    by_others, by_methods = [], []
    for source in product:
        for function in source.functions():
            for target, value in assignments(function):
                place = f"{source.path}:{target.lineno} {ast.unparse(target)} = "
                if target.attr not in declared or isinstance(value, ast.Constant):
                    continue
                if ast.unparse(target.value) != "self":
                    by_others.append(place + ast.unparse(value))
                elif function.name != "__init__":
                    by_methods.append(place + ast.unparse(value))
    return {
        "callback slots set from outside": list(dict.fromkeys(by_others)),
        "callback slots set by a method of their own": list(dict.fromkeys(by_methods)),
    }


def callable_aliases(product: list[Source]) -> set[str]:
    """Return the module-level names of `Callable[...]` types."""
    return {
        target.id
        for source in product
        for node in source.nodes
        if isinstance(node, ast.Assign) and is_callable(node.value, {"Callable"})
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def declares(node: ast.AST, aliases: set[str]) -> Iterator[str]:
    """Yield the attributes that a node declares as a callable, or sets to a lambda.

    A class field without a default does not count: the constructor requires it.
    """
    match node:
        case ast.ClassDef(body=body):
            fields = (one for one in body if isinstance(one, ast.AnnAssign) and one.value)
            yield from (
                ast.unparse(one.target) for one in fields if is_callable(one.annotation, aliases)
            )
        case ast.AnnAssign(target=ast.Attribute(attr=name), annotation=annotation):
            if is_callable(annotation, aliases):
                yield name
        case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)]):
            if isinstance(node.value, ast.Lambda):
                yield name


def is_callable(annotation: ast.expr, aliases: set[str]) -> bool:
    """Whether an annotation is a callable or an optional callable."""
    match annotation:
        case ast.BinOp(left=left, right=right):
            return is_callable(left, aliases) or is_callable(right, aliases)
        case ast.Subscript(value=ast.Name(id=name)) | ast.Name(id=name):
            return name in aliases
    return False


def assignments(function: rules.Function) -> Iterator[tuple[ast.Attribute, ast.expr]]:
    """Yield the attributes that a function assigns, with the values."""
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=several, value=value):
                yield from ((one, value) for one in several if isinstance(one, ast.Attribute))
            case ast.AnnAssign(target=ast.Attribute() as target, value=ast.expr() as value):
                yield target, value


if __name__ == "__main__":
    main()
