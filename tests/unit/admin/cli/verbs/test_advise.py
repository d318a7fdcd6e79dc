from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

from admin.cli.verbs.advise import better, render, sentence
from tests.support.admin_api import AdminApi, Canned

PATH = "/admin/v1/functions/digits/advice"


def row(idle_s: float, waited_s: float, device_s: float, now: bool = False) -> dict[str, Any]:
    return {
        "idle_s": idle_s,
        "cold_starts": 10,
        "waited_s": waited_s,
        "held": 12,
        "device_s": device_s,
        "idle_device_s": device_s / 2,
        "is_current": now,
    }


def advice(*rows: dict[str, Any], **changes: Any) -> dict[str, Any]:
    basis = {"cold_start_ms": 2100.0, "run_ms": 12.0, "cold_starts_seen": 31}
    return {
        "from_s": 0,
        "to_s": 43_200,
        "requests": 500,
        "idle_s": 300.0,
        "basis": basis,
        "rows": list(rows),
        "notes": ["arrivals are known by the minute"],
        **changes,
    }


CHEAPER = advice(row(60.0, 22.0, 3600.0), row(300.0, 20.0, 7200.0, now=True))


def test_advise_shows_what_each_idle_time_costs(
    api: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """The present row is marked, the others are held against it by the day; what is clearly better
    is the next command."""
    api.on("GET", PATH, Canned(CHEAPER))

    result = fnctl("advise", "digits", "--hours", "12")

    assert result.exit_code == 0
    assert api.sent("GET", PATH)[0].query == {"hours": "12"}
    assert result.stdout == (
        "500 requests in 12.0 h; a cold start takes 2.1 s (31 seen), a run 12 ms\n"
        "\n"
        "     IDLE   COLD STARTS  WAITED  REQUESTS  DEVICE  OF IT IDLE  A DAY\n"
        "     60 s   10           22.0 s  12        1.0 h   30.0 min    -2 device-h, +4 s waited\n"
        "now  300 s  10           20.0 s  12        2.0 h   1.0 h\n"
        "\n"
        "idle 60 s saves 2 device-hours a day, with 4.0 s more waiting\n"
        "\n"
        "note: arrivals are known by the minute\n"
    )
    assert result.stderr == "next: fnctl scale digits --idle 60\n"
    assert json.loads(fnctl("advise", "digits", "--json").stdout) == CHEAPER


@pytest.mark.parametrize(
    ("others", "best"),
    [
        ([], None),
        ([row(60.0, 90.0, 6900.0)], None),
        ([row(60.0, 90.0, 3600.0)], None),
        ([row(60.0, 20.0, 3600.0), row(10.0, 24.0, 1800.0)], 10.0),
        ([row(600.0, 5.0, 7500.0)], 600.0),
        ([row(600.0, 5.0, 9000.0)], None),
        ([row(600.0, 11.0, 7200.0)], None),
    ],
)
def test_better_is_what_costs_nothing_else(
    others: list[dict[str, Any]], best: float | None
) -> None:
    """Much less of the device for next to no waiting, or much less waiting for next to nothing of
    the device; what trades the one for the other is its operator's to decide."""
    answer = advice(row(300.0, 20.0, 7200.0, now=True), *others)

    found = better(answer)

    assert (found["idle_s"] if found else None) == best
    assert ("already a good choice" in sentence(answer)) == (best is None)


def test_less_waiting_is_said_too() -> None:
    """With what it takes of the device."""
    answer = advice(row(300.0, 20.0, 7200.0, now=True), row(600.0, 5.0, 7560.0))

    assert sentence(answer) == "idle 600 s takes 0.2 device-hours a day, with 30.0 s less waiting"


def test_too_little_history_is_said(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """No table, no advice, no next step, and no error."""
    api.on("GET", PATH, Canned(advice(notes=["no advice: 3 requests were recorded"])))

    result = fnctl("advise", "digits")

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "note: no advice: 3 requests were recorded\n"
    assert better(advice()) is None
    assert sentence(advice()) == ""


def test_an_estimate_is_called_one() -> None:
    """Where no cold start was seen."""
    basis = {"cold_start_ms": 900.0, "run_ms": 1.0, "cold_starts_seen": 0}

    shown = render(advice(row(300.0, 20.0, 7200.0, now=True), basis=basis))

    assert "a cold start takes 900 ms (estimated)" in shown


def test_a_busy_server_is_an_error(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """One advice at a time: the text says when to come again."""
    problem = {"title": "No advice at present", "code": "advice_unavailable", "detail": "another"}
    api.on("GET", PATH, Canned({**problem, "retry_after_s": 10}, 503))

    result = fnctl("advise", "digits")

    assert result.exit_code == 1
    assert "No advice at present: another" in result.stderr


def test_silly_hours_are_wrong_usage(fnctl: Callable[..., Result]) -> None:
    """An hour to a week."""
    assert fnctl("advise", "digits", "--hours", "0").exit_code == 2
    assert fnctl("advise", "digits", "--hours", "169").exit_code == 2
