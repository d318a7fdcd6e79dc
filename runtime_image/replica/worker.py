"""A thread for one kind of work: loading and running, or decoding."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from runtime_image.replica.faults import end_process


class Worker:
    """Runs one piece of work at a time, in order; the owner submits the next when one is done.

    A daemon thread: a run that never returns must not keep a process alive that has decided to go.
    Whatever a piece of work raises ends the process: nothing would run any more, in silence.
    """

    def __init__(self, name: str = "worker") -> None:
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], None]) -> None:
        """Run `work` after what was submitted before; it reports its own errors."""
        self._work.put(work)

    def _run(self) -> None:
        try:
            while True:
                self._work.get()()
        except BaseException as error:  # noqa: BLE001 - a handler's code may raise anything
            end_process(error)
