"""A worker thread, for loading and running or for decoding; and the end of the process."""

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
"""Exit code after an exception that nothing handles, as Python's own."""


class Worker:
    """Runs one piece of work at a time, in order.

    A daemon thread: a run that never returns must not keep a process alive that exits. An exception
    of a piece of work ends the process, which would run nothing any more.
    """

    def __init__(self, name: str = "worker") -> None:
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], None]) -> None:
        """Run `work` after all work submitted before; it handles its own errors."""
        self._work.put(work)

    def _run(self) -> None:
        try:
            while True:
                self._work.get()()
        except BaseException as error:  # noqa: BLE001 - a handler's code may raise anything
            end_process(error)


def end_process(error: BaseException) -> NoReturn:
    """Log `error` of the current thread and leave the process at once with EXIT_FAULT.

    A replica without one of its threads would go on answering PING and take requests that it never
    answers. Its gateways run these again elsewhere once the process has ended.
    """
    with suppress(BaseException):
        import traceback  # costs every cold start 2 ms otherwise

        traceback.print_exception(error)
    with suppress(BaseException):
        name, said = threading.current_thread().name, describe(error)[:500]
        print(f"fngate replica: the thread {name} ended with {said}", flush=True)  # noqa: T201 - the log is its standard output
        sys.stderr.flush()
    os._exit(EXIT_FAULT)
