from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from typer.testing import Result

from tests.support.admin_api import AdminApi, Canned

PATH = "/admin/v1/functions/digits/sleep"


@pytest.mark.parametrize(
    ("asked", "stay", "least", "text", "next_step"),
    [
        (0, 0, 0, "digits has no replica to let go\n", "fnctl ls"),
        (1, 0, 0, "digits: 1 replica asked to go\n", "fnctl ls"),
        (
            2,
            1,
            1,
            "digits: 2 replicas asked to go\n  1 replica stays: min is 1\n",
            "fnctl scale digits --min 0",
        ),
        (
            0,
            2,
            0,
            "digits: 0 replicas asked to go\n  2 replicas stay: called just now\n",
            "fnctl ls",
        ),
    ],
)
def test_sleep_says_what_it_did(
    api: AdminApi,
    fnctl: Callable[..., Result],
    asked: int,
    stay: int,
    least: int,
    text: str,
    next_step: str,
) -> None:
    """How many were asked, how many stay and why, and how to change that."""
    answer = {"name": "digits", "asked": asked, "stay": stay, "min": least}
    api.on("POST", PATH, Canned(answer))

    result = fnctl("sleep", "digits")

    assert (result.exit_code, result.stdout) == (0, text)
    assert result.stderr == f"next: {next_step}\n"
    assert json.loads(fnctl("sleep", "digits", "--json").stdout) == answer
