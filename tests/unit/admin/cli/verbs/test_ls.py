from __future__ import annotations

import json
from collections.abc import Callable

import msgspec
from typer.testing import Result

from admin.documents.functions import FunctionRow
from tests.support.admin_api import AdminApi, Canned
from tests.support.admin_documents import made

ITEM = made(FunctionRow, name="digits")


def test_json_is_the_items(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """--json prints the API's items and nothing else."""
    sent = {**msgspec.to_builtins(ITEM), "of_a_later_release": 1}
    api.on("GET", "/admin/v1/functions", Canned({"items": [sent], "next": None}))

    result = fnctl("ls", "--json")

    assert json.loads(result.stdout) == {"items": [sent]}
    assert (result.exit_code, result.stderr) == (0, "")
    assert api.requests[0].headers["Authorization"] == "Bearer secret-token"


def test_without_functions_the_next_step_is_told(
    api: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """An empty server is reported with the command to deploy."""
    api.on("GET", "/admin/v1/functions", Canned({"items": []}))

    result = fnctl("ls")

    assert result.stdout == "no functions yet\n"
    assert result.stderr == "next: fnctl deploy model.onnx\n"


def test_an_absent_server_is_exit_code_3(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """An unreachable server has exit code 3 of its own."""
    api.close()

    result = fnctl("ls")

    assert result.exit_code == 3
    assert result.stderr.startswith(f"error: {api.url} does not answer")


def test_a_refusal_is_exit_code_1(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """A wrong key is exit code 1 with the server's text and advice."""
    problem = {"title": "A key is needed", "detail": "the key is unknown", "code": "no_key"}
    api.on("GET", "/admin/v1/functions", Canned(problem, status=401))

    result = fnctl("ls")

    assert result.exit_code == 1
    assert "error: A key is needed: the key is unknown\nnext: give --key" in result.stderr
