"""When and where accepted jobs run: inline in the loop, or in the worker thread."""

from __future__ import annotations

from collections.abc import Callable

from runtime_image.contract.model import ModelSpec
from runtime_image.replica.intake import Intake, Job
from runtime_image.replica.loop import Loop
from runtime_image.replica.runner import Outcome, Run, Runner
from runtime_image.replica.watch import Watch
from runtime_image.replica.worker import Worker

INLINE_BODY_MAX = 16 * 1024
"""Bytes; decoding more than this would hold up the loop longer than a thread hop costs."""
STOP_GRACE_S = 1.0
"""How long a stopped run may take to end before the replica gives itself up."""

NEVER = float("inf")


class Execution:
    """Takes what waits in the intake and runs it, one batch at a time, greedily.

    A run that lasts too long is stopped: one in the thread by the loop's alarm, an inline one by
    a watch. What arrives while a batch runs forms the next one; nothing waits for company unless
    the manifest says so. `started(jobs)` is called before a batch goes to the thread and must have
    told the gateways when it returns: if the run kills this process, they then know whom to
    suspect. `emit` receives every job's outcome in the loop's thread. `stuck(run)` is called when
    a stopped run does not end.
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
        self._busy = False
        self._current: Run | None = None
        self._alarm_s = NEVER
        self._will_wake = False
        self._inline_watch = Watch(runner.stop, loop.clock) if spec.inline else None

    def pump(self) -> None:
        """Run what waits, unless the thread is busy; called at the end of every turn."""
        while self._intake.waiting and not self._busy and not self._waits_for_more():
            jobs = self._intake.take(self._spec.batch_max)
            if self._spec.inline and not any(map(_needs_thread, jobs)):
                self._runner.run(jobs, self._emit, self._tell_watch)
            else:
                self._busy = True
                self._started(jobs)
                self._worker.submit(lambda jobs=jobs: self._run_in_thread(jobs))  # type: ignore[misc]  # a bound default is not inferred

    def _tell_watch(self, run: Run | None) -> None:
        assert self._inline_watch is not None
        self._inline_watch.tell(run)

    def _waits_for_more(self) -> bool:
        """Whether an unfilled batch may still wait for company, as the manifest's `wait_ms` says.

        Nobody waits for a request that must run alone, nor once no more can come.
        """
        waiting = self._intake.waiting
        if not self._spec.batch_wait_ms or len(waiting) >= self._spec.batch_max:
            return False
        if waiting[0].alone or self._intake.draining:
            return False
        left_s = waiting[0].arrived_s + self._spec.batch_wait_ms / 1e3 - self._loop.clock()
        if left_s > 0 and not self._will_wake:
            self._will_wake = True
            self._loop.after(left_s, self._wake)
        return left_s > 0

    def _wake(self) -> None:
        """The end of this turn pumps again."""
        self._will_wake = False

    def stop_unwanted(self) -> None:
        """End the run that is going on if every one of its jobs was cancelled."""
        run = self._current
        if run is not None and not run.why_stopped and all(job.cancelled for job in run.jobs):
            self._runner.stop(run, "cancelled")

    def _run_in_thread(self, jobs: list[Job]) -> None:
        """Outcomes are handed over run by run: waking the loop for each costs a system call."""
        ended: list[tuple[Job, Outcome]] = []

        def hand_over() -> None:
            outcomes = ended.copy()
            ended.clear()
            if outcomes:
                self._loop.post(lambda: self._emit_all(outcomes))

        def on_run(run: Run | None) -> None:
            hand_over()
            self._loop.post(lambda: self._watch(run))

        self._runner.run(jobs, lambda job, outcome: ended.append((job, outcome)), on_run)
        hand_over()
        self._loop.post(self._done)

    def _emit_all(self, outcomes: list[tuple[Job, Outcome]]) -> None:
        for job, outcome in outcomes:
            self._emit(job, outcome)

    def _done(self) -> None:
        self._busy = False

    def _watch(self, run: Run | None) -> None:
        self._current = run
        if run is not None:
            self._set_alarm(run)
            # Its jobs may have been cancelled after it began and before the loop heard of it.
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


def _needs_thread(job: Job) -> bool:
    """Whether it would hold up the loop, or must be marked before it runs."""
    is_media = job.meta.content_type.startswith(("image/", "audio/"))
    return job.alone or is_media or len(job.body) > INLINE_BODY_MAX
