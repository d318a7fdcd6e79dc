from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

from admin.cli.live.state import LiveState
from admin.cli.live_table import table_lines
from admin.cli.top.lines import text
from tests.support.admin_api import AdminApi, Canned
from tests.support.event_server import apply, beat, line, snapshot

PATH = "/admin/v1/events"
STREAM = {"Content-Type": "text/event-stream"}
NO_KEY = Canned({"title": "A key is needed", "code": "no_key"}, status=401)
"""Refusal that ends a stream; without it the stream would reconnect for ever."""


def stream(*events: tuple[str, dict[str, Any]]) -> Canned:
    """Return an answer that streams these events and ends."""
    lines = [f"event: {kind}\ndata: {json.dumps(data)}\n\n" for kind, data in events]
    return Canned("".join(lines).encode(), headers=STREAM)


CHANGED = ("functions", {"items": [line("a", state="warm", held=2)]})
GONE = ("gone", {"functions": ["b"], "replicas": []})


@pytest.mark.slow
def test_changes_are_lines_of_json(api: AdminApi, fnctl: Callable[..., Result]) -> None:
    """With --json the first lines are the snapshot, later ones the changes; a repeated snapshot is
    no change."""
    whole = snapshot([line("b"), line("a")])
    api.on("GET", PATH, stream(*whole, CHANGED, GONE), NO_KEY)

    result = fnctl("ls", "--watch", "--json")

    found = [json.loads(each) for each in result.stdout.splitlines()]
    assert found == [line("a"), line("b"), CHANGED[1]["items"][0], {"name": "b", "state": "gone"}]
    assert result.exit_code == 1


@pytest.mark.slow
def test_changes_are_rows_where_there_is_no_terminal(
    api: AdminApi, fnctl: Callable[..., Result]
) -> None:
    """Without a terminal changes are rows below one head; a connection loss, and each kind of
    events that is ignored, goes to stderr."""
    odd: tuple[str, dict[str, Any]] = ("weather", {})
    api.on("GET", PATH, stream(*snapshot([line("a")]), odd, CHANGED, odd), NO_KEY)

    result = fnctl("ls", "-w")

    rows = [each.split()[:3] for each in result.stdout.splitlines()]
    assert rows == [["NAME", "REVISION", "STATE"], ["a", "a@1", "cold"], ["a", "a@1", "warm"]]
    assert result.stderr.splitlines()[:2] == [
        "ignored: weather: this fnctl does not know such events",
        "reconnecting: the server ended the events",
    ]


def test_a_table_in_place_says_how_old_it_is() -> None:
    """A table in place shows its age, and how many rows do not fit."""
    state = LiveState()
    apply(state, 10.0, *snapshot([line(f"f{number}") for number in range(30)]))

    live = [text(one) for one in table_lines(state, 10.0, (60, 12))]
    old = [text(one) for one in table_lines(state, 20.0, (60, 40))]

    assert len(live) == 10
    assert live[-1] == "… and 22 more: fnctl top scrolls"
    assert old[-1] == "silent: 10 s old"
    assert len(old) == 32
    assert max(map(len, live)) <= 60
    apply(state, 20.0, ("weather", {}), beat())
    assert text(table_lines(state, 20.0, (90, 40))[-1]).startswith("ignored events: weather: ")
    assert text(table_lines(LiveState(), 0.0, (60, 12))[-1]) == "reading …"
