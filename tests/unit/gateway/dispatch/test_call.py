"""One accepted request as a record."""

from __future__ import annotations

from gateway.dispatch.call import AGAIN_S, Call, Priority, Stage
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


def test_a_call_that_had_begun_is_no_longer_bound_by_its_wait_budget() -> None:
    """Behind a stuck run of its own length it still gets its turn; a longer budget stays."""
    short, long = call(), call()
    short.wait_until_s, long.wait_until_s = 2.0, 1000.0

    short.run_alone(50.0)
    long.run_alone(50.0)

    assert (short.alone, short.wait_until_s) == (True, 50.0 + 60.0 + AGAIN_S)
    assert long.wait_until_s == 1000.0
