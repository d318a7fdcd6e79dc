from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from typer.testing import Result

from admin.cli.verbs.ls import render
from tests.support.admin_api import AdminApi, Canned

ITEM: dict[str, Any] = {
    "name": "digits",
    "revision": "digits@3",
    "state": "warm",
    "ready": 1,
    "wanted": 2,
    "held": 4,
    "in_flight": 5,
    "cold_start_ms": 183.2,
    "ready_in_ms": 0,
}


def test_functions_are_rows() -> None:
    """Each function is a row, with a dash for what nobody can tell."""
    cold = {**ITEM, "name": "b", "state": "cold", "cold_start_ms": None, "ready_in_ms": 40}
    bad = {**ITEM, "name": "c", "state": "failing", "ready_in_ms": None}

    assert render([ITEM, cold, bad]).split("\n") == [
        "NAME    REVISION  STATE    READY  HELD  IN FLIGHT  COLD START  READY IN",
        "digits  digits@3  warm     1/2    4     5          183 ms      now",
        "b       digits@3  cold     1/2    4     5          -           ~40 ms",
        "c       digits@3  failing  1/2    4     5          183 ms      -",
    ]


def test_json_is_the_items(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """--json prints the API's items and nothing else."""
    api.on("GET", "/admin/v1/functions", Canned({"items": [ITEM], "next": None}))

    result = fnctl("ls", "--json")

    assert json.loads(result.stdout) == {"items": [ITEM]}
    assert (result.exit_code, result.stderr) == (0, "")
    assert api.requests[0].headers["Authorization"] == "Bearer secret-token"


def test_without_functions_the_next_step_is_told(
    api: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """An empty server says how to deploy."""
    api.on("GET", "/admin/v1/functions", Canned({"items": []}))

    result = fnctl("ls")

    assert result.stdout == "no functions yet\n"
    assert result.stderr == "next: fnctl deploy model.onnx\n"


def test_an_absent_server_is_exit_code_3(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Where nobody answers, scripts can tell from the exit code."""
    api.close()

    result = fnctl("ls")

    assert result.exit_code == 3
    assert result.stderr.startswith(f"error: {api.url} gives no answer")


def test_a_refusal_is_exit_code_1(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """A wrong key ends with the server's words and what to do."""
    problem = {"title": "A key is needed", "detail": "the key is unknown", "code": "no_key"}
    api.on("GET", "/admin/v1/functions", Canned(problem, status=401))

    result = fnctl("ls")

    assert result.exit_code == 1
    assert "error: A key is needed: the key is unknown\nnext: give --key" in result.stderr
