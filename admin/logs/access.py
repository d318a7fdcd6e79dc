"""The access log's lines, beside those of the server's own log."""

from __future__ import annotations

import fcntl
import os
import stat
import termios
from array import array
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


def access_writer(
    form: Literal["human", "json"], descriptor: int = 2, *, is_shared: bool = True
) -> Write[AccessEvent]:
    """Writes lines to `descriptor`, in the form of the server's log; whole lines at once, so that
    several processes may share it. `is_shared`: they do. What cannot be written is lost."""
    mode = _mode(descriptor)
    most = FILE_PIECE if stat.S_ISREG(mode) else PIPE_PIECE
    is_own_pipe = stat.S_ISFIFO(mode) and not is_shared
    put_into_words = _encode_lines if form == "json" else _human_lines

    def write(events: list[AccessEvent], left_out: int) -> None:
        for start in range(0, len(events), AT_ONCE):
            lines = put_into_words(events[start : start + AT_ONCE])
            is_whole = is_own_pipe and len(lines) <= _room(descriptor) // 2
            for piece in _pieces(lines, len(lines) if is_whole else most):
                _put(descriptor, piece)
        if left_out:
            _put(descriptor, _LEFT_OUT[form](left_out))

    return write


def _mode(descriptor: int) -> int:
    try:
        return os.fstat(descriptor).st_mode
    except OSError:  # it is closed: nothing will be written at all
        return 0


def _room(descriptor: int) -> int:
    """Bytes that an empty pipe takes whole, 0 for one that is not: only a write that has to wait
    for room is mixed with others. Large ones save the loop 0.5 us of an event, for it waits for
    the interpreter after each. The server's own log may have the other half meanwhile."""
    waiting = array("i", [0])
    try:
        fcntl.ioctl(descriptor, termios.FIONREAD, waiting)
        return 0 if waiting[0] else fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ)
    except OSError:
        return 0


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
