"""Runs plain functions in threads: the main thread first, which loaded the handler."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
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

    def end(self, deadline: Deadline | None) -> None:
        """End a run."""
        self._open.pop(deadline, None)  # type: ignore[arg-type]  # None is never in there

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
    """One call of a function."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    future: asyncio.Future[Any]
    worker: Worker | None = None
    """Its worker, once a job that any worker may run has begun."""


class Worker:
    """One thread that runs a job after the other."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.thread = 0
        self.waiting: deque[Job] = deque()
        self.is_free = True
        self.calls = 0
        """Calls that began here and are not over: a generator goes on in its thread."""
        self.deadline: Deadline | None = None
        self._loop = loop
        self._jobs: SimpleQueue[tuple[Job, Callable[[Worker, Job, Any, bool], None]] | None] = (
            SimpleQueue()
        )

    def run(self) -> None:
        """Run jobs until `stop`."""
        self.thread = threading.get_ident()
        while (given := self._jobs.get()) is not None:
            job, done = given
            try:
                value, failed = job.function(*job.arguments), False
            except BaseException as error:  # noqa: BLE001 - it is the handler's, whatever it is
                value, failed = error, True
            self._loop.call_soon_threadsafe(done, self, job, value, failed)
            # What the loop has by now must not live until the next call.
            del given, job, value

    def begin(self, job: Job, done: Callable[[Worker, Job, Any, bool], None]) -> None:
        """Give the thread a job; `done` is called in the loop."""
        self._jobs.put((job, done))

    def stop(self) -> None:
        """End the thread behind its present job."""
        self._jobs.put(None)


class Workers:
    """Threads with one queue, in the order of arrival. All methods belong to the event loop.

    A call goes to the free thread with the fewest calls that are not over: a generator that waits
    between two values holds up whoever shares its thread. `hung` is told of a thread whose function
    is late.
    """

    def __init__(self, count: int, deadlines: Deadlines, hung: Callable[[int], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadlines = deadlines
        self._hung = hung
        self._waiting: deque[Job] = deque()
        self.main = Worker(self._loop)
        self._workers = [self.main]
        for at in range(1, count):
            worker = Worker(self._loop)
            self._workers.append(worker)
            threading.Thread(target=worker.run, name=f"predict-{at}", daemon=True).start()

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function returns in a thread that is free. Raises what it raises, and
        EXECUTION_TIMEOUT."""
        worker, result = await self.place(function, *arguments)
        worker.calls -= 1
        return result

    async def place(self, function: Callable[..., Any], *arguments: Any) -> tuple[Worker, Any]:
        """As `run`, with the worker that ran it. The caller takes one from its `calls` when the
        call is over."""
        job = Job(function, arguments, self._loop.create_future())
        free = [worker for worker in self._workers if worker.is_free]
        if free:
            self._begin_call(min(free, key=_calls), job)
        else:
            self._waiting.append(job)
        try:
            return await self._result(job, self._waiting)
        except BaseException:
            if job.worker is not None:
                job.worker.calls -= 1
            raise

    async def run_on(self, worker: Worker, function: Callable[..., Any], *arguments: Any) -> Any:
        """As `run`, by this worker: a generator may depend on its thread."""
        job = Job(function, arguments, self._loop.create_future())
        if worker.is_free:
            self._begin(worker, job)
        else:
            worker.waiting.append(job)
        return (await self._result(job, worker.waiting))[1]

    async def _result(self, job: Job, queue: deque[Job]) -> tuple[Worker, Any]:
        try:
            return await job.future  # type: ignore[no-any-return]  # set in `_done`
        except asyncio.CancelledError:
            if job in queue:
                queue.remove(job)
            raise

    def _begin_call(self, worker: Worker, job: Job) -> None:
        job.worker = worker
        worker.calls += 1
        self._begin(worker, job)

    def _begin(self, worker: Worker, job: Job) -> None:
        worker.is_free = False
        worker.deadline = self._deadlines.begin(lambda: self._late(worker, job))
        worker.begin(job, self._done)

    def _late(self, worker: Worker, job: Job) -> None:
        if not job.future.done():
            job.future.set_exception(self._deadlines.error())
        self._hung(worker.thread)

    def _done(self, worker: Worker, job: Job, value: Any, failed: bool) -> None:
        self._deadlines.end(worker.deadline)
        worker.deadline = None  # it has the job, and so the value
        worker.is_free = True
        if not job.future.done():
            if failed:
                job.future.set_exception(_raisable(value))
            else:
                job.future.set_result((worker, value))
        # While a call waits, no other thread is free.
        if worker.waiting:
            self._begin(worker, worker.waiting.popleft())
        elif self._waiting:
            self._begin_call(worker, self._waiting.popleft())


_calls = attrgetter("calls")


class Raised(Exception):
    """Carries an exception that a future refuses, or that would mean something else here."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def _raisable(error: BaseException) -> BaseException:
    return error if type(error) is RequestError else Raised(error)


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
