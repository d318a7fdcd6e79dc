"""Tests of fnctl operation."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from typer.testing import Result

from admin.cli.verbs.operation import DETAIL_MAX, ENDED_MAX
from tests.support.admin_api import AdminApi, Canned

OPERATIONS = "/admin/v1/operations"
RUNNING: dict[str, Any] = {
    "id": "o2",
    "kind": "deploy",
    "name": "web",
    "state": "running",
    "phase": "verify waiting for GET /health: 404 for 35 s",
    "result": {},
    "error": {},
    "created_s": 0.0,
    "ended_s": 0.0,
}
DONE: dict[str, Any] = {
    **RUNNING,
    "id": "o1",
    "state": "done",
    "phase": "switch",
    "result": {"revision": "web@1", "created": True, "switch": "calls go to web@1"},
    "created_s": 10.0,
    "ended_s": 12.5,
}
ROLLBACK: dict[str, Any] = {
    **DONE,
    "kind": "rollback",
    "result": {"revision": "web@1", "from": "web@2", "switch": "warm before"},
}
PROBLEM = {"Content-Type": "application/problem+json"}


def at(id: str) -> str:
    return f"{OPERATIONS}/{id}"


def test_operations_are_listed(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Each with its phase, its result or its reason in one short line; then how a running one is
    watched and cancelled."""
    began = {**RUNNING, "created_s": time.time() - 120}
    why = {"title": "The server was refused", "detail": f"not\nready {'x' * 200}"}
    failed = {**RUNNING, "id": "o0", "name": "api", "state": "failed", "error": why, "ended_s": 1.0}
    api.on("GET", OPERATIONS, Canned({"items": [began, DONE, failed]}))

    result = fnctl("operation", "ls")

    head, *rows = (line.split(maxsplit=4) for line in result.stdout.splitlines())
    assert head[:4] == ["OPERATION", "KIND", "FUNCTION", "STATE"]
    assert head[4].split() == ["STARTED", "TOOK", "DETAIL"]
    assert [row[:4] for row in rows] == [
        ["o2", "deploy", "web", "running"],
        ["o1", "deploy", "web", "done"],
        ["o0", "deploy", "api", "failed"],
    ]
    assert rows[0][4].startswith("2 min ago")
    assert rows[0][4].endswith("verify waiting for GET /health: 404 for 35 s")
    assert rows[1][4].split()[-3:] == ["2.5", "s", "web@1"]
    assert rows[2][4].endswith("x…")
    assert len(rows[2][4].partition("not ready")[2]) < DETAIL_MAX
    assert result.stderr == "next: fnctl operation watch o2  or  fnctl operation cancel o2\n"


def test_the_list_is_of_one_function_and_of_the_latest(
    api: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """Running ones are all there, however old."""
    many = [{**DONE, "id": f"d{n}"} for n in range(ENDED_MAX + 5)]
    api.on("GET", OPERATIONS, Canned({"items": [*many, RUNNING, {**DONE, "name": "other"}]}))

    def ids(*words: str) -> list[str]:
        items = json.loads(fnctl("operation", "ls", *words, "--json").stdout)["items"]
        return [one["id"] for one in items]

    assert ids("web") == [*(f"d{n}" for n in range(ENDED_MAX)), "o2"]
    assert len(ids("web", "--all")) == ENDED_MAX + 6
    assert ids("other") == ["o1"]
    assert ids("none") == []
    assert fnctl("operation", "ls", "none").stdout == "no operations\n"


@pytest.mark.parametrize(
    ("ended", "output"),
    [
        (DONE, "web@1 deployed\n  switch  calls go to web@1\n"),
        (ROLLBACK, "calls go to web@1, which takes over from web@2\n  switch  warm before\n"),
    ],
)
def test_a_watched_operation_ends_as_the_command_that_started_it(
    api: AdminApi, fnctl: Callable[..., Result], ended: dict[str, Any], output: str
) -> None:
    """Also one that had ended before."""
    running = {**RUNNING, "id": "o1", "kind": ended["kind"]}
    api.on("GET", at("o1"), Canned(running), Canned(ended), Canned(ended))

    for is_over in (False, True):
        result = fnctl("operation", "watch", "o1")
        assert (result.exit_code, result.stdout) == (0, output)
        lines = result.stderr.splitlines()
        assert lines[0].startswith(f"{ended['kind']} of web, started ")
        assert any(line.startswith("  verify ") for line in lines) is not is_over
        assert lines[-1] == "next: fnctl show web"
    told = json.loads(fnctl("operation", "watch", "o1", "--json").stdout)
    assert told == api.body("GET", at("o1"))


@pytest.mark.parametrize(
    ("ended", "text"),
    [
        ({"state": "failed", "error": {"title": "No", "detail": "room"}}, "error: No: room\n"),
        ({"state": "cancelled"}, "error: Cancelled: another command or a page has cancelled it"),
    ],
)
def test_a_watched_operation_that_is_not_done_fails_the_command(
    api: AdminApi, fnctl: Callable[..., Result], ended: dict[str, Any], text: str
) -> None:
    """With the reason, in exit code 1."""
    api.on("GET", at("o2"), Canned(RUNNING), Canned({**RUNNING, **ended}))

    result = fnctl("operation", "watch", "o2")

    assert (result.exit_code, result.stdout) == (1, "")
    assert text in result.stderr


def test_an_operation_is_cancelled(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """The answer is the operation."""
    ended = {**RUNNING, "state": "cancelled"}
    api.on("DELETE", at("o2"), Canned(ended))

    result = fnctl("operation", "cancel", "o2")

    assert (result.exit_code, result.stdout) == (0, "deploy of web is cancelled: nothing changed\n")
    told = json.loads(fnctl("operation", "cancel", "o2", "--json").stdout)
    assert told == api.body("DELETE", at("o2"))


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("done", "the deploy of web had ended before: it is done"),
        ("failed", "the deploy of web had ended before: it is failed"),
        ("running", "the deploy of web still runs: the server stops, and resumes it later"),
    ],
)
def test_what_is_not_cancelled_fails_the_command(
    api: AdminApi, fnctl: Callable[..., Result], state: str, text: str
) -> None:
    """With the reason, in exit code 1; with --json as an object."""
    api.on("DELETE", at("o2"), Canned({**RUNNING, "state": state}))

    result = fnctl("operation", "cancel", "o2")

    assert (result.exit_code, result.stderr) == (1, f"error: Conflict: {text}\n")
    assert json.loads(fnctl("operation", "cancel", "o2", "--json").stderr)["detail"] == text


@pytest.mark.parametrize("verb", ["watch", "cancel"])
@pytest.mark.parametrize("id", ["web", "a/../b?c#d%2e", "\x1b[2J"])
def test_an_unknown_id_names_the_list(
    api: AdminApi, fnctl: Callable[..., Result], verb: str, id: str
) -> None:
    """Whatever characters it has: it is one part of a path."""
    problem = {"code": "unknown", "title": "Not found", "detail": "no operation"}
    for method in ("GET", "DELETE"):
        api.on(method, at(quote(id, safe="")), Canned(problem, 404, PROBLEM))

    result = fnctl("operation", verb, id)

    assert result.exit_code == 1
    assert result.stderr == (
        "error: Not found: no operation\nnext: list the operations: fnctl operation ls --all\n"
    )
