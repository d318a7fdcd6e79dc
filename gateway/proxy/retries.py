"""Whether an exchange that lost its connection is sent again: one table. Pure."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, Literal, NamedTuple

from registry.errors import FnError, Poison, ReplicaDied, UpstreamFailed

Retry = Literal["auto", "always", "never"]
SENDS_MAX: Final = 2
DEATHS_MAX: Final = 2
"""Replicas that a request may kill before its body is refused."""
UNSENT_MAX: Final = 3
"""Connections of one exchange that may have ended before the request was sent. The kernel accepts
connections for a server that is being killed until its sockets are closed, so the dispatcher leaves
the replica alone for a while between two tries."""
IDEMPOTENT: Final = frozenset({b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE"})
"""RFC 9110 section 9.2.2, without TRACE, which is refused."""


class Resend(Enum):
    """Ways to send a request again."""

    FRESH = "fresh"
    """On a new connection."""
    QUEUE = "queue"
    """To any replica, from the call's old place in the queue."""


class Fail(NamedTuple):
    """The request is not sent again; `error` is the client's answer if none has begun."""

    error: type[FnError]
    text: str


class Loss(NamedTuple):
    """Facts about an exchange whose connection was lost.

    `answer_bytes`: without interim answers (1xx). `is_reused`: the connection had served another
    exchange. `died`: the replica's process is gone. `is_body_kept`: every body byte that was sent
    can be sent again. `sends`: times that the request was sent, this one included, without those
    that row 8 made good. `is_late`: the time for another
    try is over. `unsent`: number of connections of this exchange that had ended before the request
    was sent, this one included, none of which is counted in `sends`; 0 if the request was sent on
    this one. `deaths`: replicas that died before their answers, this one included, where that
    counts. `is_broken`: the connection to the replica's host broke, so that an answer may be lost.
    """

    method: bytes
    answer_bytes: int = 0
    is_reused: bool = False
    died: bool = False
    is_body_kept: bool = True
    retry: Retry = "auto"
    sends: int = 1
    is_late: bool = False
    unsent: int = 0
    deaths: int = 0
    is_broken: bool = False


class Row(NamedTuple):
    """One row of the table: `then` is the outcome where `applies`, a text for a failure."""

    applies: Callable[[Loss], bool]
    then: Resend | str


def _may_rerun(loss: Loss) -> bool:
    return loss.retry == "always" or loss.method in IDEMPOTENT


ROWS: Final = (
    # 1, 2. Nothing was sent, and the server takes connections: any method, a few tries more.
    Row(lambda it: 0 < it.unsent <= UNSENT_MAX and not it.is_late, Resend.QUEUE),
    Row(lambda it: it.unsent > 0, "{lost} before the request was sent"),
    # 3. The client may have a part of the answer.
    Row(lambda it: it.answer_bytes > 0, "{lost} in the middle of its answer"),
    # 4. A part of the body is gone.
    Row(lambda it: not it.is_body_kept, "{lost} before its answer; the body was not kept"),
    # 5. The function's settings forbid a second run. Its connections are not reused, so that
    # none is lost because it was idle.
    Row(lambda it: it.retry == "never", "{lost} before its answer; retry is never"),
    # 6, 7. It was sent again already, or there is no time.
    Row(lambda it: it.sends >= SENDS_MAX, "{lost} before its answer, twice"),
    Row(lambda it: it.is_late, "{lost} before its answer; the time to wait is over"),
    # 8. An idle connection was closed while the request was on its way: any method.
    Row(lambda it: it.is_reused and not (it.died or it.is_broken), Resend.FRESH),
    # 9, 10. The request may have been run, and may be run again.
    Row(lambda it: _may_rerun(it) and (it.died or it.is_broken), Resend.QUEUE),
    Row(_may_rerun, Resend.FRESH),
    # 11. The request may have been run, and must not be run twice.
    Row(lambda _: True, "{lost} before its answer; the request may have been run"),
)


def decide(loss: Loss) -> Resend | Fail:
    """Return what happens to an exchange after a loss: the first row that applies."""
    then = next(row.then for row in ROWS if row.applies(loss))
    if isinstance(then, Resend):
        return then
    if loss.is_broken:
        return Fail(ReplicaDied, then.format(lost="the connection to the replica's host broke"))
    if loss.died and loss.deaths >= DEATHS_MAX:
        return Fail(Poison, f"{loss.deaths} replicas died before they answered this request")
    if loss.died:
        return Fail(ReplicaDied, then.format(lost="the replica died"))
    return Fail(UpstreamFailed, then.format(lost="the function's server closed the connection"))
