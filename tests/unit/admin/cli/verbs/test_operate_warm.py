from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

from tests.support.admin_api import AdminApi, Canned

PATH = "/admin/v1/functions/digits/warm"
ANSWER: dict[str, Any] = {
    "name": "digits",
    "revision": "digits@3",
    "was_warm": False,
    "took_ms": 143.2,
    "idle_s": 300,
}


@pytest.mark.parametrize(
    ("was_warm", "text"),
    [(False, "digits@3 is warm after 143 ms\n"), (True, "digits@3 is warm already\n")],
)
def test_warm_says_how_long_it_took(
    api: AdminApi, fnctl: Callable[..., Result], was_warm: bool, text: str
) -> None:
    """Or that there was nothing to do; --json is what the API says."""
    answer = {**ANSWER, "was_warm": was_warm}
    api.on("POST", PATH, Canned(answer))

    result = fnctl("warm", "digits", "--wait", "5")

    assert (result.exit_code, result.stdout) == (0, text)
    assert result.stderr == "next: fnctl invoke digits  or  fnctl scale digits --min 1\n"
    assert api.sent("POST")[0].query == {"wait": "5"}
    assert json.loads(fnctl("warm", "digits", "--json").stdout) == answer


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("function_failing", "next: fnctl why digits  or  fnctl logs digits\n"),
        ("no_room", "next: fnctl why digits  or  fnctl ls\n"),
        ("unknown_function", "next: see what there is: fnctl ls\n"),
    ],
)
def test_what_does_not_become_ready_says_why(
    api: AdminApi, fnctl: Callable[..., Result], code: str, hint: str
) -> None:
    """The reason, the last lines of the log, and where to look next."""
    problem = {"title": "Not ready", "detail": "no such operator", "code": code, "status": 503}
    api.on("POST", PATH, Canned({**problem, "log_tail": ["line 1", "line 2"]}, 503))

    result = fnctl("warm", "digits")

    assert result.exit_code == 1
    assert result.stderr == (
        "error: Not ready: no such operator\n"
        "  last lines of its log:\n    line 1\n    line 2\n" + hint
    )


@pytest.mark.parametrize("wait", ["0", "3601", "soon"])
def test_a_wait_is_bounded(api: AdminApi, fnctl: Callable[..., Result], wait: str) -> None:
    """Anything else is wrong usage."""
    assert fnctl("warm", "digits", "--wait", wait).exit_code == 2
    assert api.requests == []
