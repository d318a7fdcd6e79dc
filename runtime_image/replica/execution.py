"""Execution of accepted jobs: decoded, run and answered in the loop or in threads.

`StuckRunWatch` stops inline runs that last too long, since the loop is inside them.
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
"""Bytes; decoding more than this would hold up the loop longer than a thread hop costs."""
BINARY_BODY_MAX = 1024 * 1024
"""The same bound for a body without JSON, which becomes an array as a view."""
STOP_GRACE_S = 1.0
"""How long a stopped run may take to end before the replica gives itself up."""

NEVER = float("inf")
CHECK_S = 0.25
"""How much longer than its timeout an inline run may last before it is stopped."""


class Execution:
    """Takes jobs from the intake and runs them, one batch at a time, greedily.

    Models whose runs are short run in the loop. All others run in the worker thread, which takes
    one batch after the other from a backlog: while it runs one, the loop decodes the next and
    encodes the answers of the last. Jobs that take long to decode have a thread of their own.
    A run that lasts too long is stopped: one in the thread by the loop's alarm, an inline one by
    a `StuckRunWatch`. Jobs that arrive while a batch runs form the next one; a batch waits for more
    only if the manifest says so.

    `started(jobs)` is called, in any thread, before a batch begins that is not run in the loop. It
    returns once the gateways were told: if the run kills this process, they know the suspects.
    `emit` receives every job's outcome in the loop's thread. `stuck(run)` is called when a stopped
    run does not end.
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
        # A handler may not run twice for one request, so the answers of a batch leave before the
        # next is marked: else its requests would count as suspects.
        self._goes_on = not spec.handler and not spec.batch_wait_ms
        self._inline_watch = StuckRunWatch(runner.stop, loop.clock) if spec.inline else None

    def pump(self) -> None:
        """Decode and start as many waiting jobs as possible; called at the end of every turn."""
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
        """A batch with a job that needs the thread goes there as a whole."""
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
        """Decode all waiting jobs in the loop, except long ones and those that must run alone: one
        of these may have killed another replica, and is marked before the worker decodes it."""
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
        """In the thread for decoding. The job is marked first: a picture that kills its decoder
        kills the process. The turn that the post causes wakes the worker."""
        if not job.cancelled:
            self._started([job])
        ended: list[Callable[[], None]] = [_nothing]
        items = self._runner.decode(
            [job], lambda job, outcome: ended.append(lambda: self._emit(job, outcome))
        )
        self._backlog.add(Entry(job, item, is_marked=True) for item in items)
        self._loop.post(lambda: _do_all(ended))

    def _waits_for_more(self, first: Job, count: int) -> bool:
        """Whether an unfilled batch may wait longer, by the manifest's `wait_ms`.

        It does not wait if its first job must run alone, nor when no more jobs can come.
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
        """The end of this turn calls `pump`."""
        self._will_wake = False

    def _wake_worker(self) -> None:
        begun = self._backlog.begin(self._runner.batch_max)
        if begun:
            self._begun = begun  # no closure, which would keep the bodies for as long as it works
            self._worker.submit(self._work)

    def _work(self) -> None:
        """In the worker thread: run batches until the backlog is empty, or one if the loop decides
        about the next."""
        entries, self._begun = self._begun, []
        while entries:
            self._run_batch(entries)
            entries = self._backlog.take(self._runner.batch_max if self._goes_on else 0)
        self._results.append(_nothing)
        self._hand_over()

    def _run_batch(self, entries: list[Entry]) -> None:
        """Results are held until the next run begins: before it the worker needs the interpreter,
        during it the loop can have it."""
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
        # Else large inputs stay in memory until the loop has answered, while more arrive.
        for item in done.members:
            item.arrays = item.lists = None
            if isinstance(item.job.body, bytes | bytearray):  # the owner releases a view
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
        """Post all results to the loop at once: each wake-up costs a system call."""
        results, self._results = self._results, []
        if results:
            self._loop.post(lambda: _do_all(results))

    def _register(self, run: Run | None) -> None:
        """In the worker thread: register the run that begins, or None when it has ended.

        The order matters, and the loop's is the reverse: either this sees that the alarm has rung
        or a job was cancelled, or the loop sees the run.
        """
        self._current = run
        if run is None:
            return
        if run.began_s + run.timeout_s < self._alarm_s:
            self._loop.post(lambda: self._set_alarm(run))
        self.stop_unwanted()

    def _set_alarm(self, run: Run) -> None:
        """One alarm serves all runs: a timer for each would hold its requests' bodies until it
        is due, long after they were answered."""
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
    """Posted to wake the loop: the turn itself is wanted."""


def _do_all(results: list[Callable[[], None]]) -> None:
    for result in results:
        result()


def _is_media(job: Job) -> bool:
    return job.meta.content_type.startswith(("image/", "audio/"))


def _needs_thread(job: Job) -> bool:
    """Whether the job would block the loop, or must be marked before it runs."""
    return job.alone or _is_media(job) or len(job.body) > INLINE_BODY_MAX


def _is_long(job: Job) -> bool:
    """Whether decoding the job takes long enough for a thread."""
    size, meta = len(job.body), job.meta
    if size <= INLINE_BODY_MAX:
        return _is_media(job)
    text = meta.json_length if meta.json_length >= 0 else size
    is_text = meta.json_length >= 0 or not meta.content_type or "json" in meta.content_type.lower()
    return size > BINARY_BODY_MAX or _is_media(job) or (is_text and text > INLINE_BODY_MAX)


class StuckRunWatch:
    """A thread that checks the current inline run four times a second.

    A run is registered by an assignment, since most last microseconds. Without runs the thread is
    parked, so that an idle replica never wakes up. It is a daemon thread, as the worker is.
    """

    def __init__(
        self,
        stop: Callable[[Run, str], None],
        clock: Callable[[], float],
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """`stop(run, why)` ends a run and is called in this thread; `pause` sleeps between two
        checks."""
        self._stop = stop
        self._clock = clock
        self._pause = pause
        self._run: Run | None = None
        self._parked = True
        self._wake = threading.Event()
        threading.Thread(target=self._keep_checking, name="watch", daemon=True).start()

    def on_run(self, run: Run | None) -> None:
        """Register the run that begins, or None when it has ended; in the loop's thread."""
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
        except BaseException as error:  # noqa: BLE001 - no run would be stopped any more
            end_process(error)

    def _check(self) -> bool:
        """Stop the current run if its time is over; False without a run, and then `on_run` has to
        wake the thread for the next."""
        run = self._run
        if run is None:
            # In this order: either this sees the run, or `on_run` sees that the thread is parked.
            self._parked = True
            return self._run is not None
        if not run.why_stopped and self._clock() >= run.began_s + run.timeout_s:
            self._stop(run, "timeout")
        return True
