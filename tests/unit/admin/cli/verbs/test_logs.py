from __future__ import annotations

import json
from collections.abc import Callable

from typer.testing import Result

from tests.support.admin_api import AdminApi, Canned

PATH = "/admin/v1/functions/digits/logs"
ITEMS = [{"replica": "r1", "text": "one\ntwo\x1b[2J"}, {"replica": "r2", "text": ""}]


def test_lines_stand_behind_their_replica(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """Every line is prefixed with its replica and has no control characters."""
    api.on("GET", PATH, Canned({"items": ITEMS}))

    result = fnctl("logs", "digits", "--lines", "7")

    assert result.stdout == "r1 | one\nr1 | two�[2J\n"
    assert api.requests[0].query == {"lines": "7"}


def test_json_has_the_text_as_it_is(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """--json keeps every character."""
    api.on("GET", PATH, Canned({"items": ITEMS}))

    assert json.loads(fnctl("logs", "digits", "--json").stdout) == {"items": ITEMS}


def test_no_logs_are_said(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """A function without logs is reported with where to look instead."""
    api.on("GET", PATH, Canned({"items": []}))

    result = fnctl("logs", "digits")

    assert (result.stdout, result.stderr) == ("no logs\n", "next: fnctl why digits\n")


def test_a_silly_number_of_lines_is_wrong_usage(fnctl: Callable[..., Result]) -> None:
    """A number of lines that is 0 or too large is wrong usage."""
    assert fnctl("logs", "digits", "--lines", "0").exit_code == 2
    assert fnctl("logs", "digits", "--lines", "10001").exit_code == 2


def stream(*events: tuple[str, dict[str, str]]) -> Canned:
    """Return an answer that streams these events and ends."""
    text = "".join(
        f"id: @{number}\nevent: {kind}\ndata: {json.dumps(data)}\n\n"
        for number, (kind, data) in enumerate(events)
    )
    return Canned(text.encode(), headers={"Content-Type": "text/event-stream"})


GONE = Canned({"code": "unknown_function", "title": "There is no such function"}, status=404)
TALK = stream(("lines", {"replica": "r1", "text": "one\x1b[2J"}), ("end", {"replica": "r1"}))


def test_logs_are_followed_until_the_function_is_gone(
    api: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """-f reconnects after the last event when the stream ends, and stops when the function is
    removed."""
    api.on("GET", PATH, TALK, GONE)

    result = fnctl("logs", "digits", "-f", "--lines", "3")

    assert (result.exit_code, result.stdout) == (0, "r1 | one�[2J\n")
    assert result.stderr == "r1 has ended\ndigits is gone\n"
    assert [r.headers.get("Last-Event-ID") for r in api.requests] == [None, "@1"]
    assert api.requests[0].query == {"lines": "3"}


def test_events_that_cannot_be_read_are_ignored(
    api: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """Each is named with the reason on stderr, and the lines after it are printed."""
    api.on("GET", PATH, stream(("weather", {}), ("end", {}), ("lines", ITEMS[0])), GONE)

    result = fnctl("logs", "digits", "-f")

    assert (result.exit_code, result.stdout) == (0, "r1 | one\nr1 | two�[2J\n")
    assert result.stderr.splitlines()[:2] == [
        "ignored: weather: this fnctl does not know such events",
        "ignored: end: Object missing required field `replica`",
    ]


def test_followed_logs_as_json(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """-f --json prints one object per line and no remarks."""
    api.on("GET", PATH, TALK, GONE)

    result = fnctl("logs", "digits", "--follow", "--json")

    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"event": "lines", "replica": "r1", "text": "one\x1b[2J"},
        {"event": "end", "replica": "r1"},
    ]


def test_a_function_that_never_was_is_an_error(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """-f of an unknown function is an error."""
    api.on("GET", PATH, GONE)

    result = fnctl("logs", "digits", "-f")

    assert result.exit_code == 1
    assert "no such function" in result.stderr
