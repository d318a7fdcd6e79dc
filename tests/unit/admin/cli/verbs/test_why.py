from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

from admin.cli.render import render_why
from admin.documents.functions import Why
from tests.support.admin_api import AdminApi, Canned
from tests.support.admin_documents import made

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
    told = json.loads(fnctl("why", "digits", "--json").stdout)
    errors = api.body("GET", "/admin/v1/functions/digits/errors")["items"]
    assert told == {**api.body("GET", WHY), "errors": errors}


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


PARKED: dict[str, Any] = {
    "id": "r1",
    "devices": ["GPU-1f"],
    "since_s": 1_000.0,
    "ends_s": 87_400.0,
    "residue_mib": 320.0,
    "host_mib": 20_480.0,
    "why": "idle for 300 s",
}
ASLEEP = "asleep in host memory, wakes in about 2.1 s"


@pytest.mark.parametrize(
    ("phase", "ready_in_ms", "line"),
    [
        ("fetch", 3_200, "waking: fetches 40 of 100 MB, 55 MB/s, about 3.2 s left"),
        ("fetch", None, "waking: fetches 40 of 100 MB, 55 MB/s"),
        ("load", 3_200, "waking: fetches 40 of 100 MB, 55 MB/s"),
    ],
)
def test_why_tells_how_long_a_fetch_lasts(phase: str, ready_in_ms: int | None, line: str) -> None:
    """The reason has how far it is."""
    reason = "fetches 40 of 100 MB, 55 MB/s"
    answer = {"state": "waking", "reason": reason, "phase": phase, "ready_in_ms": ready_in_ms}
    assert render_why(made(Why, answer), [], 1_180.0) == line


@pytest.mark.parametrize(
    ("answer", "lines"),
    [
        (
            {
                "state": "parked",
                "reason": ASLEEP,
                "ready_in_ms": 2_100,
                "park": {"off": "", "wake_ms": 2_100, "parked": [PARKED]},
            },
            [
                f"parked: {ASLEEP}",
                "parked: r1 sleeps for 3 min, wakes in about 2.1 s",
                "  because: idle for 300 s",
                "  keeps 320.0 MiB of GPU-1f and 20.0 GiB of host memory, stopped in 24 h",
            ],
        ),
        (
            {
                "state": "parked",
                "reason": ASLEEP,
                "park": {
                    "off": "",
                    "wake_ms": None,
                    "parked": [{**PARKED, "devices": ["g0", "g1"], "ends_s": None, "why": ""}],
                },
            },
            [
                f"parked: {ASLEEP}",
                "parked: r1 sleeps for 3 min",
                "  keeps 320.0 MiB of each of g0, g1 and 20.0 GiB of host memory",
            ],
        ),
        (
            {
                "state": "waking",
                "reason": "a parked replica wakes",
                "phase": "verify",
                "ready_in_ms": 180,
                "park": {"off": "", "wake_ms": 2_100, "parked": []},
            },
            ["waking: a parked replica wakes, verify, about 180 ms left"],
        ),
        (
            {
                "state": "cold",
                "reason": "no calls",
                "park": {"off": "2 went wrong within a day", "wake_ms": 2_100, "parked": []},
            },
            ["cold: no calls", "not parked: 2 went wrong within a day"],
        ),
    ],
    ids=["parked", "on several GPUs", "waking", "off"],
)
def test_why_tells_of_parks(answer: dict[str, Any], lines: list[str]) -> None:
    """What sleeps, since when and why, how long its wake takes, what it keeps, and when it ends;
    what is left of a wake; or why nothing is parked."""
    assert render_why(made(Why, answer), [], 1_180.0).split("\n") == lines
