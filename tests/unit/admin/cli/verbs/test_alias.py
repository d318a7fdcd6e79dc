"""Tests of fnctl alias."""

from __future__ import annotations

import json
from collections.abc import Callable

from typer.testing import Result

from tests.support.admin_api import AdminApi, Canned

ALIASES = "/admin/v1/aliases"
ITEM = {"alias": "openai/gpt-4o:mini", "function": "qwen"}


def test_an_alias_is_added(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """The answer says whether it is new."""
    api.on("POST", ALIASES, Canned({**ITEM, "created": True}, 201))
    result = fnctl("alias", "add", "qwen", "openai/gpt-4o:mini")
    assert api.requests[0].json == {"function": "qwen", "alias": "openai/gpt-4o:mini"}
    assert result.stdout == "openai/gpt-4o:mini is now an alias of qwen\n"

    api.on("POST", ALIASES, Canned({**ITEM, "created": False}))
    result = fnctl("alias", "add", "qwen", "openai/gpt-4o:mini")
    assert result.stdout == "openai/gpt-4o:mini was already an alias of qwen\n"


def test_an_alias_that_is_no_text_is_wrong_usage(
    api: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """As Python gives the bytes of such an argument; nothing is sent."""
    result = fnctl("alias", "add", "qwen", "mini\udcff")

    assert (result.exit_code, api.requests) == (2, [])
    assert "expected text in utf-8, got '\\udcff'" in result.stderr


def test_an_alias_is_removed(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """It is named in the query, whatever characters it has."""
    removed = {"removed": "a/../b?c#d%2e", "function": "qwen"}
    api.on("DELETE", ALIASES, Canned(removed))

    result = fnctl("alias", "rm", "a/../b?c#d%2e")

    assert api.requests[0].query == {"alias": "a/../b?c#d%2e"}
    assert result.stdout == "a/../b?c#d%2e is no alias of qwen any more\n"


def test_a_taken_alias_is_refused(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """The reason names the function that has it."""
    problem = {"status": 409, "code": "conflict", "title": "C", "detail": "x is an alias of qwen"}
    kind = {"Content-Type": "application/problem+json"}
    api.on("POST", ALIASES, Canned(problem, 409, kind))

    result = fnctl("alias", "add", "other", "x")

    assert result.exit_code != 0
    assert "x is an alias of qwen" in result.stderr


def test_aliases_are_listed(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """All of them, or those of one function."""
    api.on("GET", ALIASES, Canned({"items": [ITEM]}))

    assert fnctl("alias", "ls").stdout.split("\n")[:2] == [
        "ALIAS               FUNCTION",
        "openai/gpt-4o:mini  qwen",
    ]
    assert api.requests[0].query == {}
    assert json.loads(fnctl("alias", "ls", "qwen", "--json").stdout) == {"items": [ITEM]}
    assert api.requests[1].query == {"function": "qwen"}


def test_no_aliases_are_said(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Without aliases the output says how to add one."""
    api.on("GET", ALIASES, Canned({"items": []}))

    result = fnctl("alias", "ls", "qwen")

    assert result.stdout == "no aliases\n"
    assert result.stderr == "next: fnctl alias add qwen ALIAS\n"
