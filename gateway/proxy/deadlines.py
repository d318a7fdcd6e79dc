"""Time limits of one exchange. Pure."""

from __future__ import annotations

from registry.errors import UpstreamTimeout
from registry.model import ExchangeLimits


class Deadlines:
    """The limits `max_s`, `first_byte_s` and `stall_s`, checked once a second.

    Moved bytes are compared and not timed one by one, so that a byte costs nothing. All times are
    monotonic seconds.
    """

    __slots__ = ("_began_s", "_limits", "_moved", "_moved_s")

    def __init__(self, limits: ExchangeLimits) -> None:
        self._limits = limits
        self._began_s = self._moved_s = 0.0
        self._moved = 0

    def sent(self, now: float) -> None:
        """Start the clocks: the request is sent. A second try does not extend `max_s`."""
        self._began_s = self._began_s or now
        self._moved_s = now

    def check(self, now: float, moved: int, *, is_answered: bool) -> UpstreamTimeout | None:
        """Return the error for a limit that is exceeded. `moved`: bytes so far, both ways.

        `first_byte_s` counts from the last byte of the request that was sent.
        """
        limits = self._limits
        if moved != self._moved:
            self._moved, self._moved_s = moved, now
        quiet_s = now - self._moved_s
        if now - self._began_s >= limits.max_s:
            return UpstreamTimeout(f"the exchange did not end within {limits.max_s:g} s")
        if not is_answered and quiet_s >= limits.first_byte_s:
            return UpstreamTimeout(f"the server did not answer within {limits.first_byte_s:g} s")
        if is_answered and limits.stall_s and quiet_s >= limits.stall_s:
            return UpstreamTimeout(f"no byte was sent for {limits.stall_s:g} s")
        return None
