"""Time limits of one exchange. Pure."""

from __future__ import annotations

from registry.errors import BodyTimeout, UpstreamTimeout
from registry.model.functions import ExchangeLimits


class Deadlines:
    """The limits `max_s`, `first_byte_s` and `stall_s`, and `body_s`, checked once a second.

    `body_s`: max time that the client may send nothing of a body that the server waits for.

    Moved bytes are compared and not timed one by one, so that a byte costs nothing. All times are
    monotonic seconds.
    """

    __slots__ = ("_began_s", "_body_s", "_limits", "_max_s", "_moved", "_moved_s")

    def __init__(self, limits: ExchangeLimits, body_s: float) -> None:
        self._limits = limits
        self._max_s = limits.max_s
        self._body_s = body_s
        self._began_s = self._moved_s = 0.0
        self._moved = 0

    def sent(self, now: float) -> None:
        """Start the clocks: the request is sent. A second try does not extend `max_s`."""
        self._began_s = self._began_s or now
        self._moved_s = now

    def begin_tunnel(self) -> None:
        """Apply the limit of WebSockets: the exchange is one."""
        self._max_s = self._limits.websocket_max_s

    def check(
        self, now: float, moved: int, waits_for_body: bool, *, is_answered: bool
    ) -> UpstreamTimeout | BodyTimeout | None:
        """Return the error for a limit that is exceeded. `moved`: bytes so far, both ways.

        `waits_for_body`: the server reads, and the client has not sent everything. `first_byte_s`
        counts from the last byte of the request that was sent.
        """
        limits = self._limits
        if moved != self._moved:
            self._moved, self._moved_s = moved, now
        quiet_s = now - self._moved_s
        if now - self._began_s >= self._max_s:
            return UpstreamTimeout(f"the exchange did not end within {self._max_s:g} s")
        if not is_answered and waits_for_body:
            if quiet_s >= self._body_s:
                return BodyTimeout(f"no byte of the body arrived for {self._body_s:g} s")
        elif not is_answered and quiet_s >= limits.first_byte_s:
            return UpstreamTimeout(f"the server did not answer within {limits.first_byte_s:g} s")
        if is_answered and limits.stall_s and quiet_s >= limits.stall_s:
            return UpstreamTimeout(f"no byte was sent for {limits.stall_s:g} s")
        return None
