"""Finds the calls that build objects from bytes: parsers of JSON, TOML, protobuf, compressed data.

SECURITY.md has a table of them, with what bounds each one; `tests/test_builders.py` compares.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.support.rules import Source

BUILDERS = frozenset(
    {
        "FromString",
        "MergeFromString",
        "ParseFromString",
        "decode",
        "decompress",
        "decompressobj",
        "frombuffer",
        "fromstring",
        "literal_eval",
        "loads",
    }
)
"""Names of functions and methods that take bytes and return objects."""
LISTED = re.compile(r"`([\w/]+\.py): ([\w., ]+)`")


def built(source: Source) -> set[str]:
    """Return "path:function" for each function of a file that builds objects, and for each name at
    the module's level that stands for a builder.

    Not counted: `text = data.decode()` with or without the name of an encoding, which is linear in
    the bytes that are there already and makes one object of them; and methods called `loads` that
    are no function of a module.
    """
    return {f"{source.path}:{place}" for place in _places(source)}


def listed(document: str) -> set[str]:
    """Return "path:function" for each builder in a table: `path.py: function, Class.method`."""
    return {
        f"{path}:{name.strip()}"
        for path, names in LISTED.findall(document)
        for name in names.split(",")
    }


def _places(source: Source) -> Iterator[str]:
    parents = {child: node for node in source.nodes for child in ast.iter_child_nodes(node)}
    modules = {
        name.asname or name.name
        for node in source.nodes
        if isinstance(node, ast.Import)
        for name in node.names
    }
    for node in source.nodes:
        if isinstance(node, ast.ImportFrom) and node.module in ("json", "tomllib", "pickle"):
            yield from (name.name for name in node.names if name.name in BUILDERS)
        if isinstance(node, ast.Attribute) and _builds(node, parents, modules):
            yield _place(node, parents)


def _builds(node: ast.Attribute, parents: dict[ast.AST, ast.AST], modules: set[str]) -> bool:
    if node.attr not in BUILDERS:
        return False
    if node.attr == "loads":
        return isinstance(node.value, ast.Name) and node.value.id in modules
    call = parents[node]
    if node.attr == "decode" and isinstance(call, ast.Call) and call.func is node:
        return bool(call.args) and not isinstance(call.args[0], ast.Constant)
    return True


def _place(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> str:
    """Return the qualified name of the function around a node, or of the name that it is bound
    to."""
    names: list[str] = []
    bound = ""
    while node in parents:
        node = parents[node]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.insert(0, node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            bound = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
    return ".".join(names) or bound or "module"
