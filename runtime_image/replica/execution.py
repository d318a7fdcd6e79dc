"""Execution of accepted jobs: schedules decoding, runs and encoding on the loop and on threads.

`StuckRunWatch` stops inline runs that exceed their timeout, because the loop is busy with them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from runtime_image.contract.model import ModelSpec
from runtime_image.replica.intake import Intake, Job
from runtime_image.replica.loop import Loop
from runtime_image.replica.runner import Run, Runner
from runtime_image.replica.stages import Backlog, Done, Entry, Outcome, is_short
from runtime_image.replica.worker import Worker, end_process

INLINE_BODY_MAX = 16 * 1024
"""Max bytes of a body decoded in the loop; more would block it longer than a thread hop costs."""
BINARY_BODY_MAX = 1024 * 1024
"""The same limit for a body without JSON, which becomes an array as a view, without copying."""
STOP_GRACE_S = 1.0
"""Seconds that a stopped run has to end before the replica exits."""

NEVER = float("inf")
CHECK_S = 0.25
"""Interval between two checks of an inline run, thus the max delay of its stop after its
timeout."""


class Execution:
    """Takes jobs from the intake and runs them, one batch at a time, greedily.

    Models with short runs (`inline`) run in the loop. All others run in the worker thread, which
    takes batch after batch from a backlog: while it runs one, the loop decodes the next one and
    encodes the answers of the previous one. Jobs that take long to decode have a separate thread.
    A run that exceeds its timeout is stopped: by the loop's alarm if it runs in the thread, by
    `StuckRunWatch` if it is inline. Jobs that arrive while a batch runs form the next one; a batch
    waits for more rows only if the manifest says so.

    `started(jobs)` is called, in any thread, before a batch starts outside the loop. It returns
    after the gateways were notified: if the run kills this process, they know the suspected
    requests. `emit` receives every job's outcome in the loop's thread. `stuck(run)` is called if a
    stopped run does not end.
    """

    def __init__(  # noqa: PLR0913 - the composition of the replica's parts
        self,
        loop: Loop,
        worker: Worker,
        intake: Intake,
        runner: Runner,
        spec: ModelSpec,
        *,
        started: Callable[[list[Job]], None],
        emit: Callable[[Job, Outcome], None],
        stuck: Callable[[Run], None],
    ) -> None:
        self._loop = loop
        self._worker = worker
        self._intake = intake
        self._runner = runner
        self._spec = spec
        self._started = started
        self._emit = emit
        self._stuck = stuck
        self._backlog = Backlog()
        self._decoding: Worker | None = None
        self._begun: list[Entry] = []
        self._results: list[Callable[[], None]] = []
        self._current: Run | None = None
        self._alarm_s = NEVER
        self._will_wake = False
        # A handler may not run twice for one request. So the answers of a batch are sent before the
        # next batch is marked as started: if that one dies, answered requests are not suspects.
        self._goes_on = not spec.handler and not spec.batch_wait_ms
        self._inline_watch = StuckRunWatch(runner.stop, loop.clock) if spec.inline else None

    def pump(self) -> None:
        """Decode and start as many waiting jobs as possible. Called at the end of every loop
        turn."""
        if self._inline_watch is None:
            self._decode_ahead()
        else:
            self._run_inline(self._inline_watch)
        first = self._backlog.first
        if first is not None and not self._waits_for_more(first, len(self._backlog)):
            self._wake_worker()

    def withdraw(self, job: Job) -> bool:
        """Remove `job` from the backlog; False if its run has begun or it is being decoded."""
        return self._backlog.withdraw(job)

    def hand_back(self) -> list[Job]:
        """Empty the backlog and return its jobs."""
        return self._backlog.clear()

    def stop_unwanted(self) -> None:
        """Stop the current run if all of its jobs were cancelled."""
        run = self._current
        if run is not None and not run.why_stopped and all(job.cancelled for job in run.jobs):
            self._runner.stop(run, "cancelled")

    def _run_inline(self, watch: StuckRunWatch) -> None:
        """Run waiting jobs in the loop. A batch with one job for the thread goes to it as a
        whole."""
        waiting = self._intake.waiting
        while waiting and not self._is_busy and not self._waits_for_more(waiting[0], len(waiting)):
            jobs = self._intake.take(self._runner.batch_max)
            if any(map(_needs_thread, jobs)):
                self._backlog.add(map(Entry, jobs))
                self._wake_worker()
            else:
                self._runner.run(jobs, self._emit, watch.on_run)

    @property
    def _is_busy(self) -> bool:
        return self._backlog.is_worked

    def _decode_ahead(self) -> None:
        """Decode waiting jobs in the loop, except long ones and those that must run alone.

        A job that must run alone may have killed another replica; the worker marks it as started
        before it decodes it.
        """
        if not self._intake.waiting:
            return
        jobs = self._intake.take_all()
        short = [job for job in jobs if not job.alone and not _is_long(job)]
        decoded = {item.job: item for item in self._runner.decode(short, self._emit)}
        self._backlog.add(
            Entry(job, decoded.get(job)) for job in jobs if job.alone or job in decoded
        )
        for job in jobs:
            if not job.alone and _is_long(job):
                self._decode_elsewhere(job)

    def _decode_elsewhere(self, job: Job) -> None:
        if self._decoding is None:
            self._decoding = Worker("decoding")
        self._decoding.submit(lambda: self._decode_long(job))

    def _decode_long(self, job: Job) -> None:
        """Decode one job, in the decoding thread.

        The job is marked as started first: a picture that crashes its decoder kills the process.
        The loop turn caused by `post` wakes the worker.
        """
        if not job.cancelled:
            self._started([job])
        ended: list[Callable[[], None]] = [_nothing]
        items = self._runner.decode(
            [job], lambda job, outcome: ended.append(lambda: self._emit(job, outcome))
        )
        self._backlog.add(Entry(job, item, is_marked=True) for item in items)
        self._loop.post(lambda: _do_all(ended))

    def _waits_for_more(self, first: Job, count: int) -> bool:
        """Whether a partial batch may wait longer, by the manifest's `wait_ms`.

        It does not wait if its first job must run alone, or if the replica drains.
        """
        if not self._spec.batch_wait_ms or count >= self._runner.batch_max:
            return False
        if first.alone or self._intake.draining:
            return False
        left_s = first.arrived_s + self._spec.batch_wait_ms / 1e3 - self._loop.clock()
        if left_s > 0 and not self._will_wake:
            self._will_wake = True
            self._loop.after(left_s, self._wake)
        return left_s > 0

    def _wake(self) -> None:
        """Timer callback; the end of this turn calls `pump`."""
        self._will_wake = False

    def _wake_worker(self) -> None:
        begun = self._backlog.begin(self._runner.batch_max)
        if begun:
            self._begun = begun  # not in a closure, which would keep the bodies during the work
            self._worker.submit(self._work)

    def _work(self) -> None:
        """In the worker thread: run batches until the backlog is empty; only one batch if the loop
        decides about the next (`_goes_on` is False)."""
        entries, self._begun = self._begun, []
        while entries:
            self._run_batch(entries)
            entries = self._backlog.take(self._runner.batch_max if self._goes_on else 0)
        self._results.append(_nothing)
        self._hand_over()

    def _run_batch(self, entries: list[Entry]) -> None:
        """Run one batch. Its results are held until the next run begins: before a run the worker
        needs the interpreter lock, during a run the loop can have it."""
        unmarked = [entry.job for entry in entries if not entry.is_marked]
        if unmarked:
            self._started(unmarked)
        raw = [entry.job for entry in entries if entry.decoded is None]
        items = [entry.decoded for entry in entries if entry.decoded is not None]
        if raw:
            self._hand_over()
            items += self._runner.decode(raw, self._keep)
        self._runner.run_decoded(items, self._keep, self._on_run, self._deliver)

    def _keep(self, job: Job, outcome: Outcome) -> None:
        self._results.append(lambda: self._emit(job, outcome))

    def _deliver(self, done: Done) -> None:
        # Otherwise large inputs stay in memory until the loop has answered, while more arrive.
        for item in done.members:
            item.arrays = item.lists = None
            if isinstance(item.job.body, bytes | bytearray):  # views are released by their owner
                item.job.body = b""
        if is_short(done):
            self._results.append(lambda: self._runner.answer(done, self._emit))
        else:
            self._runner.answer(done, self._keep)

    def _on_run(self, run: Run | None) -> None:
        self._register(run)
        if run is not None:
            self._hand_over()

    def _hand_over(self) -> None:
        """Post all results to the loop in one call: each wake-up costs a system call."""
        results, self._results = self._results, []
        if results:
            self._loop.post(lambda: _do_all(results))

    def _register(self, run: Run | None) -> None:
        """In the worker thread: register the run that begins, or None when it has ended.

        This writes `_current` and then reads the alarm and the cancelled jobs; the loop does the
        reverse. So either this sees an expired alarm or a cancelled job, or the loop sees the run.
        """
        self._current = run
        if run is None:
            return
        if run.began_s + run.timeout_s < self._alarm_s:
            self._loop.post(lambda: self._set_alarm(run))
        self.stop_unwanted()

    def _set_alarm(self, run: Run) -> None:
        """Set the one alarm of all runs. A timer per run would hold the bodies of its requests
        until it is due, long after they were answered."""
        due_s = run.began_s + run.timeout_s
        if due_s < self._alarm_s:
            self._alarm_s = due_s
            self._loop.after(max(0.0, due_s - self._loop.clock()), self._ring)

    def _ring(self) -> None:
        self._alarm_s = NEVER
        run = self._current
        if run is None or run.why_stopped == "timeout":
            return
        if run.began_s + run.timeout_s > self._loop.clock():
            self._set_alarm(run)
            return
        self._runner.stop(run, "timeout")
        self._loop.after(STOP_GRACE_S, lambda: self._give_up(run))

    def _give_up(self, run: Run) -> None:
        if self._current is run:
            self._stuck(run)


def _nothing() -> None:
    """Do nothing. Posted to wake the loop, whose turn then continues."""


def _do_all(results: list[Callable[[], None]]) -> None:
    for result in results:
        result()


def _is_media(job: Job) -> bool:
    return job.meta.content_type.startswith(("image/", "audio/"))


def _needs_thread(job: Job) -> bool:
    """Whether the job would block the loop, or must be marked as started before it runs."""
    return job.alone or _is_media(job) or len(job.body) > INLINE_BODY_MAX


def _is_long(job: Job) -> bool:
    """Whether decoding the job takes long enough to use a thread."""
    size, meta = len(job.body), job.meta
    if size <= INLINE_BODY_MAX:
        return _is_media(job)
    text = meta.json_length if meta.json_length >= 0 else size
    is_text = meta.json_length >= 0 or not meta.content_type or "json" in meta.content_type.lower()
    return size > BINARY_BODY_MAX or _is_media(job) or (is_text and text > INLINE_BODY_MAX)


class StuckRunWatch:
    """Thread that checks the current inline run four times a second.

    Registering a run is a single assignment, because most runs last microseconds. Without runs the
    thread is parked, so that an idle replica never wakes up. It is a daemon thread, like the
    worker.
    """

    def __init__(
        self,
        stop: Callable[[Run, str], None],
        clock: Callable[[], float],
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """`stop(run, why)` ends a run and is called in this thread; `pause(seconds)` sleeps between
        two checks."""
        self._stop = stop
        self._clock = clock
        self._pause = pause
        self._run: Run | None = None
        self._parked = True
        self._wake = threading.Event()
        threading.Thread(target=self._keep_checking, name="watch", daemon=True).start()

    def on_run(self, run: Run | None) -> None:
        """In the loop's thread: register the run that begins, or None when it has ended."""
        self._run = run
        if self._parked and run is not None:
            self._parked = False
            self._wake.set()

    def _keep_checking(self) -> None:
        try:
            while self._wake.wait():
                self._wake.clear()
                self._pause(CHECK_S)
                while self._check():
                    self._pause(CHECK_S)
        except BaseException as error:  # noqa: BLE001 - this thread must not end alone
            end_process(error)

    def _check(self) -> bool:
        """Stop the current run if it exceeded its timeout. False without a run: the thread parks
        and `on_run` must wake it for the next one."""
        run = self._run
        if run is None:
            # In this order: either this sees a new run, or `on_run` sees that the thread is parked.
            self._parked = True
            return self._run is not None
        if not run.why_stopped and self._clock() >= run.began_s + run.timeout_s:
            self._stop(run, "timeout")
        return True
