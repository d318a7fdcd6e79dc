"""Logs of replicas: files of which only the end is kept, and their followers.

The beginning of a log is removed by punching a hole (fallocate(2)): concurrent writes are not lost,
and every offset keeps naming the same byte. Followers read the files; one that is too slow gets a
line with the number of dropped bytes. `Spool` copies output that an engine keeps to such a file.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

LINE_MAX: Final = 16 * 1024
"""Max bytes shown of a line."""


PIECE: Final = 64 * 1024
"""Max bytes of one log per read."""
TAIL_MAX: Final = 1024 * 1024
"""Bytes at the end of a log in which its last lines are searched."""
CURSOR_MAX: Final = 4096
"""Max characters of a cursor; a function with too many replicas for it has no cursor."""
_PLACE: Final = re.compile(r"([0-9a-z]{1,32}):([0-9]{1,15})")
Refresh = Callable[[str], None]
"""Starts to copy a replica's output to its log, if its driver does not write the log itself."""
BLOCK: Final = 4096
"""Bytes of a block; holes consist of whole blocks."""
SIZE_MAX: Final = 2**40
"""File size from which a log is rewritten instead: file systems limit it, e.g. to 16 TiB."""
DROPPED: Final = b"... earlier output was dropped ...\n"
_PUNCH: Final = 0x01 | 0x02
"""FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE of linux/falloc.h."""
_NO_HOLES: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV)
_libc = ctypes.CDLL(None, use_errno=True)
STAMP: Final = len("2026-01-02T03:04:05.123456789Z")
"""Length of the engine's timestamps: UTC, always with nine fractional digits."""
NS: Final = 10**9
Ask = Callable[[int], Awaitable[bytes | None]]
"""Returns the output since a time (Unix seconds), with a timestamp before each line; None without
an answer."""


class LogChunk(NamedTuple):
    """Bytes of a log. `data` begins at offset `start`; the bytes between the requested offset and
    `start` are gone."""

    start: int
    data: bytes


def read_log(path: Path, place: int, size: int) -> LogChunk:
    """Return the first kept bytes from offset `place` on, at most `size`. Raises OSError.

    If the log was rewritten, the number of missed bytes is unknown: reading continues at its end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        length = os.fstat(descriptor).st_size
        if place >= length:
            return LogChunk(length, b"")
        start = _data_from(descriptor, place, length)
        return LogChunk(start, os.pread(descriptor, size, start))
    finally:
        os.close(descriptor)


def read_kept(path: Path, most: int) -> bytes:
    """Return the last `most` kept bytes, from the start of a line. If there was more, a line that
    marks the cut comes first. Raises OSError."""
    start, data = _tail(path, most)
    return DROPPED + data.partition(b"\n")[2] if start else data


def _tail(path: Path, most: int) -> LogChunk:
    """Return the last `most` kept bytes. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        length = os.fstat(descriptor).st_size
        start = max(_data_from(descriptor, 0, length), length - most)
        return LogChunk(start, os.pread(descriptor, most, start))
    finally:
        os.close(descriptor)


def find_last_lines(path: Path, count: int, most: int) -> int:
    """Return the offset at which the last `count` lines begin, searched in the last `most` bytes.
    Raises OSError."""
    start, data = _tail(path, most)
    place = len(data) - data.endswith(b"\n")
    for _ in range(count):
        place = data.rfind(b"\n", 0, max(0, place))
        if place < 0:
            # `data` begins within a line if anything before it is gone.
            return start + (data.find(b"\n") + 1 if start else 0)
    return start + place + 1


