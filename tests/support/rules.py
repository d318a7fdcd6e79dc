"""House rules as pure functions: source text in, violations out.

A violation is one line, "path:line: what is wrong". `tests/test_architecture.py` runs them.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 60
FOLDER_FILES_MAX = 24
EXCUSE = "# longer because "
"""Marker on a `def` line: with a reason after it the function may exceed the limit."""
VAGUE = frozenset({"util", "utils", "helper", "helpers", "common"})
SPAWNERS = frozenset({"create_task", "ensure_future", "gather"})
ENVIRONMENT = frozenset({"environ", "environb", "getenv", "getenvb"})
STATUS_ARGUMENTS = frozenset({"status", "status_code"})

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """One Python file: its path relative to the repository root, and its text."""

    path: str
    text: str

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        """Return every node of its syntax tree."""
        return list(ast.walk(ast.parse(self.text, self.path)))

    @functools.cached_property
    def lines(self) -> list[str]:
        """Return its lines without line ends."""
        return self.text.splitlines()

    def functions(self) -> Iterator[Function]:
        """Return every function and method in it, nested ones included."""
        for node in self.nodes:
            if isinstance(node, Function):
                yield node

    def complaint(self, node: ast.AST, what: str) -> str:
        """Return `what`, prefixed with the position of `node`."""
        return f"{self.path}:{getattr(node, 'lineno', 1)}: {what}"


def read(root: Path, folders: Iterable[str]) -> list[Source]:
    """Return the Python files below `folders`, sorted; a missing folder has none."""
    paths = [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]
    return [Source(path.relative_to(root).as_posix(), path.read_text("utf-8")) for path in paths]


def long_file(source: Source) -> list[str]:
    """A file has at most FILE_LINES_MAX lines."""
    length = len(source.lines)
    return [f"{source.path}:1: {length} lines"] if length > FILE_LINES_MAX else []


def long_functions(source: Source) -> list[str]:
    """A function has at most FUNCTION_LINES_MAX lines without its docstring, or states a reason."""
    return [
        source.complaint(function, f"{function.name} has {length} lines")
        for function in source.functions()
        if (length := lines_of(function)) > FUNCTION_LINES_MAX and not _excused(source, function)
    ]


def full_folders(sources: Iterable[Source]) -> list[str]:
    """A folder has at most FOLDER_FILES_MAX Python files besides its `__init__`."""
    paths = (PurePosixPath(source.path) for source in sources)
    counts = Counter(str(path.parent) for path in paths if path.name != "__init__.py")
    return [
        f"{folder}:1: {count} files" for folder, count in counts.items() if count > FOLDER_FILES_MAX
    ]


def vague_name(source: Source) -> list[str]:
    """A module is named after its contents."""
    vague = VAGUE.intersection(PurePosixPath(source.path).with_suffix("").parts)
    return [f"{source.path}:1: called {name}" for name in sorted(vague)]


def waiting(source: Source) -> list[str]:
    """Decision code has no `async`, `await` or lock: code that cannot block needs none."""
    kinds = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
    return [
        source.complaint(node, "async, await or Lock")
        for node in source.nodes
        if isinstance(node, kinds) or _name(node).endswith("Lock")
    ]


def silent_tests(source: Source) -> list[str]:
    """Every test states in its docstring what must hold."""
    return [
        source.complaint(function, f"{function.name} has no docstring")
        for function in source.functions()
        if function.name.startswith("test") and not ast.get_docstring(function)
    ]


def sleeps(source: Source) -> list[str]:
    """No code sleeps, except `sleep(0)` for one turn of the loop."""
    return [
        source.complaint(node, "sleeps")
        for node in source.nodes
        if isinstance(node, ast.Call)
        and _name(node.func) == "sleep"
        and [ast.unparse(argument) for argument in node.args] != ["0"]
    ]


def spawns(source: Source) -> list[str]:
    """Tasks are spawned only by task groups, whose block ends after the task."""
    groups = {
        item.optional_vars.id
        for node in source.nodes
        if isinstance(node, ast.AsyncWith)
        for item in node.items
        if isinstance(item.context_expr, ast.Call)
        and _name(item.context_expr.func) == "TaskGroup"
        and isinstance(item.optional_vars, ast.Name)
    }
    return [
        source.complaint(node, f"uses {_name(node)}")
        for node in source.nodes
        if _name(node) in SPAWNERS
        and not (isinstance(node, ast.Attribute) and _name(node.value) in groups)
    ]


def environment(source: Source) -> list[str]:
    """The environment is read in one module only."""
    return [
        source.complaint(node, "uses the environment")
        for node in source.nodes
        if (isinstance(node, ast.Attribute) and _owned(node, "os") and node.attr in ENVIRONMENT)
        or (
            isinstance(node, ast.ImportFrom)
            and node.module == "os"
            and ENVIRONMENT.intersection(alias.name for alias in node.names)
        )
    ]


def statuses(source: Source) -> list[str]:
    """Error statuses come only from the problem table."""
    return [
        source.complaint(node, "names an HTTP status")
        for node in source.nodes
        if (isinstance(node, ast.keyword) and node.arg in STATUS_ARGUMENTS and _is_bad(node.value))
        or (isinstance(node, ast.Call) and _sets_status(node))
        or (isinstance(node, ast.Attribute) and _owned(node, "web") and node.attr[:4] == "HTTP")
        or (isinstance(node, ast.Attribute) and _owned(node, "HTTPStatus"))
    ]


def untested_folders(sources: Iterable[Source], tests: Iterable[Source]) -> list[str]:
    """Every folder with source files has unit tests under `tests/unit`, in the matching folder or
    below.

    Tests are paired with subjects per folder: a source file with a rule of its own needs no test
    file of its own.
    """
    tested = {
        str(folder)
        for test in tests
        for folder in PurePosixPath(test.path).parents
        if PurePosixPath(test.path).name.startswith("test_")
    }
    folders = {
        str(PurePosixPath(source.path).parent)
        for source in sources
        if PurePosixPath(source.path).name != "__init__.py"
    }
    return [
        f"{folder}:1: no tests/unit/{folder}"
        for folder in sorted(folders)
        if f"tests/unit/{folder}" not in tested
    ]


def lines_of(function: Function) -> int:
    """Return the number of lines from `def` to the end, without the docstring."""
    length = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function) is None:
        return length
    docstring = function.body[0]
    return length - ((docstring.end_lineno or docstring.lineno) - docstring.lineno + 1)


def _excused(source: Source, function: Function) -> bool:
    return bool(source.lines[function.lineno - 1].partition(EXCUSE)[2].strip())


def _name(node: ast.AST) -> str:
    """Return the last component of a name, attribute or imported name; "" for anything else."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
            return name
    return ""


def _owned(node: ast.Attribute, owner: str) -> bool:
    return _name(node.value) == owner


def _is_bad(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value in range(400, 600)


def _sets_status(call: ast.Call) -> bool:
    return _name(call.func) == "set_status" and any(_is_bad(argument) for argument in call.args)
