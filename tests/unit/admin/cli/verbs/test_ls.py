from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

from admin.cli.verbs.ls import HEAD, render, row, sleeps_in
from tests.support.admin_api import AdminApi, Canned

ITEM: dict[str, Any] = {
    "name": "digits",
    "revision": "digits@3",
    "state": "warm",
    "phase": None,
    "ready": 1,
    "wanted": 2,
    "held": 4,
    "in_flight": 5,
    "rate": 41.26,
    "p50_ms": 1.2,
    "p95_ms": 8.4,
    "cold_start_ms": 183.2,
    "ready_in_ms": 0,
    "sleeps_at_s": 1042.0,
}
COLD = {
    **ITEM,
    "name": "b",
    "state": "cold",
    "rate": 0.0,
    "p50_ms": None,
    "p95_ms": None,
    "cold_start_ms": None,
    "ready_in_ms": 40,
    "sleeps_at_s": None,
}


def test_functions_are_rows() -> None:
    """Each function is a row, with a dash for unknown values."""
    waking = {**COLD, "name": "c", "state": "waking", "phase": "load", "ready_in_ms": None}
    gone = {"name": "d", "state": "gone"}
    parked = {**COLD, "name": "e", "state": "parked", "ready_in_ms": 2_100}
    verified = {**parked, "state": "waking", "phase": "verify", "ready_in_ms": 180}
    items = [ITEM, COLD, waking, gone, parked, verified]

    rows = [line.split() for line in render(items, 1000.0).split("\n")]

    assert " ".join(rows[0]) == " ".join(HEAD[:-1])
    assert [" ".join(row) for row in rows[1:]] == [
        "digits digits@3 warm 1/2 4 5 41 1.2 ms 8.4 ms 183 ms now 42 s",
        "b digits@3 cold 1/2 4 5 0 - - - ~40 ms -",
        "c digits@3 waking: load 1/2 4 5 0 - - - - -",
        "d gone -/- - - 0 - - - - -",
        "e digits@3 parked 1/2 4 5 0 - - - ~2.1 s -",
        "e digits@3 waking: verify 1/2 4 5 0 - - - ~180 ms -",
    ]


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, "warm"),
        ({"golden": "wrong"}, "warm: wrong answers"),
        ({"trouble": "it refuses connections"}, "warm: not answering"),
        ({"golden": "wrong", "trouble": "it refuses connections"}, "warm: not answering"),
    ],
)
def test_a_server_in_trouble_is_told(fields: dict[str, Any], shown: str) -> None:
    """Beside the state, the worse of both troubles; `fnctl why` has the reason."""
    assert row({**ITEM, **fields}, 0.0)[2] == shown


def test_functions_with_a_reserved_user_id_are_told_below() -> None:
    """Each is a line with what its server may run as; all others are rows only."""
    root = {**ITEM, "name": "web", "reserved_user": "root (user id 0)"}

    shown = render([ITEM, root, {**COLD, "reserved_user": ""}], 1000.0).split("\n")

    assert shown[4:] == ["web may run as root (user id 0)"]


def test_a_narrow_terminal_goes_without_some_columns() -> None:
    """A narrow terminal leaves out the least important columns; a pipe has all of them."""
    widths = [max(map(len, render([ITEM, COLD], 1000.0, room).split("\n"))) for room in (60, 80)]

    assert widths[0] <= 60
    assert widths[0] < widths[1] <= 80
    head = render([ITEM], 1000.0, 80).split("\n")[0]
    assert "P50" not in head
    assert head.split()[-2:] == ["SLEEPS", "IN"]
    assert "READY IN" in render([ITEM], 1000.0, 1)


def test_when_a_replica_goes_needs_a_clock() -> None:
    """Without the server's clock the time to sleep is unknown; a time in the past is 0 s."""
    found = [sleeps_in(1042.0, 0.0), sleeps_in(1042.0, 2000.0), sleeps_in(1600.0, 1000.0)]

    assert found == ["-", "0 s", "10.0 min"]


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
