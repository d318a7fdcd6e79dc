"""An error as it is shown, with what is known of its cause. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from gateway.observing.failures import Failure
from pool_manager.telling.journal import Decision
from registry.errors import Poison, ReplicaDied
from registry.model import pool_key

DEATHS: Final = frozenset({ReplicaDied.code, Poison.code})


def pool_of(failure: Failure) -> str:
    """The pool of the revision that failed."""
    number = failure.revision.rpartition("@")[2]
    return pool_key(failure.namespace, failure.function, int(number))


def failure_json(failure: Failure, decisions: Sequence[Decision]) -> dict[str, Any]:
    """As an item of a function's errors; `decisions` are those of its pool, the oldest first."""
    return {
        "at_s": round(failure.at_s, 3),
        "code": failure.code,
        "detail": explained(failure, decisions),
        "revision": failure.revision,
        "replica": failure.replica,
        "request_id": failure.request_id,
        "count": failure.count,
    }


def explained(failure: Failure, decisions: Sequence[Decision]) -> str:
    """The detail, and of a replica that died how: that is heard of later than its end, and by the
    pool manager alone."""
    if failure.code in DEATHS and failure.replica:
        beginning = f"{failure.replica} ended: "
        for decision in reversed(decisions):
            if decision.text.startswith(beginning):
                is_told = decision.text.removeprefix(beginning) in failure.detail
                return failure.detail if is_told else f"{failure.detail}: {decision.text}"
    return failure.detail
