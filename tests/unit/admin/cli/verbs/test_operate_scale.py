from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from typer.testing import Result

from tests.support.admin_api import AdminApi, Canned

PATH = "/admin/v1/functions/digits"
ANSWER = {"name": "digits", "min": 1, "max": 4, "idle_s": 60.0}


@pytest.fixture(autouse=True)
def scalable(api: AdminApi) -> None:
    """There is a function, whose tag is "t"."""
    api.on("GET", PATH, Canned({"name": "digits"}, headers={"ETag": '"t"'}))
    api.on("PATCH", PATH, Canned(ANSWER))


def test_scale_changes_what_was_read(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Only what is given, of the function as it is now."""
    result = fnctl("scale", "digits", "--min", "1", "--max", "4", "--idle", "60")

    assert (result.exit_code, result.stderr) == (0, "next: fnctl show digits\n")
    assert result.stdout == "digits: min 1, max 4, idle 60 s\n"
    (sent,) = api.sent("PATCH")
    assert (sent.json, sent.headers["If-Match"]) == ({"min": 1, "max": 4, "idle_s": 60.0}, '"t"')
    assert json.loads(fnctl("scale", "digits", "--max", "2", "--json").stdout) == ANSWER
    assert api.sent("PATCH")[1].json == {"max": 2}


@pytest.mark.parametrize("words", [[], ["--min", "-1"], ["--max", "0"], ["--idle", "soon"]])
def test_what_is_no_change_is_wrong_usage(
    api: AdminApi, fnctl: Callable[..., Result], words: list[str]
) -> None:
    """Nothing is asked of the server."""
    assert fnctl("scale", "digits", *words).exit_code == 2
    assert api.requests == []


def test_a_change_at_the_same_time_is_told(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Nothing has changed by this command, and it can be said again."""
    problem = {"title": "Changed", "detail": "other tag", "code": "precondition_failed"}
    api.on("PATCH", PATH, Canned(problem, 412))

    result = fnctl("scale", "digits", "--max", "2")

    assert result.exit_code == 1
    assert result.stderr.endswith("next: somebody else changed it at the same time: say it again\n")
