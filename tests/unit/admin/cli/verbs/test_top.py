from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from typer.testing import Result

from tests.support.admin_api import AdminApi, Canned
from tests.support.event_server import beat, device, line, snapshot
from tests.unit.admin.cli.test_live_table import NO_KEY, PATH, stream

WHOLE = snapshot([line("digits")], ("devices", {"items": [device("cpu:0")]}))


def test_without_a_terminal_one_picture_is_printed(
    api: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """Without a terminal top prints one snapshot, COLUMNS wide and without control characters."""
    api.on("GET", PATH, stream(*WHOLE))

    result = fnctl("top")

    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"fnctl top  {api.url}")
    assert any(each.startswith("digits") for each in lines)
    assert any(each.startswith("cpu:0") for each in lines)
    assert max(map(len, lines)) <= 100
    assert "\x1b" not in result.stdout
    assert result.exit_code == 0
    assert api.requests[0].headers["Authorization"] == "Bearer secret-token"


def test_one_picture_is_one_object(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """--json --once prints the snapshot as one object."""
    api.on("GET", PATH, stream(*WHOLE))

    found = json.loads(fnctl("top", "--once", "--json").stdout)

    assert [each["name"] for each in found["functions"]] == ["digits"]
    assert [each["id"] for each in found["devices"]] == ["cpu:0"]


@pytest.mark.slow
def test_every_change_is_a_line(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """--json prints every change, and every connection loss, as a line."""
    api.on("GET", PATH, stream(*WHOLE), NO_KEY)

    result = fnctl("top", "--json")

    found = [json.loads(each) for each in result.stdout.splitlines()]
    kinds = ["reset", "functions", "devices", "ready", "beat", "broken"]
    assert [each["event"] for each in found] == kinds
    assert found[4]["data"] == beat()[1]
    assert found[5]["data"] == {"why": "the server ended the events", "again_in_s": 1.0}
    assert (result.exit_code, json.loads(result.stderr)["code"]) == (1, "no_key")


def test_a_partial_snapshot_is_an_error(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """A snapshot that breaks off is an error and not printed."""
    api.on("GET", PATH, stream(*WHOLE[:2]))

    result = fnctl("top", "--once")

    assert result.stdout == ""
    assert result.exit_code == 3
    assert "the server ended the events" in result.stderr


def test_a_server_without_events_says_so(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """A server without an event stream is reported as too old or not fngate's."""
    problem = {"title": "Not found", "detail": "no such path"}
    api.on("GET", PATH, Canned(problem, status=404))

    result = fnctl("top")

    assert (result.exit_code, result.stdout) == (1, "")
    assert "Not found: no such path" in result.stderr
