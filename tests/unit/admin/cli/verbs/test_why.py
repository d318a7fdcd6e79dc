from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from typer.testing import Result

from admin.cli.verbs.why import render, waterfall
from tests.support.admin_api import AdminApi, Canned

NOW_S = 1_000_000.0
COLD: dict[str, Any] = {
    "at_s": NOW_S - 120,
    "total_ms": 140,
    "phases": {"load": 10.0, "start": 30.0, "import": 60.0, "evict": 0.0, "other": 0.1},
    "device_kind": "cpu",
    "number": 3,
    "outcome": "ready",
}

ERROR = {"at_s": 1.0, "code": "function_failing", "detail": "cannot be loaded", "count": 1}


def test_a_cold_start_is_a_waterfall() -> None:
    """Each phase begins where the one before it ended, in the order of the life of a replica."""
    assert waterfall(COLD, NOW_S).split("\n") == [
        "  2 min ago  140 ms  on cpu  revision 3  ready",
        "    start   ████████████                               30 ms",
        "    import             ████████████████████████        60 ms",
        "    load                                       ████    10 ms",
        "    other                                          ▏   0.1 ms",
    ]


def test_a_cold_start_without_phases_is_a_line() -> None:
    """A start that failed before its first phase has a head only."""
    assert "\n" not in waterfall({"at_s": NOW_S, "outcome": "failed"}, NOW_S)


def test_the_last_decisions_are_shown_in_order() -> None:
    """The newest ten decisions stand in order of time, however they came."""
    decisions = [{"at_s": NOW_S - age, "text": f"d{age}"} for age in range(15)]

    shown = render({"state": "warm", "reason": "busy", "decisions": decisions}, NOW_S).split("\n")

    assert shown[0] == "warm: busy"
    assert shown[2:4] == ["decisions", "  9 s ago       d9"]
    assert shown[-1] == "  just now      d0"


def test_the_last_cold_starts_are_shown() -> None:
    """Three cold starts are enough."""
    shown = render({"state": "cold", "reason": "", "cold_starts": [COLD] * 5}, NOW_S)

    assert shown.count("revision 3") == 3


def test_why_hints_at_the_logs_of_a_failing_function(
    api: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """Where a function fails, its logs are the next thing to read."""
    answer = {"state": "failing", "reason": "no such file", "decisions": [], "cold_starts": []}
    api.on("GET", "/admin/v1/functions/digits/why", Canned(answer))
    api.on("GET", "/admin/v1/functions/digits/errors", Canned({"items": [ERROR]}))

    result = fnctl("why", "digits")

    assert result.stdout.startswith("failing: no such file\n\nerrors\n")
    assert result.stdout.endswith("function_failing: cannot be loaded\n")
    assert result.stderr == "next: fnctl logs digits\n"
    assert json.loads(fnctl("why", "digits", "--json").stdout) == {**answer, "errors": [ERROR]}


def test_what_stands_in_the_way_is_told_once() -> None:
    """Below the state, unless that says it already."""
    warm = {"state": "warm", "reason": "calls", "blocked": "no device is free"}

    assert render(warm, NOW_S) == "warm: calls\nblocked: no device is free"
    assert render({**warm, "reason": "no device is free"}, NOW_S) == "warm: no device is free"
    assert render({**warm, "blocked": ""}, NOW_S) == "warm: calls"