def bound_log(path: Path, limit: int, keep: int) -> bool:
    """Cut a log of more than `limit` bytes down to about its last `keep` bytes; True if it was cut.
    Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        length = found.st_size
        if length - _data_from(descriptor, 0, length) <= limit:
            return False
        end = (length - keep) // BLOCK * BLOCK
        if length > SIZE_MAX or not _punched(descriptor, end):
            _begin_anew(path, descriptor, length, keep)
        # Keep the modification time: it is that of the last line, after which `Spool` continues.
        os.utime(descriptor, ns=(found.st_atime_ns, found.st_mtime_ns))
        return True
    finally:
        os.close(descriptor)


def disk_bytes(path: Path) -> int:
    """Return the bytes that a log occupies on disk. Raises OSError."""
    return path.stat().st_blocks * 512


def _data_from(descriptor: int, place: int, length: int) -> int:
    """Return the first offset from `place` on that is not in a hole."""
    try:
        return os.lseek(descriptor, place, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # only a hole up to the end, or an empty file
            return length
        raise


def _punched(descriptor: int, end: int) -> bool:
    """Punch a hole before `end`; False if the file system does not support it. Raises OSError."""
    if end <= 0:
        return True
    offset, length = ctypes.c_int64(0), ctypes.c_int64(end)
    if _libc.fallocate64(descriptor, _PUNCH, offset, length) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_HOLES:
        return False
    raise OSError(code, os.strerror(code))


def _begin_anew(path: Path, descriptor: int, length: int, keep: int) -> None:
    """Rewrite the log with its last `keep` bytes. The writer appends (O_APPEND), so its next line
    follows them. Lines written between the read and the truncation are lost."""
    data = os.pread(descriptor, keep, max(0, length - keep)).partition(b"\n")[2]
    os.ftruncate(descriptor, 0)
    with path.open("ab") as log:
        log.write(DROPPED + data)


class LineSplitter:
    """Splits bytes into lines of text of at most `LINE_MAX` bytes. The number of omitted bytes is
    shown in a separate line, or at the end of the cut line."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._cut = 0
        self._lost = 0
        self.pending = 0
        """Bytes received of the unfinished line."""

    def add(self, data: bytes) -> list[str]:
        """Add `data`; return the lines that end in it."""
        found: list[str] = []
        if self._lost and data:
            # `data` begins with the rest of a line whose beginning is gone.
            broken, end, data = data.partition(b"\n")
            self._lost += len(broken) + len(end)
            if not end:
                return found
            found.append(left_out(self._lost))
            self._lost = 0
        *whole, rest = data.split(b"\n")
        for part in whole:
            self._keep(part)
            found.append(self._line())
        self._keep(rest)
        return found

    def skip(self, count: int) -> None:
        """Record `count` missing bytes; the next bytes may begin within a line."""
        self._lost += count + self.pending
        self._clear()

    def flush(self) -> list[str]:
        """Return the unfinished last line at the end of the log, if there is one."""
        found = [left_out(self._lost)] if self._lost else []
        self._lost = 0
        return [*found, self._line()] if self.pending else found

    def _keep(self, part: bytes) -> None:
        kept = part[: LINE_MAX - len(self._rest)]
        self._rest += kept
        self._cut += len(part) - len(kept)
        self.pending += len(part)

    def _line(self) -> str:
        text = self._rest.decode(errors="replace").rstrip("\r")
        if self._cut:
            text += f" ... {self._cut} bytes omitted"
        self._clear()
        return text

    def _clear(self) -> None:
        self._rest.clear()
        self._cut = self.pending = 0


def left_out(count: int) -> str:
    """Return the line that replaces dropped output."""
    return f"... {count} bytes of output were dropped ..."


class LogLines(NamedTuple):
    """Whole lines of one replica. `is_over`: the replica is gone, and these are its last lines."""

    replica: str
    lines: list[str]
    is_over: bool


class _FollowedLog:
    """Reading position of one follower in one replica's log."""

    def __init__(self, path: Path, place: int = 0) -> None:
        self.path = path
        self.place = place
        self.lines = LineSplitter()
        self.is_gone = False

    def read(self) -> tuple[list[str], bool]:
        """Return new lines, and whether they are the last. Blocking."""
        # Taken before the read: if it was gone by then, the read sees everything it has written.
        was_gone = self.is_gone
        try:
            start, data = read_log(self.path, self.place, PIECE)
        except OSError:  # not created yet, or removed to make room
            start, data = self.place, b""
        if start != self.place:
            # `start` is smaller than `self.place` if the log was rewritten.
            self.lines.skip(max(0, start - self.place))
        found = self.lines.add(data)
        self.place = start + len(data)
        is_over = was_gone and not data
        return found + (self.lines.flush() if is_over else []), is_over


class Follow:
    """One follower of a function's logs. `read` returns new lines; a later follower can resume at
    `cursor`."""

    def __init__(self, refresh: Refresh) -> None:
        self._refresh = refresh
        self._sources: dict[str, _FollowedLog] = {}

    def add(self, id: str, path: Path, place: int = 0, *, is_gone: bool = False) -> None:
        """Follow a replica's log from offset `place` on; a known replica keeps its position."""
        source = self._sources.setdefault(id, _FollowedLog(path, place))
        source.path, source.is_gone = path, is_gone

    def end(self, id: str) -> None:
        """Mark a replica as gone; the rest of its log is still read."""
        if id in self._sources:
            self._sources[id].is_gone = True

    async def read(self) -> list[LogLines]:
        """Return the new lines since the last call, from at most PIECE bytes of each log."""
        for id, source in self._sources.items():
            if not source.is_gone:
                self._refresh(id)
        said = await asyncio.to_thread(_read_all, list(self._sources.items()))
        for one in said:
            if one.is_over:
                del self._sources[one.replica]
        return said

    def left(self) -> list[LogLines]:
        """Return the unfinished last line of every log, for a follower that stops."""
        return [LogLines(id, one.lines.flush(), is_over=True) for id, one in self._sources.items()]

    @property
    def cursor(self) -> str:
        """Offsets in each log after the last whole line, as text; "" if that would be too long."""
        places = [f"{id}:{one.place - one.lines.pending}" for id, one in self._sources.items()]
        text = f"@{','.join(places)}"
        return text if len(text) <= CURSOR_MAX else ""


