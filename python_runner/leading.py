"""The main thread runs plain functions and, between them, the event loop."""

from __future__ import annotations

import asyncio
import time
from queue import Empty, SimpleQueue
from threading import Lock, get_ident
from typing import Any, Final

from python_runner.workers import Done, Job, Worker, run_job

PATIENCE_S: Final = 0.005
"""Seconds that a job may take before another thread runs the loop; twice as many at most."""


class LeadingWorker(Worker):
    """A worker that leads: its thread runs the event loop whenever it runs no job, so that a short
    call changes no thread.

    If a job takes long, the thread in `follow` runs the loop until the worker is free and nothing
    waits for it. One of the two has the loop: this worker if `leads`. Only the follower changes
    that: to False under the lock while a job runs, and back when it has left the loop. A job runs
    behind a turn of the loop, not in it: what it does with event loops of its own is its affair.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._lock = Lock()
        self._job: Job | None = None
        self._again: SimpleQueue[None] = SimpleQueue()
        self._is_asleep = False

    def run(self) -> None:
        """Run jobs and the loop until `stop`. The follower has the loop before."""
        self.thread = get_ident()
        self._loop.call_soon_threadsafe(self.rest)
        while True:
            given: Any = self._lead() if self.leads else self.jobs.get()
            if given is None:
                return
            if given is not _LOOK:
                self._run(*given)
            del given  # what the loop has by now must not live until the next call

    def begin(self, job: Job, done: Done) -> None:
        """Give the thread a job, which it runs behind this turn of the loop."""
        self.jobs.put((job, done))
        self._end_turn()

    def rest(self) -> None:
        """Give the loop back to the worker."""
        if not self.leads:
            self._loop.stop()

    def stop(self) -> None:
        """End the thread behind its present job."""
        self.jobs.put(None)
        self._end_turn()

    def follow(self) -> None:
        """Run the loop while a job takes long, never to return. The thread has had the loop."""
        while True:
            self.leads = True
            self.jobs.put(_LOOK)  # type: ignore[arg-type]
            while not self._takes_long():
                pass
            self._loop.run_forever()

    def _lead(self) -> Any:
        """Return what to do next."""
        if not self.jobs.empty():
            self._loop.stop()  # one turn between two jobs
        self._loop.run_forever()
        try:
            return self.jobs.get_nowait()
        except Empty:
            return _LOOK

    def _run(self, job: Job, done: Done) -> None:
        self._job = job
        if self._is_asleep:
            self._is_asleep = False
            self._again.put(None)
        value, failed = run_job(job)
        with self._lock:
            self._job = None
        if not self.leads:
            self._loop.call_soon_threadsafe(done, self, job, value, failed)
            return
        try:
            done(self, job, value, failed)
        except Exception as error:  # noqa: BLE001 - as the loop treats that of a callback
            self._loop.call_exception_handler({"message": "a call failed", "exception": error})

    def _end_turn(self) -> None:
        if self.leads:
            self._loop.stop()

    def _takes_long(self) -> bool:
        """Return whether one job runs now and has run for `PATIENCE_S`: the loop is this thread's.
        Sleeps until a job runs."""
        if self._job is None:
            self._is_asleep = True
            if self._job is None:
                self._again.get()
            self._is_asleep = False
        job = self._job
        time.sleep(PATIENCE_S)
        with self._lock:
            if job is None or job is not self._job:
                return False
            self.leads = False
        if self.on_long is not None:
            self.on_long(self, job)
        return True


_LOOK: Final = object()
"""Instead of a job: look who has the loop."""
