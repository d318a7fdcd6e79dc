from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

from admin.cli.verbs.advise import better, render, sentence
from admin.documents.history import Advice
from tests.support.admin_api import AdminApi, Canned
from tests.support.admin_documents import made

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
    """The present row is marked, the others are compared with it per day, and a clearly better one
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
def test_a_better_row_costs_next_to_nothing(
    others: list[dict[str, Any]], best: float | None
) -> None:
    """Better means much less device time for hardly more waiting, or much less waiting for hardly
    more device time; a trade-off is left to the operator."""
    answer = made(Advice, advice(row(300.0, 20.0, 7200.0, now=True), *others))

    found = better(answer)

    assert (found.idle_s if found else None) == best
    assert ("already a good choice" in sentence(answer)) == (best is None)


def test_less_waiting_is_said_too() -> None:
    """The advice for less waiting names the device time that it takes."""
    rows = row(300.0, 20.0, 7200.0, now=True), row(600.0, 5.0, 7560.0)
    answer = made(Advice, advice(*rows))

    assert sentence(answer) == "idle 600 s takes 0.2 device-hours a day, with 30.0 s less waiting"


def test_too_little_history_is_said(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """With too little history the output is the note alone, with exit code 0."""
    api.on("GET", PATH, Canned(advice(notes=["no advice: 3 requests were recorded"])))

    result = fnctl("advise", "digits")

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "note: no advice: 3 requests were recorded\n"
    none = made(Advice, advice())
    assert (better(none), sentence(none)) == (None, "")


def test_an_estimate_is_called_one() -> None:
    """A cold start is marked as estimated if none was seen."""
    basis = {"cold_start_ms": 900.0, "run_ms": 1.0, "cold_starts_seen": 0}

    shown = render(made(Advice, advice(row(300.0, 20.0, 7200.0, now=True), basis=basis)))

    assert "a cold start takes 900 ms (estimated)" in shown


def test_a_busy_server_is_an_error(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Advice that is refused because another is computed is exit code 1 with the server's text."""
    problem = {"title": "No advice at present", "code": "advice_unavailable", "detail": "another"}
    api.on("GET", PATH, Canned({**problem, "retry_after_s": 10}, 503))

    result = fnctl("advise", "digits")

    assert result.exit_code == 1
    assert "No advice at present: another" in result.stderr


def test_silly_hours_are_wrong_usage(fnctl: Callable[..., Result]) -> None:
    """Hours outside 1 to 168 are wrong usage."""
    assert fnctl("advise", "digits", "--hours", "0").exit_code == 2
    assert fnctl("advise", "digits", "--hours", "169").exit_code == 2
