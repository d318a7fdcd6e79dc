"""Checks the input of a request that finds its function cold: bad input wakes no device."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from registry.errors import QueueFull
from registry.model import Revision
from runtime_image.codecs import finite
from runtime_image.codecs.request import RequestHead, parse
from runtime_image.link.meta import RequestMeta

IN_LOOP_MAX = 64 * 1024
"""Bytes; larger bodies would hold up the loop and are checked in a thread."""
WAITING_MAX = 64


class ColdCheck:
    """One worker thread with a bounded queue for what is too large for the loop."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cold-check")
        self._waiting = 0

    async def check(self, meta: RequestMeta, body: bytes, revision: Revision) -> None:
        """Raises RequestError where the body does not fit, QueueFull where too many are checked."""
        if len(body) <= IN_LOOP_MAX:
            _check(meta, body, revision)
            return
        if self._waiting >= WAITING_MAX:
            raise QueueFull(f"{self._waiting} large requests are being checked", retry_after_s=1)
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._thread, _check, meta, body, revision)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """End the thread when it is through with what it has."""
        self._thread.shutdown(wait=True, cancel_futures=True)


def _check(meta: RequestMeta, body: bytes, revision: Revision) -> None:
    length = meta.json_length if meta.json_length >= 0 else None
    head = RequestHead(meta.content_type, meta.accept, length)
    finite.check(parse(head, body, revision.signature, revision.inputs), revision.inputs)
