"""Runs plain functions in threads: the main thread first, which loaded the handler."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from queue import SimpleQueue
from typing import Any

from runtime_image.contract.errors import EXECUTION_TIMEOUT, RequestError


class Deadline:
    """The end of the time of one run. `is_over`: it was late."""

    __slots__ = ("at_s", "is_over", "late")

    def __init__(self, at_s: float, late: Callable[[], object]) -> None:
        self.at_s = at_s
        self.late = late
        self.is_over = False


class Deadlines:
    """Runs that may take `timeout_s` seconds each: one timer for all, since they end in order."""

    def __init__(self, timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._open: dict[Deadline, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, late: Callable[[], object]) -> Deadline:
        """Call `late` in `timeout_s` seconds unless the run has ended."""
        deadline = Deadline(self._loop.time() + self._timeout_s, late)
        self._open[deadline] = None
        if self._timer is None:
            self._timer = self._loop.call_at(deadline.at_s, self._look)
        return deadline

    def end(self, deadline: Deadline) -> None:
        """End a run."""
        self._open.pop(deadline, None)

    def error(self) -> RequestError:
        """Return what its caller is told."""
        text = f"predict took longer than {self._timeout_s:g} s (timeout_s)"
        return RequestError(EXECUTION_TIMEOUT, text)

    def _look(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        for deadline in [*self._open]:
            if deadline.at_s > now_s:
                self._timer = self._loop.call_at(deadline.at_s, self._look)
                return
            del self._open[deadline]
            deadline.is_over = True
            deadline.late()


@dataclass(eq=False, slots=True)
class Job:
    """One run of a function."""

    function: Callable[[], Any]
    """Called in the thread of a worker."""
    done: Callable[[Worker, Any, bool], None]
    """Called in the turn of the loop, unless the job is over: with the worker that ran it, the
    value or the exception, and whether it is an exception."""
    is_call: bool = False
    """Whether a call begins with it: its worker has one more until `end_call`."""
    is_over: bool = False
    """Whether its end is of interest no more: its caller has left, or was told that it is late."""


class Worker:
    """One thread that runs a job after the other."""

    leads = False
    """Whether this thread runs the event loop, too, whenever it runs no job."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.thread = 0
        self.waiting: deque[Job] = deque()
        self.is_free = True
        self.calls = 0
        """Calls that began here and are not over: a generator goes on in its thread."""
        self.deadline: Deadline | None = None
        self.jobs: SimpleQueue[tuple[Job, Done] | None] = SimpleQueue()
        self.on_long: Callable[[Worker, Job], None] | None = None
        self._loop = loop

    def run(self) -> None:
        """Run jobs until `stop`."""
        self.thread = threading.get_ident()
        while (given := self.jobs.get()) is not None:
            job, done = given
            value, failed = run_job(job)
            self._loop.call_soon_threadsafe(done, self, job, value, failed)
            # What the loop has by now must not live until the next call.
            del given, job, value

    def end_call(self) -> None:
        """Count a call as over that began here."""
        self.calls -= 1

    def begin(self, job: Job, done: Done) -> None:
        """Give the thread a job; `done` is called in the turn of the loop."""
        self.jobs.put((job, done))

    def rest(self) -> None:
        """Called in the turn of the loop when the worker is free and nothing waits for it."""

    def stop(self) -> None:
        """End the thread behind its present job."""
        self.jobs.put(None)


Done = Callable[[Worker, Job, Any, bool], None]
"""Gets the value or the exception of a job, and whether it is an exception."""


def run_job(job: Job) -> tuple[Any, bool]:
    """Return the value or the exception of a job, and whether it is an exception."""
    try:
        return job.function(), False
    except BaseException as error:  # noqa: BLE001 - it is the handler's, whatever it is
        return error, True


