"""The table of retries: one test per row, and what holds for all facts."""

from __future__ import annotations

import itertools
from typing import Literal

import pytest

from gateway.proxy.retries import IDEMPOTENT, ROWS, Fail, Loss, Resend, decide
from registry.errors import Poison, ReplicaDied, UpstreamFailed

POST = Loss(b"POST")
GET = Loss(b"GET")

EXAMPLES = (
    (POST._replace(unsent=3, retry="never", is_body_kept=False, sends=9), Resend.QUEUE),
    (GET._replace(unsent=4, is_reused=True), "before the request was sent"),
    (GET._replace(answer_bytes=1, is_reused=True), "in the middle of its answer"),
    (GET._replace(is_body_kept=False, is_reused=True), "the body was not kept"),
    (GET._replace(retry="never", is_reused=True), "retry is never"),
    (GET._replace(sends=2, is_reused=True), "twice"),
    (GET._replace(is_late=True, is_reused=True), "the time to wait is over"),
    (POST._replace(is_reused=True), Resend.FRESH),
    (GET._replace(died=True, is_reused=True), Resend.QUEUE),
    (GET, Resend.FRESH),
    (POST, "may have been run"),
)
"""For each row, facts to which it is the first that applies, and its outcome."""


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_a_row(number: int) -> None:
    """Each row decides its example, and no row before it applies."""
    loss, expected = EXAMPLES[number]
    outcome = decide(loss)

    assert [row.applies(loss) for row in ROWS[: number + 1]] == [False] * number + [True]
    if isinstance(expected, Resend):
        assert outcome is expected
    else:
        assert isinstance(outcome, Fail)
        assert outcome.error is UpstreamFailed
        assert expected in outcome.text


@pytest.mark.parametrize(
    ("loss", "outcome"),
    [
        (POST._replace(retry="always"), Resend.FRESH),
        (POST._replace(retry="always", died=True), Resend.QUEUE),
        (POST._replace(retry="always", sends=1, is_reused=True), Resend.FRESH),
        (Loss(b"PUT", died=True), Resend.QUEUE),
        (Loss(b"HEAD"), Resend.FRESH),
        (Loss(b"OPTIONS"), Resend.FRESH),
        (Loss(b"DELETE"), Resend.FRESH),
    ],
)
def test_what_may_be_run_twice(loss: Loss, outcome: Resend) -> None:
    """Idempotent methods (RFC 9110 section 9.2.2), and all where `retry` is always."""
    assert decide(loss) is outcome


@pytest.mark.parametrize(
    ("deaths", "died", "error"),
    [(0, True, ReplicaDied), (1, True, ReplicaDied), (2, True, Poison), (1, False, UpstreamFailed)],
)
def test_a_request_that_kills_replicas_is_poison(
    deaths: int, died: bool, error: type[Exception]
) -> None:
    """Two replicas have died before their answers, where that counts."""
    outcome = decide(POST._replace(retry="always", sends=2, deaths=deaths, died=died))
    assert isinstance(outcome, Fail)
    assert outcome.error is error


@pytest.mark.parametrize("retry", ["auto", "always", "never"])
@pytest.mark.parametrize("sends", [0, 1])
@pytest.mark.parametrize(
    ("unsent", "is_late", "again"),
    [(1, False, True), (3, False, True), (4, False, False), (1, True, False), (3, True, False)],
)
def test_connections_that_ended_before_the_request(
    retry: Literal["auto", "always", "never"], sends: int, unsent: int, is_late: bool, again: bool
) -> None:
    """Three are replaced while there is time, whether the request was sent on an earlier one."""
    loss = POST._replace(retry=retry, sends=sends, unsent=unsent, is_late=is_late)

    if again:
        assert decide(loss) is Resend.QUEUE
        assert decide(loss._replace(died=True)) is Resend.QUEUE
    else:
        text = "the function's server closed the connection before the request was sent"
        assert decide(loss) == Fail(UpstreamFailed, text)
        assert decide(loss._replace(died=True)) == Fail(
            ReplicaDied, "the replica died before the request was sent"
        )


@pytest.mark.parametrize("method", [b"POST", b"PATCH", b"get", b"PROPFIND"])
@pytest.mark.parametrize("is_reused", [False, True])
def test_the_death_of_a_replica_is_named(method: bytes, is_reused: bool) -> None:
    """A request that may have been run by a dead replica is not sent again."""
    outcome = decide(Loss(method, died=True, is_reused=is_reused))

    assert isinstance(outcome, Fail)
    assert outcome.error is ReplicaDied
    assert outcome.text.startswith("the replica died before its answer")


def test_every_combination_of_facts() -> None:
    """The rules in other words hold for all facts."""
    flags = [False, True]
    retries: list[Literal["auto", "always", "never"]] = ["auto", "always", "never"]
    for method, count, reused, died, kept, retry, sends, late, unsent in itertools.product(
        (b"GET", b"POST"),
        (0, 1),
        flags,
        flags,
        flags,
        retries,
        (0, 1, 2, 3),
        flags,
        (0, 1, 3, 4),
    ):
        loss = Loss(method, count, reused, died, kept, retry, sends, late, unsent)
        outcome = decide(loss)
        again = isinstance(outcome, Resend)
        if late:
            assert not again
        elif unsent in (1, 3):
            assert outcome is Resend.QUEUE
        elif unsent or count or not kept or retry == "never" or sends > 1:
            assert not again
        else:
            is_race = reused and not died
            assert again == (is_race or retry == "always" or method in IDEMPOTENT)
            assert not again or outcome is (Resend.QUEUE if died else Resend.FRESH)
        assert again or outcome == Fail(ReplicaDied if died else UpstreamFailed, outcome[1])