def _read_all(sources: Iterable[tuple[str, _FollowedLog]]) -> list[LogLines]:
    said = [LogLines(id, *source.read()) for id, source in sources]
    return [one for one in said if one.lines or one.is_over]


def parse_cursor(cursor: str) -> dict[str, int] | None:
    """Return a cursor's offsets by replica; None if it is malformed."""
    if not cursor.startswith("@") or len(cursor) > CURSOR_MAX:
        return None
    parts = [_PLACE.fullmatch(part) for part in cursor[1:].split(",") if part]
    found = {match[1]: int(match[2]) for match in parts if match is not None}
    return found if len(found) == len(parts) else None


class Followers:
    """All followers by function. `refresh` is called for each live replica at each read."""

    def __init__(self, refresh: Refresh) -> None:
        self._refresh = refresh
        self._follows: dict[str, set[Follow]] = {}

    @contextmanager
    def follow(self, function: str) -> Iterator[Follow]:
        """Yield a follower that gets new replicas and their ends while the block runs."""
        follow = Follow(self._refresh)
        others = self._follows.setdefault(function, set())
        others.add(follow)
        try:
            yield follow
        finally:
            others.discard(follow)
            if not others:
                self._follows.pop(function, None)

    def begin(self, id: str, path: Path) -> None:
        """Add a replica that writes to `path` to the followers of its function, which is the name
        of the folder."""
        for follow in self._follows.get(path.parent.name, ()):
            follow.add(id, path)

    def end(self, id: str, path: Path) -> None:
        """Mark a replica as gone for the followers of its function."""
        for follow in self._follows.get(path.parent.name, ()):
            follow.end(id)


class Spool:
    """Copies each line of an engine's output to a log exactly once. A log's mtime is the timestamp
    of its last line, after which the next server continues.

    A replica may have several sources of output, each of which is copied in order; lines that come
    together are in the order of their timestamps. If the server ends between two requests of one
    copy, a source's lines of these milliseconds are lost.
    """

    def __init__(self) -> None:
        self._last: dict[str, dict[str, str]] = {}
        """Timestamps of the last lines by source, by replica; "" has that at the first copy."""
        self._locks: dict[str, asyncio.Lock] = {}

    async def fetch(self, id: str, log: Path, sources: Mapping[str, Ask]) -> None:
        """Append the new output of replica `id` to `log`. Raises OSError, and what a source
        raises."""
        lock = self._locks.setdefault(id, asyncio.Lock())
        async with lock:
            last = dict(self._last.get(id, {}))
            if not last:
                last[""] = await asyncio.to_thread(_stamp_of, log)
            found: list[tuple[str, bytes]] = []
            for name, ask in sources.items():
                after = last.get(name, last[""])
                output = await ask(_second_of(after)) or b""
                is_own = after != last[""] or len(sources) == 1
                lines = fresh(output, after, is_own=is_own)
                last[name] = lines[-1][0] if lines else after
                found += lines
            if found:
                found.sort(key=lambda line: line[0])
                text = b"".join(text for _, text in found)
                await asyncio.to_thread(_append, log, text, max(last.values()))
            # The replica may have been released in the meantime.
            if self._locks.get(id) is lock:
                self._last[id] = last

    def forget(self, id: str) -> None:
        """Drop the state of a replica that has ended."""
        self._last.pop(id, None)
        self._locks.pop(id, None)


def fresh(output: bytes, after: str, *, is_own: bool = True) -> list[tuple[str, bytes]]:
    """Return the lines later than `after`: the timestamp and the text of each.

    An unfinished line is left for the next call: the engine returns a long line in parts, all with
    the timestamp of the first. If the line of `after` is missing from `output`, the engine has
    dropped output or did not return all of it: a line that says so is inserted, unless `after` is
    the timestamp of another source (`is_own`).
    """
    found: list[tuple[str, bytes]] = []
    is_first = is_own
    for line in output.split(b"\n")[:-1]:
        stamp, text = line[:STAMP], line[STAMP + 1 :]
        shown = stamp.decode("ascii", "replace")
        if is_first and after and shown > after:
            found.append((shown, DROPPED))
        is_first = False
        if shown > after:
            found.append((shown, text.replace(stamp + b" ", b"") + b"\n"))
    return found


def _append(log: Path, text: bytes, last: str) -> None:
    with log.open("ab") as file:
        file.write(text)
    with suppress(ValueError):
        at_ns = _second_of(last) * NS + int(last[STAMP - 10 : STAMP - 1])
        os.utime(log, ns=(at_ns, at_ns))


def _stamp_of(log: Path) -> str:
    """Return the timestamp of a log's last line, "" if it has none."""
    try:
        found = log.stat()
    except OSError:
        return ""
    if not found.st_size:
        return ""
    seconds, ns = divmod(found.st_mtime_ns, NS)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ns:09d}Z"


def _second_of(stamp: str) -> int:
    """Return a timestamp's Unix seconds; 0 for ""."""
    with suppress(ValueError):
        return int(datetime.fromisoformat(f"{stamp[:19]}+00:00").timestamp())
    return 0
