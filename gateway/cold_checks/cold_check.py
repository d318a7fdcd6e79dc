"""The check of requests for cold functions, so that bad input never wakes a device.

A small body is checked in the event loop, a larger one in a process of its own. The check spares
wake-ups and guards nothing: what it cannot do within its limits is left to the replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import structlog

from gateway.cold_checks.check_line import CheckLine
from gateway.cold_checks.check_process import CheckProcess, Content, Question, Unchecked, check
from registry.errors import QueueFull, WaitBudgetOver
from registry.model.revisions import Revision
from runtime_image.contract.errors import RequestError
from runtime_image.link.meta import RequestMeta

log = structlog.get_logger()

IN_LOOP_MAX: Final = 64 * 1024
"""Bytes. A larger body would hold up the event loop, also from a thread: the JSON parser lets no
other one run, for 50 ms with 1 MiB."""
WAIT_S: Final = 5.0
"""Max seconds that a large body waits for its check."""

OnChecked = Callable[[BaseException | None], None]


class _Waiting:
    """A large body until its check has ended. `done` is the future that the caller may cancel."""

    def __init__(self, question: Question, content: Content, caller: str) -> None:
        loop = asyncio.get_running_loop()
        self.question, self.content, self.caller = question, content, caller
        self.done: asyncio.Future[None] = loop.create_future()
        self.timer: asyncio.TimerHandle | None = None


class ColdCheck:
    """Validates request bodies: small ones in the event loop, large ones in a process. Event loop
    thread only."""

    def __init__(self, process: CheckProcess | None = None, wait_s: float = WAIT_S) -> None:
        """`process` checks large bodies; by default it starts with the first of them. One waits
        for its check `wait_s` at most."""
        self._wait_s = wait_s
        self._process = process or CheckProcess()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cold-check")
        self._line: CheckLine[_Waiting] = CheckLine()
        self._running: _Waiting | None = None

    def check(
        self,
        meta: RequestMeta,
        content: Content,
        revision: Revision,
        caller: str,
        on_checked: OnChecked,
    ) -> asyncio.Future[None] | None:
        """Check a body of at most IN_LOOP_MAX bytes at once and return None.

        A larger body is checked in the process, in the order of CheckLine; `caller` is the id of
        its key. `on_checked` is then called in the event loop with the error, or None, unless the
        returned future was cancelled. Raises RequestError for a small body that does not fit the
        signature, and QueueFull if too many large bodies wait.
        """
        length = meta.json_length if meta.json_length >= 0 else None
        signature, rules = revision.signature, revision.inputs
        question = Question(meta.content_type, meta.accept, length, signature, rules)
        if len(content.body) <= IN_LOOP_MAX:
            check(question, content.body)
            return None
        one = _Waiting(question, content, caller)
        refused = self._line.join(caller, one)
        if refused is not None:
            error = QueueFull(
                f"{self._line.count} large requests are being checked", retry_after_s=1
            )
            if refused is one:
                raise error
            _end(refused, error)
        one.done.add_done_callback(lambda done: self._on_done(one, done, on_checked))
        one.timer = asyncio.get_running_loop().call_later(self._wait_s, self._expire, one)
        self._start_next()
        return one.done

    def _start_next(self) -> None:
        one = None if self._running is not None else self._line.next()
        if one is None:
            return
        self._running = one
        if one.timer is not None:
            one.timer.cancel()
        loop = asyncio.get_running_loop()

        def ended(future: Future[None]) -> None:
            with suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(self._on_checked, one, future)

        self._thread.submit(self._process.check, one.question, one.content).add_done_callback(ended)

    def _on_checked(self, one: _Waiting, future: Future[None]) -> None:
        self._running = None
        error = future.exception()
        if isinstance(error, RequestError):
            error.__traceback__ = None  # it references the body
        if isinstance(error, Unchecked) and not one.done.done():
            log.warning(
                "a large body was not checked", reason=str(error), bytes=len(one.content.body)
            )
            error = None
        _end(one, error)
        self._start_next()

    def _expire(self, one: _Waiting) -> None:
        if self._line.leave(one.caller, one):
            text = f"other large bodies took more than {self._wait_s:g} s to check: try again"
            _end(one, WaitBudgetOver(text, retry_after_s=self._wait_s))

    def _on_done(self, one: _Waiting, done: asyncio.Future[None], on_checked: OnChecked) -> None:
        if one.timer is not None:
            one.timer.cancel()
        if done.cancelled():
            self._line.leave(one.caller, one)
            if self._running is one:  # the body's memory counts no longer
                self._process.abort()
        else:
            on_checked(done.exception())

    def close(self) -> None:
        """End the process, and what it checks."""
        self._process.close()
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._process.close()  # if one was being started


def _end(one: _Waiting, error: BaseException | None) -> None:
    if one.done.done():  # cancelled: the client has left
        return
    if error is None:
        one.done.set_result(None)
    else:
        one.done.set_exception(error)
