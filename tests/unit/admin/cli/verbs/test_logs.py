from __future__ import annotations

import json
from collections.abc import Callable

from typer.testing import Result

from tests.support.admin_api import AdminApi, Canned

PATH = "/admin/v1/functions/digits/logs"
ITEMS = [{"replica": "r1", "text": "one\ntwo\x1b[2J"}, {"replica": "r2", "text": ""}]


def test_lines_stand_behind_their_replica(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Every line names its replica, and none can steer the terminal."""
    api.on("GET", PATH, Canned({"items": ITEMS}))

    result = fnctl("logs", "digits", "--lines", "7")

    assert result.stdout == "r1 | one\nr1 | two�[2J\n"
    assert api.requests[0].query == {"lines": "7"}


def test_json_has_the_text_as_it_is(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """--json keeps every character."""
    api.on("GET", PATH, Canned({"items": ITEMS}))

    assert json.loads(fnctl("logs", "digits", "--json").stdout) == {"items": ITEMS}


def test_no_logs_are_said(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """A function that wrote nothing is told so, with where to look instead."""
    api.on("GET", PATH, Canned({"items": []}))

    result = fnctl("logs", "digits")

    assert (result.stdout, result.stderr) == ("no logs\n", "next: fnctl why digits\n")


def test_a_silly_number_of_lines_is_wrong_usage(fnctl: Callable[..., Result]) -> None:
    """No lines, or more than anyone reads, are refused."""
    assert fnctl("logs", "digits", "--lines", "0").exit_code == 2
    assert fnctl("logs", "digits", "--lines", "10001").exit_code == 2
