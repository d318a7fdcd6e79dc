"""Server log, and lines of the access log."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
import sys
import termios
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, TextIO, cast

import msgspec
import structlog
from aiohttp.http_exceptions import HttpProcessingError
from structlog.typing import EventDict

from gateway.observing.access_log import AccessEvent
from gateway.observing.batching import Write

log = structlog.get_logger()

REPEATS_MAX: Final = 10
"""Max equal records of libraries per minute; further ones are only counted."""
WINDOW_S: Final = 60.0
TEXT_MAX: Final = 2000
TRACEBACK_MAX: Final = 16_000
"""Max characters of one record: clients choose some of them."""
PIPE_PIECE: Final = 4096
"""Bytes per write: Linux writes as much to a pipe atomically (PIPE_BUF)."""
FILE_PIECE: Final = 64 * 1024
"""Bytes per write to a regular file, which takes any write whole; its writers share one offset."""
AT_ONCE: Final = 64
"""Events formatted before the interpreter lock is released for a write: 30 us for which the event
loop may have to wait."""
_encode_lines = msgspec.json.Encoder().encode_lines
_OF_REPLICA: Final = ("decode_us", "batch_us", "compute_us", "encode_us", "rows")
_LEFT_OUT: Final[dict[str, Callable[[int], bytes]]] = {
    "json": lambda count: (
        msgspec.json.encode({"event": "access events left out", "count": count, "level": "warning"})
        + b"\n"
    ),
    "human": lambda count: f"[warning  ] access events left out         count={count}\n".encode(),
}


def set_up(form: Literal["human", "json"]) -> None:
    """Log one line per event to standard error, for people or as JSON. Each line is one immediate
    write, as gateway processes and the access log share the descriptor."""
    render: structlog.types.Processor = structlog.processors.JSONRenderer()
    if form == "human":
        render = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            _bounded,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        # Not PrintLogger: it writes the newline separately, and another process may cut in.
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _Unfailing(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    handler = _ToStructlog()
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread


def _bounded(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Cut long tracebacks in the middle."""
    traceback = event.get("exception")
    if isinstance(traceback, str) and len(traceback) > TRACEBACK_MAX:
        half = TRACEBACK_MAX // 2
        event["exception"] = f"{traceback[:half]}\n...\n{traceback[-half:]}"
    return event


class _ToStructlog(logging.Handler):
    """Handler that turns library records (aiohttp, asyncio, uvloop) into events of this log."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._clock = clock
        self._ends_s = 0.0
        self._counts: dict[tuple[str, str], int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Log one record."""
        try:
            if self._is_repeated(record):
                return
            error = record.exc_info[1] if record.exc_info else None
            if isinstance(error, HttpProcessingError):
                # The message quotes the unparsable bytes, which may contain a key.
                reason = type(error).__name__
                log.warning("a request is no HTTP", logger=record.name, reason=reason)
                return
            text = record.getMessage()[:TEXT_MAX]
            level = min(record.levelno, logging.ERROR)
            log.log(level, text, logger=record.name, exc_info=record.exc_info or None)
        except Exception:  # noqa: BLE001 - a failed log call must not stop its caller
            self.handleError(record)

    def _is_repeated(self, record: logging.LogRecord) -> bool:
        """Return whether the limit for this kind is reached; a later event reports the count."""
        now = self._clock()
        if now >= self._ends_s:
            left_out = sum(max(0, count - REPEATS_MAX) for count in self._counts.values())
            if left_out:
                log.warning("records of libraries left out", count=left_out)
            self._ends_s = now + WINDOW_S
            self._counts.clear()
        key = (record.name, str(record.msg)[:TEXT_MAX])
        count = self._counts.get(key, 0) + 1
        if len(self._counts) < REPEATS_MAX * 100 or key in self._counts:
            self._counts[key] = count
            return count > REPEATS_MAX
        return True


def _uncaught(kind: type[BaseException], error: BaseException, _trace: object) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    log.critical("the process ends by an error", exc_info=error)


def _uncaught_in_thread(arguments: threading.ExceptHookArgs) -> None:
    name = "" if arguments.thread is None else arguments.thread.name
    log.error("a thread died", thread=name, exc_info=arguments.exc_value)


class _Unfailing:
    """Stream that ignores write errors: a full disk or a closed pipe must not stop the code that
    logs. It has the methods that WriteLogger needs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write as much as possible; a partial line may be lost."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)

    def flush(self) -> None:
        """Flush, if possible."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def access_writer(
    form: Literal["human", "json"], descriptor: int = 2, *, is_shared: bool = True
) -> Write[AccessEvent]:
    """Return a writer of access log lines to `descriptor`, in the server log's format. It writes
    whole lines, so that several processes (`is_shared`) can share the descriptor. Lines that cannot
    be written are lost."""
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
    except OSError:  # closed: no write will succeed
        return 0


def _room(descriptor: int) -> int:
    """Return the bytes that an empty pipe takes in one write; 0 if it is not empty. Only a write
    that has to wait for room can be mixed with others. Large writes save the event loop 0.5 us per
    event, as it waits for the interpreter lock after each. Half of the room is left to the server's
    own log."""
    waiting = array("i", [0])
    try:
        fcntl.ioctl(descriptor, termios.FIONREAD, waiting)
        return 0 if waiting[0] else fcntl.fcntl(descriptor, fcntl.F_GETPIPE_SZ)
    except OSError:
        return 0


def _pieces(lines: bytes, most: int) -> Iterator[bytes]:
    """Yield pieces of whole lines, each of at most `most` bytes unless one line is longer."""
    start = 0
    while len(lines) - start > most:
        end = lines.rfind(b"\n", start, start + most) + 1 or lines.index(b"\n", start) + 1
        yield lines[start:end]
        start = end
    yield lines[start:]


def _put(descriptor: int, piece: bytes) -> None:
    # A full disk or a closed pipe must not stop requests.
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
    host = f" host={event.host}" if event.host else ""
    method = f" method={event.method}" if event.method else ""
    if event.first_byte_ms is not None:
        parts.append(f" first_byte_ms={event.first_byte_ms:.3f}")
    trace = f" trace_id={event.trace_id}" if event.trace_id else ""
    return (
        f"{event.timestamp} [info     ] request                        {event.outcome}{cold}"
        f" status={event.status or '-'} ms={event.ms:.3f} queue_ms={event.queue_ms:.3f}"
        f" function={event.function or '-'} revision={event.revision or '-'}"
        f" replica={event.replica or '-'}{host}{method} sends={event.sends}"
        f" bytes_in={event.bytes_in}"
        f" bytes_out={event.bytes_out}{''.join(parts)} request_id={event.request_id}{trace}\n"
    )
