"""Connections of the replicas on this machine."""

from __future__ import annotations

import asyncio
import socket

import structlog

from registry.files import is_exhausted
from runtime_image.contract.control import Hello

log = structlog.get_logger()

EXHAUSTED_S = 0.5
"""Seconds between two tries to accept a connection when file descriptors are exhausted."""


class LocalConnections:
    """`ControlConnections` over the listener in a replica's run folder."""

    redials = False

    def __init__(self, listener: socket.socket, id: str) -> None:
        """`listener` is non-blocking; `id` names the replica in the log."""
        self._listener = listener
        self._id = id

    async def wait_up(self) -> bool:
        """ControlConnections: this machine can always be reached."""
        return True

    def renewal(self) -> None:
        """ControlConnections: the connection has no certificate."""

    async def accept(self) -> tuple[socket.socket, Hello | None]:
        """ControlConnections: accept a connection. `loop.sock_accept` is not used, because it may
        lose the accepted socket when it is cancelled."""
        is_warned = False
        while True:
            await self._came()
            try:
                sock = self._listener.accept()[0]
            except (BlockingIOError, ConnectionAbortedError):
                continue
            except OSError as error:
                if not is_exhausted(error):
                    raise
                if not is_warned:
                    log.warning("a greeting has to wait", replica=self._id, reason=str(error))
                is_warned = True
                # No reader during the sleep: the pending connection would wake the loop in every
                # iteration.
                await asyncio.sleep(EXHAUSTED_S)
            else:
                sock.setblocking(False)
                return sock, None

    async def _came(self) -> None:
        """Wait for a connection."""
        loop = asyncio.get_running_loop()
        came = asyncio.Event()
        loop.add_reader(self._listener, came.set)
        try:
            await came.wait()
        finally:
            loop.remove_reader(self._listener)

    def close(self) -> None:
        """ControlConnections: close the listener. No `accept` may be waiting: the descriptor's
        number may be reused at once, and the call would then remove the reader of another socket
        from the loop."""
        self._listener.close()
