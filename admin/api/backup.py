"""A copy of the database, sent to an administrator."""

from __future__ import annotations

import asyncio
from typing import BinaryIO, Final

import structlog
from aiohttp import hdrs, web

from gateway.problems import OK
from registry.errors import QueueFull
from registry.store.recovery.backups import Backups

log = structlog.get_logger()

PIECE: Final = 1024 * 1024
SENT_MAX: Final = 2
"""Copies sent at once; each has a file on the disk."""
SLOW_S: Final = 30.0
"""How long one piece may wait for a client to read."""
RETRY_S: Final = 5.0
HEADERS: Final = {hdrs.CONTENT_TYPE: "application/vnd.sqlite3", hdrs.CACHE_CONTROL: "no-store"}


class BackupRoutes:
    """The database as it is now, in one file."""

    def __init__(self, backups: Backups) -> None:
        self._backups = backups
        self._sending = 0

    async def get_backup(self, request: web.Request) -> web.StreamResponse:
        """The copy, with its length; one that breaks off is shorter than that.

        Raises QueueFull, StoreUnavailable; nothing once the answer has begun.
        """
        if self._sending >= SENT_MAX:
            raise QueueFull(f"{self._sending} copies are being sent already", retry_after_s=RETRY_S)
        self._sending += 1
        try:
            file, size = await self._backups.snapshot()
            with file:
                return await _send(request, file, size)
        finally:
            self._sending -= 1


async def _send(request: web.Request, file: BinaryIO, size: int) -> web.StreamResponse:
    response = web.StreamResponse(status=OK, headers=HEADERS)
    response.content_length = size
    try:
        await response.prepare(request)
        while piece := await asyncio.to_thread(file.read, PIECE):
            async with asyncio.timeout(SLOW_S):
                await response.write(piece)
        await response.write_eof()
    except (OSError, TimeoutError) as error:
        log.info("a copy of the database was not sent to its end", reason=repr(error))
        if request.transport is not None:
            request.transport.abort()
    return response
