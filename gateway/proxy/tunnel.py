"""WebSockets that are open: what passes in both directions, and whether they are in use. Pure."""

from __future__ import annotations

from gateway.proxy.websocket import FrameFollower


class Tunnel:
    """One WebSocket. It is *quiet* while no data frame passes for `idle_s` seconds.

    Pings and pongs, which browsers and proxies send by themselves, are no use: a quiet WebSocket
    stays open, and its replica counts as idle.
    """

    __slots__ = ("_idle_s", "_moved", "_moved_s", "from_client", "from_server", "is_quiet")

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._moved = 0
        self._moved_s = 0.0
        self.from_client = FrameFollower()
        """Frames of the client, from the first byte after its handshake."""
        self.from_server = FrameFollower()
        """Frames of the server."""
        self.is_quiet = False
        """What `check` returned last."""

    @property
    def has_moved(self) -> bool:
        """Whether data has passed since the last `check`."""
        return self._moved != self.from_client.data_moved + self.from_server.data_moved

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
