from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from typer.testing import Result

from tests.support.admin_api import AdminApi, Canned

PATH = "/admin/v1/functions/digits/rollback"
OPERATION = "/admin/v1/operations/o1"
RUNNING = {"id": "o1", "kind": "rollback", "state": "running", "phase": "warm"}
DONE: dict[str, Any] = {
    **RUNNING,
    "state": "done",
    "phase": "switch",
    "result": {
        "revision": "digits@1",
        "from": "digits@2",
        "switch": "warm before traffic moved",
    },
}


def test_a_rollback_is_followed_to_its_end(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Its phases pass, its end says where calls go, and what to do next."""
    api.on("POST", PATH, Canned(RUNNING, 202))
    api.on("GET", OPERATION, Canned(DONE))

    result = fnctl("rollback", "digits")

    assert result.exit_code == 0
    assert result.stdout == (
        "calls go to digits@1, which takes over from digits@2\n"
        "  switch  warm before traffic moved\n"
    )
    assert "  warm " in result.stderr
    assert result.stderr.endswith("next: fnctl show digits  or  fnctl invoke digits\n")
    assert api.sent("POST")[0].json == {"to": None, "breaking": False}


def test_a_rollback_may_name_a_revision_and_break(
    api: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """What is given is sent; --json is the operation."""
    api.on("POST", PATH, Canned(DONE, 202))

    result = fnctl("rollback", "digits", "--to", "1", "--breaking", "--json")

    assert json.loads(result.stdout) == DONE
    assert (api.sent("POST")[0].json, result.stderr) == ({"to": 1, "breaking": True}, "")


def test_a_refused_rollback_says_why(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """At once, or as the end of its operation."""
    problem = {"title": "Conflict", "detail": "nothing before digits@1", "status": 409}
    api.on("POST", PATH, Canned(problem, 409), Canned(RUNNING, 202))
    api.on("GET", OPERATION, Canned({**RUNNING, "state": "failed", "error": problem}))

    for _ in range(2):
        result = fnctl("rollback", "digits")
        assert result.exit_code == 1
        assert "error: Conflict: nothing before digits@1\n" in result.stderr


def test_a_revision_is_a_number(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Anything else is wrong usage."""
    for to in ("0", "digits@1"):
        assert fnctl("rollback", "digits", "--to", to).exit_code == 2
    assert api.requests == []
