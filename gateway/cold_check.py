"""Checks the input of a request that finds its function cold: bad input wakes no device."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from gateway.answers.reply import Body
from registry.errors import QueueFull
from registry.model import Revision
from runtime_image.codecs import finite
from runtime_image.codecs.request import RequestHead, parse
from runtime_image.link.meta import RequestMeta

IN_LOOP_MAX = 64 * 1024
"""Bytes; larger bodies would hold up the loop and are checked in a thread."""
WAITING_MAX = 64

Then = Callable[[BaseException | None], None]


class ColdCheck:
    """One worker thread with a bounded queue for what is too large for the loop."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cold-check")
        self._waiting = 0

    def check(
        self, meta: RequestMeta, body: Body, revision: Revision, then: Then
    ) -> asyncio.Future[None] | None:
        """Check a small body at once: None, or RequestError is raised where it does not fit.

        A large one is checked in the thread: `then` is called in the loop's with what was wrong,
        None for nothing, unless the future is cancelled before. Raises QueueFull where too many
        are being checked.
        """
        if len(body) <= IN_LOOP_MAX:
            _check(meta, body, revision)
            return None
        if self._waiting >= WAITING_MAX:
            raise QueueFull(f"{self._waiting} large requests are being checked", retry_after_s=1)
        self._waiting += 1
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._thread, _check, meta, body, revision)
        future.add_done_callback(lambda done: self._done(done, then))
        return future

    def _done(self, future: asyncio.Future[None], then: Then) -> None:
        self._waiting -= 1
        if not future.cancelled():
            then(future.exception())

    def close(self) -> None:
        """End the thread when it is through with what it has."""
        self._thread.shutdown(wait=True, cancel_futures=True)


def _check(meta: RequestMeta, body: Body, revision: Revision) -> None:
    length = meta.json_length if meta.json_length >= 0 else None
    head = RequestHead(meta.content_type, meta.accept, length)
    finite.check(
        parse(head, memoryview(body), revision.signature, revision.inputs), revision.inputs
    )
