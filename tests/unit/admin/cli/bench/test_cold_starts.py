"""Cold starts: who may be put to sleep, and which calls count."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from admin.cli.bench.cold_starts import ColdRuns, check_alone
from admin.cli.bench.load import is_expected
from admin.cli.bench.payloads import Request
from admin.client.client import Client
from admin.documents.functions import FunctionRow
from registry.errors import Conflict
from tests.support.admin_api import AdminApi, Canned
from tests.support.admin_documents import made

REPLICAS = "/admin/v1/replicas"
SLEEP = "/admin/v1/functions/digits/sleep"
CALL = "/fn/digits"
REQUEST = Request("POST", CALL, {"Content-Type": "application/json"}, b"{}", 1, "JSON")
COLD = {"Server-Timing": 'cold;desc="digits@1 on cpu:0", load;dur=9, bind;dur=3, queue;dur=12'}


def state(*replicas: tuple[str, str, str]) -> Canned:
    """The answer of the list of replicas."""
    names = ("function", "role", "state")
    return Canned({"items": [dict(zip(names, one, strict=True)) for one in replicas], "next": None})


READY = ("digits", "serve", "ready")
OTHER = ("rope", "serve", "ready")
STARTING = ("", "standby", "starting")


class Clock:
    """Seconds that only a pause moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def pause(self, seconds: float) -> None:
        """Move on."""
        self.now_s += max(seconds, 1.0)


@pytest.fixture
def runs(api: AdminApi) -> ColdRuns:
    """Cold runs against canned answers, on a clock of their own."""
    clock = Clock()
    api.on("POST", SLEEP, Canned({"asked": 1, "stay": 0}))
    api.on("POST", CALL, Canned({}, headers=COLD))
    return ColdRuns(Client(api.url, "k"), "digits", REQUEST, 5.0, clock, clock.pause)


def test_a_call_follows_the_last_replica(api: AdminApi, runs: ColdRuns) -> None:
    """The function is asked to sleep until it does; then a starting standby is waited for."""
    api.on("GET", REPLICAS, state(READY, OTHER), state(READY), state(STARTING), state(OTHER))

    runs.once()

    asked = [(one.method, one.path) for one in api.requests]
    assert asked == [
        *([("GET", REPLICAS), ("POST", SLEEP)] * 2),
        *([("GET", REPLICAS)] * 2),
        ("POST", CALL),
    ]
    assert runs.found.phases() == {"load": 9.0, "bind": 3.0}
    assert runs.found.to_json()["count"] == 1


def test_other_answers_are_no_cold_starts(api: AdminApi, runs: ColdRuns) -> None:
    """A warm answer means that another caller woke it; a refusal counts by its code."""
    api.on("GET", REPLICAS, state())
    refusal = {"type": "urn:fngate:problem:queue_full", "code": "queue_full"}
    api.on("POST", CALL, Canned({}), Canned(refusal, 503), Canned({"code": "own"}, 500))

    for _ in range(3):
        runs.once()

    assert (runs.found.taken_ms, runs.found.warm) == ([], 1)
    assert runs.found.errors == {"503 queue_full": 1, "500": 1}


@pytest.mark.parametrize(("left_s", "errors"), [(0.05, {}), (60.0, {"timeout": 1})])
def test_a_call_has_a_time_limit(api: AdminApi, left_s: float, errors: dict[str, int]) -> None:
    """A call that takes too long is an error, one that the benchmark has no time for is none."""
    answered = threading.Event()
    api.on("GET", REPLICAS, state())
    api.on("POST", CALL, Canned({}, headers=COLD, before=lambda: bool(answered.wait(10))))
    runs = ColdRuns(Client(api.url, "k"), "digits", REQUEST, 0.1)
    try:
        runs.once(left_s)
    finally:
        answered.set()
    assert (runs.found.taken_ms, runs.found.errors) == ([], errors)


def test_the_remaining_time_bounds_the_wait_for_sleep(api: AdminApi, runs: ColdRuns) -> None:
    """Nothing is called then, and nothing is wrong."""
    api.on("GET", REPLICAS, state(READY))
    runs.once(4.0)
    assert api.sent("POST", CALL) == []
    assert not runs.found.errors


def test_a_function_that_does_not_sleep_is_given_up(api: AdminApi, runs: ColdRuns) -> None:
    """The error names the states of its replicas."""
    api.on("GET", REPLICAS, state(("digits", "serve", "draining")))
    with pytest.raises(Conflict, match="did not fall asleep within 60 s: draining"):
        runs.once()
    assert api.sent("POST") == []


@pytest.mark.parametrize(
    ("function", "text"),
    [
        ({"min": 1}, "keeps 1 replicas"),
        ({"in_flight": 1, "held": 2}, "open calls: 3"),
        ({"rate": 0.25}, "0.25 calls/s"),
    ],
)
def test_a_function_in_use_is_not_put_to_sleep_by_cold_runs(
    function: dict[str, Any], text: str
) -> None:
    """`force` overrides other callers, never a minimum of replicas."""
    used = made(FunctionRow, {"name": "digits", **function})
    with pytest.raises(Conflict, match=text):
        check_alone(used, force=False)
    if "min" in function:
        with pytest.raises(Conflict):
            check_alone(used, force=True)
    else:
        check_alone(used, force=True)
    check_alone(made(FunctionRow, {"name": "digits", "min": 0, "rate": 0.0}), force=False)


def test_the_expected_status_may_be_any() -> None:
    """Without one, every success and redirection is expected."""
    assert [is_expected(one, 0) for one in (200, 399, 400, 503)] == [True, True, False, False]
    assert [is_expected(one, 404) for one in (200, 404)] == [False, True]
