"""What is counted of a run."""

from __future__ import annotations

from admin.advice.load_model import Figures, Process
from gateway.dispatch.call import Stage
from tests.unit.admin.advice.test_load_model_replica import ask


def test_who_was_held_waits_for_as_many_as_it_stands_for() -> None:
    """Waits of warm calls are kept and not added to those; who left waits no more."""
    figures = Figures()
    held, warm, gone = ask(1.0), ask(1.0), ask(1.0)
    held.was_held, held.weight = True, 3
    gone.stage = Stage.ABANDONED
    for one in (held, warm, gone):
        figures.waited(one, 2.0)

    assert figures.held_wait_s == 6.0
    assert list(figures.waits_s) == [2.0, 2.0]


def test_a_process_is_moving_ready_and_busy() -> None:
    """Its time from launch to end is divided; a standby has none of a function's device."""
    figures = Figures()
    process = Process("r1", "default/f@1", {}, 1.0)
    process.ready_s, process.left_s, process.busy_s = 3.0, 8.0, 2.0
    figures.gone(process, 8.5)
    figures.gone(Process("s1", "", {}, 0.0), 8.5)

    assert (figures.ready_s, figures.busy_s) == (5.0, 2.0)
    assert (figures.moving_s, figures.loading_s) == (2.5, 2.0)


def test_the_longest_time_without_a_run() -> None:
    """Per function, from the beginning on."""
    figures = Figures()
    for at_s in (4.0, 5.0, 7.0):
        figures.served("f", at_s)

    assert figures.gaps_s == {"f": 4.0}
