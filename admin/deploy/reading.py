"""Reads deploy requests: small ones at once, others in a thread, one at a time."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from admin.deploy.plan import Asked, WireDeploy, read_request
from registry.errors import QueueFull

WAITING_MAX: Final = 64
"""Max requests that are read or wait for it."""
SMALL_TEXT: Final = 4096
"""Max characters of a manifest, and of overrides as JSON, that are read at once, in some 4 ms."""
SMALL_FILES: Final = 64


class RequestReader:
    """Runs `read_request` apart from the event loop. Several at once would delay it: each takes the
    interpreter for 5 ms before the loop has its turn."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def read(self, name: str, request: WireDeploy) -> Asked:
        """Return the content of a request. Raises what `read_request` raises, and QueueFull."""
        if _is_small(request):
            return read_request(name, request)
        if self._waiting >= WAITING_MAX:
            raise QueueFull(f"{self._waiting} deploy requests are being read", retry_after_s=1)
        self._waiting += 1
        try:
            async with self._turn:
                return await asyncio.to_thread(read_request, name, request)
        finally:
            self._waiting -= 1


def _is_small(request: WireDeploy) -> bool:
    return (
        len(request.files) <= SMALL_FILES
        and len(request.manifest or "") <= SMALL_TEXT
        and len(msgspec.json.encode(request.overrides)) <= SMALL_TEXT
    )
