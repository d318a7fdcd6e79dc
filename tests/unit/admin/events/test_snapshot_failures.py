from __future__ import annotations

import msgspec
import pytest

from admin.events.snapshot import explained, failure_json, pool_of
from gateway.observing.errors import Failure
from pool_manager.reports import Decision

FAILURE = Failure("default", "digits", "digits@3", "replica_died", 1.23456, "it died", "a1", "q", 2)
DECISIONS = [
    Decision(1.0, "a1 ended: was killed by SIGTERM"),
    Decision(2.0, "a1 ended: was killed by SIGKILL"),
    Decision(3.0, "b2 ended: exited with code 0"),
]


def test_an_error_is_shown_with_its_cause() -> None:
    """How the replica ended is what explains the error."""
    assert failure_json(FAILURE, DECISIONS) == {
        "at_s": 1.235,
        "code": "replica_died",
        "detail": "it died: a1 ended: was killed by SIGKILL",
        "revision": "digits@3",
        "replica": "a1",
        "request_id": "q",
        "count": 2,
    }
    assert pool_of(FAILURE) == "default/digits@3"


def test_a_cause_that_the_client_was_told_is_not_repeated() -> None:
    """The error says it already."""
    told = msgspec.structs.replace(FAILURE, detail="it died: it was killed by SIGKILL")

    assert explained(told, DECISIONS) == "it died: it was killed by SIGKILL"


@pytest.mark.parametrize(
    ("code", "replica"), [("queue_full", "a1"), ("poison", ""), ("poison", "c3")]
)
def test_other_errors_speak_for_themselves(code: str, replica: str) -> None:
    """Those of living replicas, of none, and of one whose end nobody told."""
    failure = Failure("default", "digits", "digits@3", code, 1.0, "it died", replica, "q")

    assert explained(failure, DECISIONS) == "it died"
