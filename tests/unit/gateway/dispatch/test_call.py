"""One accepted request as a record."""

from __future__ import annotations

from gateway.dispatch.call import Call, Priority, Stage
from runtime_image.link.meta import RequestMeta

META = RequestMeta("application/json", "", -1, "")


def call() -> Call:
    return Call("default/a@1", META, b"{}", 0.0, 55.0, 60.0)


def test_calls_are_told_apart_by_identity() -> None:
    """Two clients may send the same bytes; their calls are not equal."""
    one, other = call(), call()

    assert one != other
    assert len({one, other}) == 2


def test_a_new_call_waits() -> None:
    """It has normal priority, has never been sent and may be run again."""
    new = call()

    assert (new.stage, new.priority) == (Stage.QUEUED, Priority.NORMAL)
    assert (new.sends, new.deaths, new.may_rerun, new.alone) == (0, 0, True, False)


def test_high_comes_before_low() -> None:
    """Priorities are in the order in which they are preferred."""
    assert sorted(Priority) == [Priority.HIGH, Priority.NORMAL, Priority.LOW]
