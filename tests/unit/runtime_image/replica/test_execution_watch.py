"""Watch over inline runs that take too long."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from runtime_image.link.meta import RequestMeta
from runtime_image.replica.execution import CHECK_S, StuckRunWatch
from runtime_image.replica.intake import Job
from runtime_image.replica.runner import Run

WAIT_S = 60.0


class Rig:
    """A watch whose checks the test releases one by one."""

    def __init__(self) -> None:
        self.now = 100.0
        self.stopped: list[tuple[Run, str]] = []
        self.pauses: list[float] = []
        self._paused = threading.Semaphore(0)
        self._go_on = threading.Semaphore(0)
        self.watch = StuckRunWatch(self._stop, lambda: self.now, self._pause)

    def begin(self) -> Run:
        """Start a run with a timeout of 5 s."""
        meta = RequestMeta("application/json", "", -1, "")
        run = Run([Job(1, 1, meta, b"", 5.0, self.now)], None, self.now)
        self.watch.on_run(run)
        return run

    def until_paused(self) -> None:
        assert self._paused.acquire(timeout=WAIT_S)

    def look(self) -> None:
        """Release one check and wait for the next pause; valid only during a run."""
        self._go_on.release()
        self.until_paused()

    def last_look(self) -> None:
        """Release one check that finds no run, so that the watch parks."""
        self._go_on.release()

    def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self._paused.release()
        assert self._go_on.acquire(timeout=WAIT_S)

    def _stop(self, run: Run, why: str) -> None:
        run.why_stopped = why
        self.stopped.append((run, why))


@pytest.fixture
def rig() -> Any:
    """A watch with manual checks."""
    return Rig()


def test_a_run_is_stopped_once_when_its_time_is_over(rig: Rig) -> None:
    """A run is stopped at its timeout, not earlier, and only once."""
    run = rig.begin()
    rig.until_paused()
    rig.now += 4.9
    rig.look()
    early = list(rig.stopped)
    rig.now += 0.1
    rig.look()
    rig.look()
    rig.watch.on_run(None)
    rig.last_look()

    assert early == []
    assert rig.stopped == [(run, "timeout")]
    assert set(rig.pauses) == {CHECK_S}


def test_the_watch_parks_without_runs(rig: Rig) -> None:
    """After a check without a run the watch waits for the next run."""
    rig.begin()
    rig.until_paused()
    rig.watch.on_run(None)
    rig.last_look()
    rig.begin()
    rig.until_paused()
    rig.watch.on_run(None)
    rig.last_look()

    assert len(rig.pauses) == 2


def test_short_runs_one_after_the_other_are_left_alone(rig: Rig) -> None:
    """Each of several short runs has its own timeout, whatever their sum."""
    for _ in range(3):
        rig.now += 4.0
        rig.watch.on_run(None)
        rig.begin()
        if not rig.pauses:
            rig.until_paused()
        rig.look()
    rig.watch.on_run(None)
    rig.last_look()

    assert rig.stopped == []
