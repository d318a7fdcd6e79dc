"""Files that a replica makes for this server: FETCH on its data socket, answered by PART and END.

The replica may run foreign code: every size is known before, and parts have fixed sizes.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import structlog

from pool_manager.ports import Bundles
from registry.errors import FnError
from registry.model.bundles import BundleFile
from runtime_image.contract.link import Kind
from runtime_image.contract.model import PART_MAX, Part
from runtime_image.link.frames import Frame, FrameReader, LinkError, pack

log = structlog.get_logger()

T = TypeVar("T")

EXIT_S: Final = 3.0
"""Longest expected time between the end of a replica's connection and the event of its end."""
GREETING_S: Final = 10.0
"""Max seconds until a replica on another host has sent its greeting."""


@contextlib.asynccontextmanager
async def reader_at(path: Path) -> AsyncIterator[PartReader]:
    """Connect to a replica on this machine, which listens at `path`. Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as sock:
        await asyncio.get_running_loop().sock_connect(sock, str(path))
        yield PartReader(sock)


@contextlib.asynccontextmanager
async def reader_of(connection: socket.socket, greeting: str) -> AsyncIterator[PartReader]:
    """Use a connection to a replica on another host, which proves by `greeting` that it is the
    expected one. Raises LinkError if it does not, OSError."""
    with connection:
        reader = PartReader(connection)
        try:
            async with asyncio.timeout(GREETING_S):
                await reader.expect_greeting(greeting)
        except TimeoutError:
            raise LinkError("the replica sent no greeting in time") from None
        yield reader


OpenReader = Callable[[str], contextlib.AbstractAsyncContextManager["PartReader"]]
"""Connects to a replica by its id. Raises OSError, LinkError, FnError."""


class PartReader:
    """Sequential requests for parts over one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = FrameReader(PART_MAX)
        self._frames: deque[Frame] = deque()

    async def expect_greeting(self, greeting: str) -> None:
        """Read the first frame. Raises LinkError unless it is WELCOME with this greeting."""
        frame = await self._frame()
        is_it = hmac.compare_digest(bytes(frame.body), greeting.encode())
        if frame.kind is not Kind.WELCOME or not greeting or not is_it:
            raise LinkError("the greeting is not that of the replica")

    async def description(self) -> bytes:
        """Fetch the description of the replica's files, at most PART_MAX bytes. The replica answers
        when it has finished."""
        async with contextlib.aclosing(self.parts(Part.DESCRIPTION, None)) as parts:
            return b"".join([bytes(part) async for part in parts])

    async def keep(self, part: int, file: BundleFile, bundles: Bundles) -> BundleFile:
        """Fetch a file of a known size and store it; return it with its hash. Raises LinkError,
        OSError, FnError, and then stores nothing."""
        async with contextlib.aclosing(self.parts(part, file.size)) as parts:
            return replace(file, sha256=await bundles.keep(file.size, parts))

    async def parts(self, part: int, size: int | None) -> AsyncGenerator[bytes | bytearray, None]:
        """Send FETCH and yield the answer: `size` bytes in parts of PART_MAX (the last one may be
        smaller), or one part of any size if `size` is None. Raises LinkError on other answers."""
        question = b"".join(pack(Kind.FETCH, part + 1, aux=part))
        await asyncio.get_running_loop().sock_sendall(self._sock, question)
        if size is None:
            yield await self._body(part, Kind.PART)
        left = size or 0
        while left:
            body = await self._body(part, Kind.PART)
            if len(body) != min(PART_MAX, left):
                raise LinkError(f"expected a part of {min(PART_MAX, left)} bytes, got {len(body)}")
            left -= len(body)
            yield body
        if await self._body(part, Kind.END):
            raise LinkError("END has a body")

    async def _body(self, part: int, kind: Kind) -> bytes | bytearray:
        frame = await self._frame()
        if frame.kind is not kind or frame.id != part + 1:
            raise LinkError(f"expected {kind.name} {part + 1}, got {frame.kind.name} {frame.id}")
        return frame.body

    async def _frame(self) -> Frame:
        while not self._frames:
            buffer = self._reader.buffer()
            count = await asyncio.get_running_loop().sock_recv_into(self._sock, buffer)
            if not count:
                raise ConnectionResetError("the replica closed the connection")
            self._frames.extend(self._reader.received(count))
        return self._frames.popleft()


class NotFetched(NamedTuple):
    """Reason why nothing was fetched. `is_accident`: it is not the model's fault, so another
    attempt may succeed."""

    reason: str
    is_accident: bool = False


async def fetched_or_why_not(
    id: str, work: Callable[[], Awaitable[T]], limit_s: float, exit_s: float = EXIT_S
) -> T | NotFetched:
    """Return what `work` fetches from replica `id`, or why it cannot be fetched within `limit_s`.
    After a lost connection, the return is delayed by `exit_s`: the replica has most likely ended,
    and the event of its end, which cancels this call, says why."""
    try:
        async with asyncio.timeout(limit_s):
            return await work()
    except TimeoutError:
        return NotFetched(f"it did not finish within {limit_s:.0f} s")
    except LinkError as error:
        return NotFetched(f"its files could not be fetched: {error}")
    except (FnError, OSError) as error:
        if isinstance(error, ConnectionError):
            await asyncio.sleep(exit_s)
        return NotFetched(f"its files could not be fetched: {error}", is_accident=True)
    except Exception as error:
        # For any error: without a report its caller would wait until the time limit.
        log.exception("files of a replica could not be fetched", replica=id)
        return NotFetched(f"its files could not be fetched: {error!r}")
