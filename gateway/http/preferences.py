"""What a client asks of the waiting: `Prefer: wait` (RFC 7240) and `Priority` (RFC 9218)."""

from __future__ import annotations

import re

from gateway.dispatch.call import Priority

_WAIT = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?([^\",;\s]*)\"?", re.IGNORECASE)
_SECONDS = re.compile("[0-9]{1,9}")
_URGENCY = re.compile(r"(?:^|,)\s*u\s*=\s*([^,;\s]*)")


def wait_s(prefer: str | None, default_s: float, most_s: float) -> tuple[float, str]:
    """Seconds the client agrees to wait, and what `Preference-Applied` should say. A `wait` that
    is no whole number of seconds is ignored, as RFC 7240 section 2 has it."""
    match = _WAIT.search(prefer) if prefer else None
    if match is None or not _SECONDS.fullmatch(match[1]):
        return default_s, ""
    seconds = min(float(match[1]), most_s)
    return seconds, f"wait={seconds:.0f}"


def priority(header: str | None) -> Priority:
    """Urgency 0-2 is high, 3 (the default) normal, 4-7 low; nonsense counts as no header."""
    match = _URGENCY.search(header) if header else None
    if match is None or match[1] not in set("01234567"):
        return Priority.NORMAL
    urgency = int(match[1])
    if urgency < 3:
        return Priority.HIGH
    return Priority.NORMAL if urgency == 3 else Priority.LOW
