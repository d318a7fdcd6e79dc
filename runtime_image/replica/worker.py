"""Worker threads, for loading, running and decoding; and the exit of the process on an error."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Final, NoReturn

from runtime_image.contract.errors import describe

EXIT_FAULT: Final = 1
"""Exit code after an unhandled exception, equal to Python's."""


class Worker:
    """Thread that runs submitted work in order, one piece at a time.

    A daemon thread: a run that never returns must not keep an exiting process alive. An exception
    ends the process, because no further work could run.
    """

    def __init__(self, name: str = "worker") -> None:
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], None]) -> None:
        """Run `work` after all previously submitted work; it must handle its own errors."""
        self._work.put(work)

    def _run(self) -> None:
        try:
            while True:
                self._work.get()()
        except BaseException as error:  # noqa: BLE001 - a handler's code may raise anything
            end_process(error)


def end_process(error: BaseException) -> NoReturn:
    """Log `error` of the current thread and exit at once with EXIT_FAULT.

    Without one of its threads, a replica would still answer PING and accept requests, but never
    answer them. After the exit, its gateways run these requests on other replicas.
    """
    with suppress(BaseException):
        import traceback  # not at module level: it would cost every cold start 2 ms

        traceback.print_exception(error)
    with suppress(BaseException):
        name, said = threading.current_thread().name, describe(error)[:500]
        print(f"fngate replica: the thread {name} ended with {said}", flush=True)  # noqa: T201 - the log is its standard output
        sys.stderr.flush()
    os._exit(EXIT_FAULT)
