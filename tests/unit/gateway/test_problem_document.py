"""Tests of the members of problem documents, against the errors that give them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import fields

from gateway.problem_document import PartialProblem, Problem, ProblemMembers
from pool_manager.builds import PARITY

ROOT = Path(__file__).parents[3]
SERVER = ("registry", "environments", "hosts", "pool_manager", "gateway", "admin")
LOCAL = {ROOT / "admin" / "image", ROOT / "admin" / "cli"}
"""Folders of `fnctl`, whose own errors no server answers."""
GIVEN = {"detail", "admin_detail"}
NAMED = {"PARITY": PARITY}
"""Constants that are keys."""
UNKNOWN = ast.Name("**")


def sources() -> Iterator[Path]:
    """Yield the modules whose errors a server answers."""
    for folder in SERVER:
        yield from (one for one in (ROOT / folder).rglob("*.py") if not LOCAL & {*one.parents})


def given(source: str) -> set[str]:
    """Return the keys of all dicts that functions give an error as its members, also by a name."""
    if "detail=" not in source:  # most: to parse them all takes seconds
        return set()
    functions = [
        one
        for one in ast.walk(ast.parse(source))
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return set[str]().union(*map(_given, functions))


def _given(function: ast.AST) -> set[str]:
    nodes = list(ast.walk(function))
    found = [one.value for one in nodes if isinstance(one, ast.keyword) and one.arg in GIVEN]
    names = {one.id for one in found if isinstance(one, ast.Name)}
    for one in nodes:
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name):
            found += [one.value] * (one.targets[0].id in names)
    either = [
        each for one in found if isinstance(one, ast.IfExp) for each in (one.body, one.orelse)
    ]
    dicts = [one for one in (*found, *either) if isinstance(one, ast.Dict)]
    return {_key(key) for one in dicts for key in one.keys}


def _key(key: ast.expr | None) -> str:
    return str(key.value) if isinstance(key, ast.Constant) else NAMED[ast.unparse(key or UNKNOWN)]


def test_every_member_of_an_error_is_described() -> None:
    """A problem document has a place for each member that an error of the server gives: one without
    would not be answered at all. No other member is described."""
    found = set[str]().union(*(given(one.read_text()) for one in sources()))

    of_replicas = {"input"}  # `from_request_error` copies them
    of_every_error = {"retry_after_s"}
    assert found | of_replicas | of_every_error == set(ProblemMembers.__struct_fields__)


@pytest.mark.parametrize(
    ("source", "keys"),
    [
        ("raise Refused(text, detail={'a': 1}, admin_detail={PARITY: []})", {"a", "parity"}),
        ("told = {'b': 1} if so else None; raise NoRoom(text, admin_detail=told)", {"b"}),
        ("other = {'c': 1}", set()),
    ],
)
def test_members_are_found_where_errors_get_them(source: str, keys: set[str]) -> None:
    """Members are found as literals and by the name of a variable."""
    assert given(f"async def work(): {source}") == keys


def test_a_partial_problem_has_the_same_members() -> None:
    """PartialProblem has the members of Problem, none of them required."""
    whole = {one.name: one.type for one in fields(Problem)}

    assert set(whole) == set(PartialProblem.__struct_fields__)
    assert not any(one.required for one in fields(PartialProblem))
    assert {one.name for one in fields(Problem) if one.required} == {
        "type",
        "title",
        "status",
        "detail",
        "code",
    }
