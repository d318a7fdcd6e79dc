"""WebSockets that are open: what passes in both directions, and whether they are in use. Pure."""

from __future__ import annotations

from typing import Final

from gateway.proxy.websocket import FrameFollower, close_frame

ASLEEP: Final = "the function went to sleep: no data had passed here"
"""Why a quiet WebSocket was closed."""
STOPPED: Final = "the function's replica was stopped"
"""Why another one was."""


class Tunnel:
    """One WebSocket. It is *quiet* while no data frame passes for `idle_s` seconds.

    Pings and pongs, which browsers and proxies send by themselves, are no use: a quiet WebSocket
    stays open, and its replica counts as idle.
    """

    __slots__ = (
        "_idle_s",
        "_moved",
        "_moved_s",
        "from_client",
        "from_server",
        "has_client_ended",
        "has_server_ended",
        "is_quiet",
    )

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._moved = 0
        self._moved_s = 0.0
        self.from_client = FrameFollower()
        """Frames of the client, from the first byte after its handshake."""
        self.from_server = FrameFollower()
        """Frames of the server."""
        self.has_client_ended = self.has_server_ended = False
        """Which sides have ended their bytes."""
        self.is_quiet = False
        """What `check` returned last."""

    def closing(self, code: int, reason: str) -> bytes:
        """Return the frame that tells the client why the WebSocket ends; b"" where it cannot be
        told, in the middle of another frame and after the server's own."""
        server = self.from_server
        if server.is_closed or not server.is_between:
            return b""
        return close_frame(code, reason)

    @property
    def is_used_again(self) -> bool:
        """Whether data has passed since the last `check`, which found the WebSocket quiet."""
        moved = self.from_client.data_moved + self.from_server.data_moved
        return self.is_quiet and self._moved != moved

    def begin(self, now: float) -> None:
        """Start the clock: the WebSocket is open."""
        self._moved_s = now

    def check(self, now: float) -> bool:
        """Return whether the WebSocket is quiet; `now`: monotonic seconds."""
        moved = self.from_client.data_moved + self.from_server.data_moved
        if moved != self._moved:
            self._moved, self._moved_s = moved, now
        self.is_quiet = now - self._moved_s >= self._idle_s
        return self.is_quiet
