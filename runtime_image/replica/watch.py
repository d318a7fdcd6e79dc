"""Ends inline runs that last too long: the loop that would do it is inside them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from runtime_image.replica.runner import Run
from runtime_image.replica.worker import end_process

LOOK_S = 0.25
"""How much longer than its timeout an inline run may last before it is stopped."""


class Watch:
    """A thread that looks at the inline run that is going on, four times a second.

    Runs are told by a mere assignment, since most last microseconds. While there are none the
    thread is parked, so that an idle replica never wakes up. It is a daemon, as the worker is.
    """

    def __init__(
        self,
        stop: Callable[[Run, str], None],
        clock: Callable[[], float],
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """`stop(run, why)` ends a run and is called in the watch's thread; `pause` lets the time
        between two looks pass."""
        self._stop = stop
        self._clock = clock
        self._pause = pause
        self._run: Run | None = None
        self._parked = True
        self._wake = threading.Event()
        threading.Thread(target=self._look_on, name="watch", daemon=True).start()

    def tell(self, run: Run | None) -> None:
        """A run begins, or with None has ended; called in the loop's thread."""
        self._run = run
        if self._parked and run is not None:
            self._parked = False
            self._wake.set()

    def _look_on(self) -> None:
        try:
            while self._wake.wait():
                self._wake.clear()
                self._pause(LOOK_S)
                while self._look():
                    self._pause(LOOK_S)
        except BaseException as error:  # noqa: BLE001 - no run would be stopped any more
            end_process(error)

    def _look(self) -> bool:
        """Stop the run that is going on if its time is over; False if there is none, and then
        `tell` has to wake the thread for the next."""
        run = self._run
        if run is None:
            # In this order: either this sees the run, or `tell` sees that the thread is parked.
            self._parked = True
            return self._run is not None
        if not run.why_stopped and self._clock() >= run.began_s + run.timeout_s:
            self._stop(run, "timeout")
        return True
