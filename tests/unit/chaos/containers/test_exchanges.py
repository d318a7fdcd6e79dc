"""Tests of the judge of exchanges with servers in containers: it must find what is wrong."""

from __future__ import annotations

import hashlib
import json
from random import Random
from time import monotonic

import pytest

from tests.chaos.containers.exchanges import EVENTS, KINDS, Exchanges, Sent
from tests.chaos.containers.fault_times import FaultTimes
from tests.chaos.ledger import Ledger
from tests.support.raw_http import End, Got

TOKEN = "first-1"
FIELDS = [("server-name", "first"), ("token", TOKEN)]


def got(body: bytes = b"", status: int = 200, end: End = "whole") -> Got:
    """An answer of the right server to the right request."""
    return Got(status, list(FIELDS), bytearray(body), end)


def refused(detail: str, status: int = 502, code: str = "replica_died") -> Got:
    """A problem document of the gateway."""
    body = json.dumps({"code": code, "detail": detail}).encode()
    return Got(status, [("content-type", "application/problem+json")], bytearray(body), "whole")


def judged(
    answer: Got, kind: str, retry: str = "auto", fault_times: FaultTimes | None = None
) -> list[str]:
    """Return the violations of one answer, under a lasting fault unless `fault_times` is given."""
    fault_times, ledger = fault_times or FaultTimes(), Ledger("exchanges")
    exchanges = Exchanges(0, {"first": retry}, fault_times, ledger, Random(1))
    with fault_times.fault():
        exchanges._judge(Sent("first", retry, kind, TOKEN), answer, monotonic())
    return ledger.violations


def shown(kind: str) -> bytes:
    """The right answer of /show."""
    body = KINDS[kind].body(TOKEN) or b""
    digest = hashlib.sha256(body).hexdigest()
    return json.dumps({"method": KINDS[kind].method, "bytes": len(body), "sha256": digest}).encode()


EVENTS_BODY = "".join(f"data: {number} \n\n" for number in range(EVENTS)) + "data: [DONE]\n\n"
RIGHT = {
    "put": shown("put"),
    "slow post": TOKEN.encode(),
    "events": EVENTS_BODY.encode(),
    "until end": f"{TOKEN} {TOKEN}".encode(),
}


@pytest.mark.parametrize("kind", RIGHT)
def test_a_right_answer_and_a_wrong_one(kind: str) -> None:
    """The whole right answer has no complaint, and each other one has."""
    other = shown("post") if kind == "put" else RIGHT[kind][:-1]

    assert judged(got(RIGHT[kind]), kind) == []
    assert len(judged(got(other), kind)) == 1


def test_somebody_elses_answer() -> None:
    """The names of function and request count, too."""
    answer = got(RIGHT["put"])
    answer.fields = [("server-name", "first"), ("token", "first-2")]

    assert "somebody else" in judged(answer, "put")[0]


@pytest.mark.parametrize(
    ("detail", "kind", "retry", "is_wrong"),
    [
        ("before its answer; the request may have been run", "post", "auto", False),
        ("before its answer; the request may have been run", "post", "always", True),
        ("before its answer; the request may have been run", "get", "auto", True),
        ("before its answer; retry is never", "get", "never", False),
        ("before its answer; retry is never", "get", "auto", True),
        ("before its answer; the body was not kept", "large upload", "auto", False),
        ("before its answer; the body was not kept", "put", "auto", True),
        ("before its answer, twice", "get", "auto", False),
        ("accepts no connections", "post", "auto", True),
    ],
)
def test_a_refusal_by_the_rules(detail: str, kind: str, retry: str, is_wrong: bool) -> None:
    """A request that the table of retries saves may not be refused."""
    assert bool(judged(refused(detail), kind, retry)) == is_wrong


def test_what_nothing_excuses() -> None:
    """Cuts without a killed gateway, other codes, and silence."""
    assert judged(got(end="late"), "get")
    assert judged(Got(), "get")
    assert judged(refused("not now", 503, "shutting_down"), "get")
    assert judged(refused("too long", 503, "wait_budget_over"), "get")


def test_cuts_under_faults_only() -> None:
    """A cut answer is excused by a fault of its time, not by one of long ago."""
    exchanges = Exchanges(0, {"first": "auto"}, FaultTimes(), Ledger("exchanges"), Random(1))
    sent = Sent("first", "auto", "put", TOKEN)

    exchanges._judge(sent, got(b"{", end="cut"), monotonic())

    assert len(exchanges.ledger.violations) == 1
    assert judged(got(b"{", end="cut"), "put") == []


@pytest.mark.parametrize(
    ("kind", "retry", "runs", "is_wrong"),
    [
        ("post", "auto", 1, False),
        ("post", "auto", 2, True),
        ("get", "never", 2, True),
        ("get", "auto", 3, False),
        ("post", "always", 3, False),
        ("get", "auto", 4, True),
    ],
)
def test_requests_that_were_read_too_often(
    kind: str, retry: str, runs: int, is_wrong: bool
) -> None:
    """Three times at most, one of them on a kept connection, and once if the rules forbid a second
    run."""
    exchanges = Exchanges(0, {"first": retry}, FaultTimes(), Ledger("exchanges"), Random(1))
    exchanges.sent[TOKEN] = Sent("first", retry, kind, TOKEN)

    exchanges.check_seen({"first": [TOKEN] * runs})

    assert bool(exchanges.ledger.violations) == is_wrong


def test_requests_at_the_wrong_function_or_at_none() -> None:
    """A right answer that no server has given, and a request that another function's has read."""
    exchanges = Exchanges(0, {"first": "auto"}, FaultTimes(), Ledger("exchanges"), Random(1))
    exchanges.sent[TOKEN] = Sent("first", "auto", "get", TOKEN)
    exchanges.answered.add(TOKEN)

    exchanges.check_seen({"first": [], "second": []})
    assert len(exchanges.ledger.violations) == 1
    exchanges.check_seen({"first": [], "second": [TOKEN]})
    assert "second has read" in exchanges.ledger.violations[1]
