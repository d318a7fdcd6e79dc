"""The table of status codes."""

from __future__ import annotations

import pytest
from grpc import StatusCode

from gateway import statuses
from gateway.grpc.codes import CODE, TEXT_MAX, failure
from registry import errors


def test_every_error_has_a_code() -> None:
    """An error that REST can answer with has a code, too, by its status."""
    assert CODE.keys() == statuses.STATUS.keys()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.BadInput("x"), StatusCode.INVALID_ARGUMENT),
        (errors.UnknownModel("x"), StatusCode.NOT_FOUND),
        (errors.QueueFull("x"), StatusCode.RESOURCE_EXHAUSTED),
        (errors.BodyTooLarge("x"), StatusCode.RESOURCE_EXHAUSTED),
        (errors.WaitBudgetOver("x"), StatusCode.UNAVAILABLE),
        (errors.FunctionFailing("x"), StatusCode.UNAVAILABLE),
        (errors.ShuttingDown("x"), StatusCode.UNAVAILABLE),
        (errors.ExecutionTimeout("x"), StatusCode.DEADLINE_EXCEEDED),
        (errors.NoKey("x"), StatusCode.UNAUTHENTICATED),
        (errors.WrongScope("x"), StatusCode.PERMISSION_DENIED),
        (errors.NotServed("x"), StatusCode.UNIMPLEMENTED),
        (errors.ReplicaDied("x"), StatusCode.INTERNAL),
        (errors.Poison("x"), StatusCode.INTERNAL),
    ],
)
def test_codes_are_those_that_clients_expect(error: errors.FnError, code: StatusCode) -> None:
    """Clients retry by the code, so it must say whose fault an error is."""
    found = failure(error)
    assert (found.code, found.metadata[0]) == (code, ("fn-problem", error.code))


def test_a_failure_says_when_to_retry() -> None:
    """The seconds are rounded up, and at least one."""
    assert ("retry-after", "1") in failure(errors.QueueFull("x", retry_after_s=0.2)).metadata
    assert ("retry-after", "3") in failure(errors.QueueFull("x", retry_after_s=2.1)).metadata


def test_what_only_administrators_may_read_is_for_them() -> None:
    """The admin's part of an error is in no other caller's text."""
    error = errors.FunctionFailing("it fails", admin_detail={"log": "secret"})
    assert "secret" not in failure(error).text
    assert "secret" in failure(error, for_admin=True).text


def test_a_text_can_always_be_sent() -> None:
    """A long text is cut, and bytes of a client that are not UTF-8 are replaced."""
    found = failure(errors.BadInput("\udcff" + "x" * 10_000)).text
    assert found.encode()
    assert len(found) < TEXT_MAX + 100
