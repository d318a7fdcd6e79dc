from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from typer.testing import Result

from tests.support.admin_api import AdminApi, Canned

PATH = "/admin/v1/functions/digits"


@pytest.fixture(autouse=True)
def removable(api: AdminApi) -> None:
    """There is a function to remove."""
    api.on("GET", PATH, Canned({"name": "digits"}))
    api.on("DELETE", PATH, Canned({"removed": "digits"}))


def test_yes_removes_at_once(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """With --yes nobody is asked."""
    result = fnctl("rm", "digits", "--yes")

    assert result.stdout == "digits is removed\n"
    assert json.loads(fnctl("rm", "digits", "--yes", "--json").stdout) == {"removed": "digits"}


@pytest.mark.parametrize(("input", "code", "calls"), [("y\n", 0, 1), ("n\n", 1, 0), ("", 2, 0)])
def test_a_person_is_asked(
    api: AdminApi, fnctl: Callable[..., Result], input: str, code: int, calls: int
) -> None:
    """Only a yes removes; anything else, or no one there to answer, changes nothing."""
    result = fnctl("rm", "digits", input=input)

    assert result.exit_code == code
    assert len(api.sent("DELETE", PATH)) == calls
    assert ("expected --yes" in result.stderr) == (code == 2)


def test_a_function_that_is_none_is_told_before_anything_is_asked(
    api: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """The server's refusal, with the names that look like it, comes at once."""
    problem = {
        "title": "Unknown function",
        "code": "unknown_function",
        "detail": "no function 'nope'; did you mean 'rope'?",
    }
    api.on("GET", "/admin/v1/functions/nope", Canned(problem, 404))

    result = fnctl("rm", "nope")

    assert result.exit_code == 1
    assert result.stderr.startswith("error: Unknown function: no function 'nope'; did you mean")
    assert "Remove nope" not in result.stderr


def test_a_script_must_say_yes(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """--json never asks."""
    assert fnctl("rm", "digits", "--json").exit_code == 2
    assert api.requests == []
