from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from typer.testing import Result

from tests.support.admin_api import AdminApi, Canned

ERROR = {"at_s": 1.0, "code": "function_failing", "detail": "cannot be loaded", "count": 1}


def test_why_hints_at_the_logs_of_a_failing_function(
    api: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """why of a failing function suggests its logs."""
    answer = {"state": "failing", "reason": "no such file", "decisions": [], "cold_starts": []}
    api.on("GET", "/admin/v1/functions/digits/why", Canned(answer))
    api.on("GET", "/admin/v1/functions/digits/errors", Canned({"items": [ERROR]}))

    result = fnctl("why", "digits")

    assert result.stdout.startswith("failing: no such file\n\nerrors\n")
    assert result.stdout.endswith("function_failing: cannot be loaded\n")
    assert result.stderr == "next: fnctl logs digits\n"
    assert json.loads(fnctl("why", "digits", "--json").stdout) == {**answer, "errors": [ERROR]}


WHY = "/admin/v1/functions/digits/why"
OPERATION = {"id": "o1", "kind": "deploy", "name": "digits", "phase": "verify", "created_s": 1.0}


@pytest.mark.parametrize(
    ("state", "reason", "following"),
    [
        (
            "running",
            "its deploy is running: waiting for GET /health: 404 for 35 s",
            "fnctl operation watch o1  or  fnctl operation cancel o1",
        ),
        ("failed", "its deploy failed: not ready", "fnctl logs digits"),
    ],
)
def test_why_of_a_function_that_is_not_deployed_tells_of_its_deploy(
    api: AdminApi, fnctl: Callable[..., Result], state: str, reason: str, following: str
) -> None:
    """Its errors are not asked for: there is no function."""
    operation = {**OPERATION, "state": state}
    api.on("GET", WHY, Canned({"state": "not_deployed", "reason": reason, "operation": operation}))

    result = fnctl("why", "digits")

    first, second = result.stdout.splitlines()
    assert first == f"not deployed: {reason}"
    phase = "verify" if state == "running" else state
    assert second.startswith(f"operation o1: deploy, {phase}, started ")
    assert result.stderr == f"next: {following}\n"
    assert [request.path for request in api.requests] == [WHY]


def test_why_of_a_function_tells_of_the_operation_that_runs(
    api: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """Beside its own state."""
    answer = {"state": "warm", "reason": "min is 1", "operation": {**OPERATION, "state": "running"}}
    api.on("GET", WHY, Canned(answer))
    api.on("GET", "/admin/v1/functions/digits/errors", Canned({"items": []}))

    result = fnctl("why", "digits")

    assert result.stdout.startswith("warm: min is 1\noperation o1: deploy, verify, started ")
    assert "fnctl operation cancel o1" in result.stderr
