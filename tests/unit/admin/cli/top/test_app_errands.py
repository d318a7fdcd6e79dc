from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from admin.cli.top.app import AT_ONCE_MAX, Errands, Outcome
from admin.cli.top.view import Request
from admin.client.client import Client
from tests.support.admin_api import AdminApi, Canned

UNTIL_S = 60.0
PATH = "/admin/v1/functions/a"


@pytest.fixture
def errands(api: AdminApi) -> Iterator[Errands]:
    made = Errands(Client(api.url, "k"))
    yield made
    made.join(UNTIL_S)


def done(errands: Errands, *requests: Request) -> list[Outcome]:
    """What came of these."""
    assert all(errands.start(request) for request in requests)
    errands.join(UNTIL_S)
    return list(errands.outcomes())


def test_what_was_asked_is_told_in_a_line(api: AdminApi, errands: Errands) -> None:
    """As the verbs of these names tell it."""
    api.on("POST", f"{PATH}/warm", Canned({"revision": "a@1", "took_ms": 12.0}))
    api.on("POST", f"{PATH}/sleep", Canned({"name": "a", "asked": 1, "stay": 1, "min": 1}))

    warm, sleep = Request("warm", "a"), Request("sleep", "a")

    assert done(errands, warm) == [Outcome(warm, "a@1 is warm after 12 ms")]
    assert done(errands, sleep) == [
        Outcome(sleep, "a: 1 replica asked to go 1 replica stays: min is 1")
    ]


def test_a_why_keeps_its_lines(api: AdminApi, errands: Errands) -> None:
    """It has a page of its own."""
    decisions = [{"at_s": 1.0, "text": "wakes"}]
    api.on("GET", f"{PATH}/why", Canned({"state": "warm", "reason": "x", "decisions": decisions}))

    [outcome] = done(errands, Request("why", "a"))

    assert outcome.text.startswith("warm: x\n\ndecisions\n")


def test_a_refusal_is_told(api: AdminApi, errands: Errands) -> None:
    """As is that nobody answers."""
    problem = {"title": "No room", "detail": "every device is busy", "code": "no_room"}
    api.on("POST", f"{PATH}/warm", Canned(problem, status=503))
    refused = done(errands, Request("warm", "a"))
    api.close()
    alone = done(errands, Request("sleep", "a"))

    assert refused[0].text == "warm a: No room: every device is busy"
    assert alone[0].text.startswith(f"sleep a: {api.url} gives no answer")


def test_one_thing_is_not_asked_twice_at_once(api: AdminApi, errands: Errands) -> None:
    """Nor too many."""
    go_on = threading.Event()
    answer = Canned({"revision": "a@1", "took_ms": 1.0}, before=lambda: go_on.wait(UNTIL_S))
    for number in range(AT_ONCE_MAX):
        api.on("POST", f"/admin/v1/functions/f{number}/warm", answer)

    taken = [errands.start(Request("warm", f"f{number}")) for number in (0, 0, *range(1, 12))]
    go_on.set()
    errands.join(UNTIL_S)

    assert taken == [True, False, *[True] * (AT_ONCE_MAX - 1), *[False] * 4]
    assert len(list(errands.outcomes())) == AT_ONCE_MAX
    assert done(errands, Request("warm", "f0"))