class Workers:
    """Threads with one queue, in the order of arrival. All methods belong to the event loop.

    A call goes to the free thread with the fewest calls that are not over: a generator that waits
    between two values holds up whoever shares its thread. `hung` is told of a thread whose function
    is late. `main` is the worker of the main thread.
    """

    def __init__(
        self, main: Worker, count: int, deadlines: Deadlines, hung: Callable[[int], None]
    ) -> None:
        self.main = main
        self._loop = asyncio.get_running_loop()
        self._deadlines = deadlines
        self._hung = hung
        self._waiting: deque[Job] = deque()
        self._workers = [main]
        for at in range(1, count):
            worker = Worker(self._loop)
            self._workers.append(worker)
            threading.Thread(target=worker.run, name=f"predict-{at}", daemon=True).start()
        main.on_long = self.limit

    def submit(self, job: Job) -> None:
        """Run a job in a thread that is free."""
        free = [worker for worker in self._workers if worker.is_free]
        if free and not self._waiting:
            self._begin(min(free, key=_calls), job)
        else:
            self._waiting.append(job)

    def forget(self, job: Job) -> bool:
        """Do not begin a job whose caller has left; return whether it had not begun."""
        if job not in self._waiting:
            return False
        self._waiting.remove(job)
        return True

    async def run(self, function: Callable[[], Any]) -> Any:
        """Return what a function returns in a thread that is free. Raises what it raises, and
        EXECUTION_TIMEOUT."""
        future = self._loop.create_future()
        job = Job(function, partial(_settle, future))
        self.submit(job)
        return await self._result(job, future, self._waiting)

    async def run_on(self, worker: Worker, function: Callable[[], Any]) -> Any:
        """As `run`, by this worker: a generator may depend on its thread."""
        future = self._loop.create_future()
        job = Job(function, partial(_settle, future))
        if worker.is_free:
            self._begin(worker, job)
        else:
            worker.waiting.append(job)
        return await self._result(job, future, worker.waiting)

    async def _result(self, job: Job, future: asyncio.Future[Any], queue: deque[Job]) -> Any:
        try:
            return await future
        except asyncio.CancelledError:
            if job in queue:
                queue.remove(job)
            raise

    def _begin(self, worker: Worker, job: Job) -> None:
        worker.is_free = False
        worker.calls += job.is_call
        if not worker.leads:
            self.limit(worker, job)
        worker.begin(job, self._done)

    def limit(self, worker: Worker, job: Job) -> None:
        """Begin the time of a job, unless it has begun."""
        if worker.deadline is None:
            worker.deadline = self._deadlines.begin(lambda: self._late(worker, job))

    def _late(self, worker: Worker, job: Job) -> None:
        self._hung(worker.thread)  # first: the answer is the last of its connection
        if not job.is_over:
            job.is_over = True
            job.done(worker, self._deadlines.error(), True)

    def _done(self, worker: Worker, job: Job, value: Any, failed: bool) -> None:
        if worker.deadline is not None:
            self._deadlines.end(worker.deadline)
            worker.deadline = None  # it has the job, and so the value
        worker.is_free = True
        try:
            if not job.is_over:
                job.is_over = True
                job.done(worker, value, failed)
        finally:
            # While anything waits for any thread, no other one is free.
            queue = worker.waiting or self._waiting
            if worker.is_free and queue:
                self._begin(worker, queue.popleft())
            elif worker.is_free:
                worker.rest()


_calls = attrgetter("calls")


def _settle(future: asyncio.Future[Any], _worker: Worker, value: Any, failed: bool) -> None:
    if future.done():
        return
    if not failed:
        future.set_result(value)
    else:
        future.set_exception(value if type(value) is RequestError else Raised(value))


class Raised(Exception):
    """Carries an exception that a future refuses, or that would mean something else here."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class Batcher:
    """Joins calls that wait while all lanes are in use. `run` gets and returns lists."""

    def __init__(self, run: Callable[[list[Any]], Any], size: int, lanes: int) -> None:
        self._run = run
        self._size = size
        self._lanes = lanes
        self._waiting: deque[tuple[Any, asyncio.Future[Any]]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    async def submit(self, value: Any) -> Any:
        """Return the result of one call. Raises what `run` raises."""
        loop = asyncio.get_running_loop()
        entry = (value, loop.create_future())
        self._waiting.append(entry)
        self._begin(loop)
        return await entry[1]

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._lanes and self._waiting:
            batch: list[tuple[Any, asyncio.Future[Any]]] = []
            while self._waiting and len(batch) < self._size:
                entry = self._waiting.popleft()
                if not entry[1].done():  # its client has left
                    batch.append(entry)
            if batch:
                self._lanes -= 1
                task = loop.create_task(self._run_batch(batch))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _run_batch(self, batch: list[tuple[Any, asyncio.Future[Any]]]) -> None:
        futures = [future for _, future in batch]
        try:
            results = await self._run([value for value, _ in batch])
        except BaseException as error:  # noqa: BLE001 - each of its callers gets it
            for future in futures:
                if not future.done():
                    future.set_exception(error if isinstance(error, Exception) else Raised(error))
        else:
            for future, result in zip(futures, results, strict=True):
                if not future.done():
                    future.set_result(result)
        finally:
            self._lanes += 1
            self._begin(asyncio.get_running_loop())
