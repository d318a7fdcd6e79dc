"""The access log's lines, beside those of the server's own log."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from gateway.observing.access_log import AccessEvent

PIECE: Final = 4096
"""Bytes written at once: as much as a pipe takes without mixing it with what others write."""


def access_writer(
    form: Literal["human", "json"], descriptor: int = 2
) -> Callable[[list[AccessEvent], int], None]:
    """Writes lines to `descriptor`, in the form of the server's log; whole lines at once, so that
    several processes may share it. What cannot be written is lost."""
    line = _json if form == "json" else _human

    def write(events: list[AccessEvent], left_out: int) -> None:
        lines = [line(event) for event in events]
        if left_out:
            lines.append(_LEFT_OUT[form](left_out))
        piece = b""
        for one in lines:
            if piece and len(piece) + len(one) > PIECE:
                _put(descriptor, piece)
                piece = b""
            piece += one
        _put(descriptor, piece)

    return write


def _put(descriptor: int, piece: bytes) -> None:
    # The disk is full or the reader gone: requests go on.
    try:
        os.write(descriptor, piece)
    except OSError:
        return


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def _json(event: AccessEvent) -> bytes:
    fields = {
        "function": event.function,
        "revision": event.revision,
        "replica": event.replica,
        "outcome": event.outcome,
        "ms": round(event.ms, 3),
        "queue_ms": round(event.queue_ms, 3),
        "is_cold": event.is_cold,
        "event": "request",
        "level": "info",
        "timestamp": _time(event.at_s),
    }
    return msgspec.json.encode(fields) + b"\n"


def _human(event: AccessEvent) -> bytes:
    cold = " cold" if event.is_cold else ""
    return (
        f"{_time(event.at_s)} [info     ] request                        {event.outcome}{cold}"
        f" ms={event.ms:.3f} queue_ms={event.queue_ms:.3f} function={event.function}"
        f" revision={event.revision} replica={event.replica or '-'}\n"
    ).encode()


_LEFT_OUT: Final[dict[str, Callable[[int], bytes]]] = {
    "json": lambda count: (
        msgspec.json.encode({"event": "access events left out", "count": count, "level": "warning"})
        + b"\n"
    ),
    "human": lambda count: f"[warning  ] access events left out         count={count}\n".encode(),
}
