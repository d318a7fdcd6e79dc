"""Parts of the surface that are literals in the product's code, in any module."""

from __future__ import annotations

import ast
import gc
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from aiohttp import hdrs
from multidict import istr

ROOT = Path(__file__).parent.parent.parent
LEVELS = ("debug", "info", "warning", "error", "exception", "critical")
HEADER = re.compile(r"[A-Z][A-Za-z]*(-[A-Z][A-Za-z]*)+")
KNOWN_HEADERS = {"ETag", "Prefer"} | {
    str(value) for value in vars(hdrs).values() if type(value) is istr
}
VARIABLE = re.compile(r"FN_[A-Z_]+[A-Z]")
FILE = re.compile(r"[\w.-]*(\w\.(bin|db|html|json|log|onnx|sock|token|toml)|\.(new|old))")
ATTRIBUTE = re.compile(r"(client|error|http|network|server|service|url)\.[a-z_.]+")
LABEL = re.compile(r"fngate\.[a-z_]+")


def files(pattern: str) -> list[Path]:
    """Return the files of the product's packages that match a pattern, without those of npm."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    include = project["tool"]["setuptools"]["packages"]["find"]["include"]
    found = (path for top in include for path in (ROOT / top.rstrip("*")).rglob(pattern))
    return [path for path in found if "node_modules" not in path.parts]


def trees() -> tuple[ast.Module, ...]:
    """Return the syntax tree of every module of the product."""
    gc.disable()  # syntax trees hold no garbage, and collecting takes most of the time
    try:
        return tuple(ast.parse(path.read_text("utf-8")) for path in files("*.py"))
    finally:
        gc.enable()


@cache
def nodes() -> tuple[ast.AST, ...]:
    """Return every node except docstrings and the strings below fields."""
    found: list[ast.AST] = []
    waiting: list[ast.AST] = list(trees())
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        found.append(node)
        waiting.extend(ast.iter_child_nodes(node))
    return tuple(found)


def clear_cache() -> None:
    """Free the syntax trees, which are some hundred thousand objects."""
    nodes.cache_clear()


def strings() -> Iterator[str]:
    """Yield every string literal."""
    for node in nodes():
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def log_events() -> list[str]:
    """List level, event and keys of each logger call; values inside an event are {}."""
    found = []
    for node in nodes():
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        event = _text(node.args[0])
        if node.func.attr in LEVELS and event:
            keys = sorted(one.arg or "**" for one in node.keywords)
            found.append(" ".join([node.func.attr, repr(event), *keys]))
    return found


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(one) or "{}" for one in node.values)
    return ""


def _keys(node: ast.AST) -> list[str]:
    if not isinstance(node, ast.Dict):
        return []
    return [one.value for one in node.keys if isinstance(one, ast.Constant)]


def headers() -> list[str]:
    """List headers that are read or written, as they are spelled."""
    found = [one for one in strings() if HEADER.fullmatch(one) or one in KNOWN_HEADERS]
    for node in nodes():
        is_attribute = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if is_attribute and node.value.id == "hdrs":
            found.append(str(getattr(hdrs, node.attr)))
    return found


def variables() -> list[str]:
    """List the `FN_` variables named in any string."""
    return [name for one in strings() for name in VARIABLE.findall(one)]


def file_names() -> list[str]:
    """List the literals that have the form of a file name."""
    return [one for one in strings() if FILE.fullmatch(one)]


def labels() -> list[str]:
    """List our own labels of containers and images, and attributes of spans."""
    return [one for one in strings() if LABEL.fullmatch(one) and not FILE.fullmatch(one)]


def attributes() -> list[str]:
    """List the span attributes of OpenTelemetry's conventions."""
    return [one for one in strings() if ATTRIBUTE.fullmatch(one)]


def json_keys() -> list[str]:
    """List the keys of dict literals passed to `json.dumps`."""
    found = []
    for node in nodes():
        if isinstance(node, ast.Call) and node.args and ast.unparse(node.func) == "json.dumps":
            found += _keys(node.args[0])
    return found


def values_of(key: str) -> list[str]:
    """List the strings below a key of dict literals."""
    found = []
    for node in nodes():
        if isinstance(node, ast.Dict):
            for name, value in zip(node.keys, node.values, strict=True):
                if isinstance(name, ast.Constant) and name.value == key:
                    found += [value] if isinstance(value, ast.Constant) else list(ast.walk(value))
    return [
        one.value for one in found if isinstance(one, ast.Constant) and isinstance(one.value, str)
    ]
