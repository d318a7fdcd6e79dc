"""The access log's lines, beside those of the server's own log."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

import msgspec

from gateway.observing.access_log import AccessEvent
from gateway.observing.handover import Write

PIPE_PIECE: Final = 4096
"""Bytes written at once: as much as a pipe takes without mixing it with what others write."""
FILE_PIECE: Final = 64 * 1024
"""Of a regular file, which takes any write whole: its processes share one place to write at."""
AT_ONCE: Final = 64
"""Events put into words before the interpreter is let go for a write: 30 us in which the loop may
have to wait."""

_encode_lines = msgspec.json.Encoder().encode_lines


def access_writer(form: Literal["human", "json"], descriptor: int = 2) -> Write[AccessEvent]:
    """Writes lines to `descriptor`, in the form of the server's log; whole lines at once, so that
    several processes may share it. What cannot be written is lost."""
    most = FILE_PIECE if _is_file(descriptor) else PIPE_PIECE
    put_into_words = _encode_lines if form == "json" else _human_lines

    def write(events: list[AccessEvent], left_out: int) -> None:
        for start in range(0, len(events), AT_ONCE):
            lines = put_into_words(events[start : start + AT_ONCE])
            for piece in _pieces(lines, most):
                _put(descriptor, piece)
        if left_out:
            _put(descriptor, _LEFT_OUT[form](left_out))

    return write


def _is_file(descriptor: int) -> bool:
    try:
        return stat.S_ISREG(os.fstat(descriptor).st_mode)
    except OSError:  # it is closed: nothing will be written at all
        return False


def _pieces(lines: bytes, most: int) -> Iterator[bytes]:
    """Whole lines, `most` bytes of them unless one is longer."""
    start = 0
    while len(lines) - start > most:
        end = lines.rfind(b"\n", start, start + most) + 1 or lines.index(b"\n", start) + 1
        yield lines[start:end]
        start = end
    yield lines[start:]


def _put(descriptor: int, piece: bytes) -> None:
    # The disk is full or the reader gone: requests go on.
    try:
        os.write(descriptor, piece)
    except OSError:
        return


def _human_lines(events: list[AccessEvent]) -> bytes:
    return "".join(map(_human, events)).encode()


def _human(event: AccessEvent) -> str:
    cold = " cold" if event.is_cold else ""
    own: dict[str, Any] = {}
    if event.rows is not None:
        own = {name: getattr(event, name) for name in _OF_REPLICA}
    parts = [f" {name}={value}" for name, value in own.items()]
    parts += [f" {phase}={ms:.3f}" for phase, ms in (event.phases or {}).items()]
    trace = f" trace_id={event.trace_id}" if event.trace_id else ""
    return (
        f"{event.timestamp} [info     ] request                        {event.outcome}{cold}"
        f" status={event.status or '-'} ms={event.ms:.3f} queue_ms={event.queue_ms:.3f}"
        f" function={event.function or '-'} revision={event.revision or '-'}"
        f" replica={event.replica or '-'} sends={event.sends} bytes_in={event.bytes_in}"
        f" bytes_out={event.bytes_out}{''.join(parts)} request_id={event.request_id}{trace}\n"
    )


_OF_REPLICA: Final = ("decode_us", "batch_us", "compute_us", "encode_us", "rows")
_LEFT_OUT: Final[dict[str, Callable[[int], bytes]]] = {
    "json": lambda count: (
        msgspec.json.encode({"event": "access events left out", "count": count, "level": "warning"})
        + b"\n"
    ),
    "human": lambda count: f"[warning  ] access events left out         count={count}\n".encode(),
}
