"""Tests of a call, and of the link that carries it."""

from __future__ import annotations

from gateway.dispatch.call import RERUN_WAIT_S, Call, Link, Priority, Stage
from runtime_image.contract.link import ID_MAX
from runtime_image.link.meta import RequestMeta

META = RequestMeta("application/json", "", -1, "")


def call() -> Call:
    return Call("default/a@1", META, b"{}", 0.0, 55.0, 60.0)


def test_calls_compare_by_identity() -> None:
    """Two calls with the same bytes are not equal."""
    one, other = call(), call()

    assert one != other
    assert len({one, other}) == 2


def test_a_new_call_is_queued() -> None:
    """A new call has normal priority, was never sent and may be run again."""
    new = call()

    assert (new.stage, new.priority) == (Stage.QUEUED, Priority.NORMAL)
    assert (new.sends, new.deaths, new.may_rerun, new.alone) == (0, 0, True, False)


def test_high_comes_before_low() -> None:
    """Priorities sort in the order in which they are served."""
    assert sorted(Priority) == [Priority.HIGH, Priority.NORMAL, Priority.LOW]


def test_a_rerun_extends_the_wait_budget() -> None:
    """A call to be run again may wait for one run of its own length; a longer budget stays."""
    short, long = call(), call()
    short.wait_until_s, long.wait_until_s = 2.0, 1000.0

    short.run_alone(50.0)
    long.run_alone(50.0)

    assert (short.alone, short.wait_until_s) == (True, 50.0 + 60.0 + RERUN_WAIT_S)
    assert long.wait_until_s == 1000.0


def link(last_id: int = 0, *in_flight: int) -> Link:
    made = Link("r1", "default/a@1", 2, marks_started=True, last_id=last_id)
    for id in in_flight:
        made.in_flight[id] = Call("default/a@1", META, b"", 0.0, 55.0, 60.0, id=id)
    return made


def test_ids_start_at_one_and_go_up() -> None:
    """Id 0 stands for the link itself and is never assigned."""
    made = link()

    assert [made.send(call(), 0.0).id for _ in range(2)] == [1, 2]


def test_ids_wrap_and_skip_those_in_use() -> None:
    """After the largest id follows the smallest free one."""
    made = link(ID_MAX - 1, 1, 2)

    assert [made.send(call(), 0.0).id for _ in range(2)] == [ID_MAX, 3]


def test_sent_after_returns_later_calls_in_order() -> None:
    """Only later calls are returned, in the order of their sends."""
    assert [call.id for call in link(7, 4, 6, 5, 7).sent_after(5)] == [6, 7]


def test_sent_after_works_across_the_wrap() -> None:
    """An id after the wrap is later than one before it, and not vice versa."""
    made = link(2, ID_MAX - 1, ID_MAX, 1, 2)

    assert [call.id for call in made.sent_after(ID_MAX)] == [1, 2]
    assert [call.id for call in made.sent_after(1)] == [2]
