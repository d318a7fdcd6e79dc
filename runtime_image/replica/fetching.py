"""Fetches the files of a model from the server's door, by content, to the model folder.

Files are cut into ranges, which several connections fetch at the same time, so that one large file
uses them all. What arrives is written to the file at once; each connection has one small buffer. A
SHA-256 needs its bytes in order: whoever completes the range at which it stands goes on with it,
over all ranges behind it that are complete. These were written a moment ago, at most a few ranges
before, and are read from the page cache: no file is read twice from a disk.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import socket
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast

from runtime_image.contract.enrolment import (
    FETCH_PATIENCE_S,
    FETCH_PROGRESS_MIN,
    FETCHES_MAX,
    Fetch,
    FetchedFile,
)
from runtime_image.contract.errors import LoadError
from runtime_image.contract.link import HEADER, Kind
from runtime_image.contract.model import PART_MAX
from runtime_image.link.frames import LinkError, pack

RANGE: Final = 8 * 1024 * 1024
"""Bytes of one FETCH."""
AHEAD: Final = 2
"""FETCHes of one connection that are not answered yet: the next one is there when one ends."""
SMALL_FILES: Final = 64
"""Files that are worth a connection of their own, however small they are."""
BUFFER: Final = 256 * 1024
"""Bytes that a connection receives before it writes them to the file."""
SILENCE_S: Final = 60.0
"""Seconds without a byte after which a connection counts as broken. FETCHes of many replicas wait
for their turn."""
LOOK_S: Final = 1.0
"""Interval between two looks at the progress."""
REFUSED_S: Final = 15.0
"""Seconds for which a file may be refused: a server that has just started does not know at once
which files this replica may fetch."""
PAUSE_S: Final = 0.1
PAUSE_MAX_S: Final = 5.0
"""First and longest pause between two connections; it doubles while they bring nothing."""
REASON_MAX: Final = 16 * 1024
"""Max bytes of a FAILED."""
DEPTH_MAX: Final = 64
"""Max parts of a path."""
HASHED: Final = 1024 * 1024
"""Bytes that are read at once to be hashed."""

_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class FetchSocket(Protocol):
    """A connection to the door, blocking. Methods raise OSError."""

    def settimeout(self, seconds: float | None) -> None: ...

    def sendall(self, data: bytes) -> None: ...

    def recv_into(self, buffer: memoryview) -> int: ...

    def shutdown(self, how: int) -> None: ...

    def close(self) -> None: ...


Dial = Callable[[], FetchSocket]
"""Connects to the server's door; blocking, for some seconds at most. Raises OSError, LinkError."""


class FetchFailed(LoadError):
    """A file cannot be fetched, or is not what was announced; the text has expected and actual
    value."""

    stage = "fetch"


class Fetched(NamedTuple):
    """What was fetched; files that were there already do not count."""

    files: int
    bytes: int
    ms: float


@dataclass(slots=True, eq=False)
class _File:
    """A file that is being fetched, under a temporary name until its hash is proven."""

    path: str
    size: int
    sha256: str
    temporary: Path
    descriptor: int = -1
    """-1 before its first range, and when it is complete."""
    hashed: int = 0
    """Bytes that `digest` has."""
    complete: dict[int, int] = field(default_factory=dict)
    """Ends of complete ranges by their begin, which `digest` does not have yet."""
    is_hashing: bool = False
    """Whether a thread goes on with `digest`."""
    refused_s: float | None = None
    """When it was refused first."""
    digest: Any = field(default_factory=hashlib.sha256)

    def __str__(self) -> str:
        return f"{self.path} (sha256 {self.sha256}, {self.size} bytes)"


@dataclass(slots=True, eq=False)
class _Range:
    """What is missing of a range: it begins at `at`, which moves on with what is written."""

    file: _File
    begin: int
    end: int
    at: int
    id: int = 0
    """That of its FETCH."""


class _Broken(Exception):
    """A connection broke; another one can go on. The text is the reason."""


class _Refused(_Broken):
    """The server does not give out a file. The text is its reason."""

    def __init__(self, file: _File, reason: str) -> None:
        super().__init__(f"the server refused it: {reason}")
        self.file = file


class Fetcher:
    """Fetches the files of one replica, one set at a time. `cancel` is for any thread."""

    def __init__(
        self,
        dial: Dial,
        folder: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[threading.Event, float], object] = threading.Event.wait,
    ) -> None:
        """`folder` is the model folder. `wait(event, seconds)` returns when the event is set, or
        after so many seconds."""
        self._dial = dial
        self._folder = folder
        self._clock = clock
        self._wait = wait
        self._lock = threading.Lock()
        self._ended = threading.Event()
        """Whether no connection may go on."""
        self._failure: BaseException | None = None
        self._is_cancelled = False
        self._ranges: deque[_Range] = deque()
        self._sockets: set[FetchSocket] = set()
        self._open = 0
        """Files that are not complete."""
        self._received = 0
        self._progress = (0, 0.0)
        """Bytes received, and when, of the last progress that counts."""
        self._looked_s = 0.0
        self._broken = ""
        """Why the last connection broke, as text for users."""

    def fetch(self, files: Sequence[FetchedFile]) -> Fetched:
        """Fetch the files that the model folder lacks, blocking. They get their names when their
        hash is proven. Raises FetchFailed; threads are over then, and temporary files removed."""
        began_s = self._clock()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            missing = [one for one in _checked(files) if not _is_there(self._folder, one)]
            if not missing:
                return Fetched(0, 0, 0.0)
            total = sum(one["size"] for one in missing)
            self._check_space(total)
            # Not by tempfile and shutil: their imports cost a cold start 4 ms.
            scratch = self._folder / f".fetch-{os.urandom(8).hex()}"
            scratch.mkdir(mode=0o700)
            try:
                self._fetch(missing, scratch, total)
            finally:
                with suppress(OSError):  # the folder may be removed with its replica
                    for left in scratch.iterdir():
                        left.unlink()
                    scratch.rmdir()
        except OSError as error:
            raise FetchFailed(self._disk_text(error)) from error
        return Fetched(len(missing), total, (self._clock() - began_s) * 1e3)

    def cancel(self) -> None:
        """End a fetch that is in progress, and each later one."""
        self._is_cancelled = True
        self._end(FetchFailed("the fetch was cancelled: the replica ends"))

    def _fetch(self, missing: Sequence[FetchedFile], scratch: Path, total: int) -> None:
        now = self._clock()
        with self._lock:
            self._progress, self._looked_s, self._received = (0, now), now, 0
            self._open = len(missing)
            if not self._is_cancelled:
                self._ended.clear()
                self._failure = None
        files = []
        for number, one in enumerate(missing):
            temporary = scratch / str(number)
            files.append(_File(one["path"], one["size"], one["sha256"], temporary))
        self._ranges = deque(part for file in files for part in _cut(file))
        count = min(FETCHES_MAX, max(1, -(-total // RANGE), len(files) // SMALL_FILES))
        threads = [
            threading.Thread(target=self._run, name=f"fetch {number}", daemon=True)
            for number in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for file in files:
            if file.descriptor >= 0:
                os.close(file.descriptor)
        if self._failure is not None:
            raise self._failure

    # Connections, each in a thread of its own

    def _run(self) -> None:
        """Fetch ranges until there are none, over one connection after the other."""
        pause_s = PAUSE_S
        try:
            while not self._ended.is_set() and self._ranges:
                before = self._received
                try:
                    self._connect()
                except _Broken as error:
                    self._broken = str(error)
                    if isinstance(error, _Refused):
                        self._bear(error)
                else:
                    continue  # other connections may give ranges back
                if self._received - before >= FETCH_PROGRESS_MIN:
                    pause_s = PAUSE_S
                self._look(self._clock())
                self._wait(self._ended, pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
        except BaseException as error:  # noqa: BLE001 - `fetch` raises it
            self._end(error)

    def _connect(self) -> None:
        """Fetch ranges over one connection. Raises _Broken if it breaks."""
        try:
            sock = self._dial()
        except (OSError, LinkError) as error:
            raise _Broken(f"cannot connect: {error}") from error
        with self._lock:
            self._sockets.add(sock)
        asked: deque[_Range] = deque()
        try:
            sock.settimeout(SILENCE_S)
            connection = _Connection(sock, self._on_bytes)
            while not self._ended.is_set():
                while len(asked) < AHEAD and (taken := self._take()):
                    asked.append(taken)
                    connection.ask(taken)
                if not asked:
                    return
                connection.receive(asked[0])
                self._complete(asked.popleft())
        finally:
            with self._lock:
                self._sockets.discard(sock)
                self._ranges.extendleft(reversed(asked))
            with suppress(OSError):
                sock.close()

    def _take(self) -> _Range | None:
        """Return the next range, whose file is open then; None if there is none. An empty file has
        nothing to fetch."""
        while True:
            with self._lock:
                if not self._ranges:
                    return None
                taken = self._ranges.popleft()
                file = taken.file
                if file.descriptor < 0:
                    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                    file.descriptor = os.open(file.temporary, flags, 0o644)
            if taken.at < taken.end:
                return taken
            self._complete(taken)

    def _on_bytes(self, count: int) -> None:
        """Count what was received, and end without enough of it."""
        now = self._clock()
        with self._lock:
            self._received += count
        if now - self._looked_s >= LOOK_S:
            self._look(now)

    def _look(self, now: float) -> None:
        """Raise FetchFailed if there was no progress for too long."""
        with self._lock:
            self._looked_s = now
            received, since_s = self._progress
            if self._received - received >= FETCH_PROGRESS_MIN:
                self._progress = self._received, now
                return
            came = self._received - received
        if now - since_s >= FETCH_PATIENCE_S:
            why = f": {self._broken}" if self._broken else ""
            raise FetchFailed(
                f"expected at least {FETCH_PROGRESS_MIN} bytes of the model's files within"
                f" {FETCH_PATIENCE_S:.0f} s, got {came} from the server{why}"
            )

    def _bear(self, error: _Refused) -> None:
        """Raise FetchFailed if a file has been refused for too long."""
        file, now = error.file, self._clock()
        with self._lock:
            if file.refused_s is None:
                file.refused_s = now
            since_s = file.refused_s
        if now - since_s >= REFUSED_S:
            raise FetchFailed(f"expected {file}, {error}") from error

    def _end(self, failure: BaseException) -> None:
        """Let all connections end; the first failure counts."""
        with self._lock:
            if self._failure is None:
                self._failure = failure
            self._ended.set()
            sockets = list(self._sockets)
        for sock in sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    # Files

    def _complete(self, done: _Range) -> None:
        """Go on with the hash of a file, unless another thread does; name a file that is whole."""
        file = done.file
        with self._lock:
            file.complete[done.begin] = done.end
            if file.is_hashing:
                return
            file.is_hashing = True
        buffer = bytearray(min(HASHED, file.size))
        while True:
            with self._lock:
                end = file.complete.pop(file.hashed, None)
                if end is None:
                    file.is_hashing = False
                    return
            _hash(file, end, buffer)
            if file.hashed == file.size:
                break
        self._name(file)

    def _name(self, file: _File) -> None:
        """Give a whole file its name. Raises FetchFailed if it is another one."""
        os.close(file.descriptor)
        file.descriptor = -1
        if (got := file.digest.hexdigest()) != file.sha256:
            raise FetchFailed(f"expected {file.path} with sha256 {file.sha256}, got {got}")
        target = self._folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        file.temporary.replace(target)

    def _check_space(self, needed: int) -> None:
        if (free := _free_bytes(self._folder)) < needed:
            raise FetchFailed(
                f"no space for the model's files: expected {needed} bytes free in {self._folder},"
                f" got {free}"
            )

    def _disk_text(self, error: OSError) -> str:
        reason = error.strerror or str(error)
        return f"the model's files cannot be stored: {reason}, in {self._folder}"


def fetcher(dial: Dial | None, folder: Path) -> Fetcher:
    """Return the fetcher of a replica. Raises FetchFailed for one that cannot dial in, to which
    files should not be named."""
    if dial is None:
        raise FetchFailed("expected all files in the model folder, got files to fetch")
    return Fetcher(dial, folder)


class _Connection:
    """The frames of one connection: FETCH, and PART, END, FAILED. Not a `FrameReader`, which would
    hold a whole PART: what arrives goes to the file, so that not even a part of one is fetched
    twice."""

    def __init__(self, sock: FetchSocket, on_bytes: Callable[[int], None]) -> None:
        self._sock = sock
        self._on_bytes = on_bytes
        self._head = memoryview(bytearray(HEADER.size))
        self._buffer = memoryview(bytearray(BUFFER))
        self._last_id = 0

    def ask(self, part: _Range) -> None:
        """Send FETCH for what is missing of a range. Raises _Broken."""
        self._last_id += 1
        part.id = self._last_id
        length = part.end - part.at
        body: Fetch = {"sha256": part.file.sha256, "offset": part.at, "length": length}
        try:
            self._sock.sendall(b"".join(pack(Kind.FETCH, part.id, json.dumps(body).encode())))
        except OSError as error:
            raise _Broken(_words(error)) from error

    def receive(self, part: _Range) -> None:
        """Write what is missing of a range to its file, up to its END. Raises _Broken with the
        range as far as it came, _Refused, FetchFailed for anything but the bytes asked for."""
        while True:
            self._fill(self._head)
            size, id, kind, _, meta, _ = HEADER.unpack(self._head)
            if kind == Kind.FAILED and size <= REASON_MAX and not meta:
                self._refused(part, size, id)
            left = part.end - part.at
            is_part = kind == Kind.PART and 0 < size <= min(PART_MAX, left)
            is_end = kind == Kind.END and not (size or left)
            if id != part.id or meta or not (is_part or is_end):
                raise FetchFailed(
                    f"expected {left} bytes more of {part.file} as answer {part.id}, got a frame of"
                    f" kind {kind} with {size} bytes as answer {id}"
                )
            if is_end:
                return
            self._store(part, size)

    def _store(self, part: _Range, size: int) -> None:
        while size:
            window = self._buffer[: min(size, BUFFER)]
            size -= len(window)
            count = 0
            try:
                while count < len(window):
                    count += self._receive(window[count:])
            finally:  # also of a connection that breaks now
                _write(part, window[:count])

    def _refused(self, part: _Range, size: int, id: int) -> None:
        body = memoryview(bytearray(size))
        self._fill(body)
        try:
            data: Any = json.loads(bytes(body))
            reason = str(data["reason"])[:1000]
        except (ValueError, KeyError, TypeError, RecursionError):
            reason = "without a reason"
        if id != part.id:
            raise _Broken(f"the server refused the connection: {reason}")
        raise _Refused(part.file, reason)

    def _fill(self, view: memoryview) -> None:
        count = 0
        while count < len(view):
            count += self._receive(view[count:])

    def _receive(self, view: memoryview) -> int:
        try:
            count = self._sock.recv_into(view)
        except OSError as error:
            raise _Broken(_words(error)) from error
        if not count:
            raise _Broken("the server closed the connection")
        self._on_bytes(count)
        return count


def _write(part: _Range, data: memoryview) -> None:
    while data:
        written = os.pwrite(part.file.descriptor, data, part.at)
        part.at += written
        data = data[written:]


def _words(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return f"nothing moved for {SILENCE_S:.0f} s"
    return str(error) or type(error).__name__


def _free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _cut(file: _File) -> list[_Range]:
    """Return the ranges of a file; one without bytes for an empty file."""
    begins = range(0, file.size, RANGE) or range(1)
    return [_Range(file, one, min(one + RANGE, file.size), one) for one in begins]


def _checked(files: object) -> list[FetchedFile]:
    """Return the files of a message. Raises FetchFailed for what no server of ours sends, above all
    a path that leaves the model folder."""
    if not isinstance(files, list):
        raise FetchFailed(f"expected a list of files, got {type(files).__name__}")
    seen = set[str]()
    for one in files:
        path, size, sha256 = (
            (one.get("path"), one.get("size"), one.get("sha256"))
            if isinstance(one, dict)
            else (None, None, None)
        )
        if not isinstance(path, str) or not _is_inside(path) or path in seen:
            raise FetchFailed(
                f"expected paths below the model folder, each once, got {str(path)[:200]!r}"
            )
        if type(size) is not int or size < 0:
            raise FetchFailed(f"expected the bytes of {path}, got {str(size)[:100]!r}")
        if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
            raise FetchFailed(f"expected the sha256 of {path}, got {str(sha256)[:100]!r}")
        seen.add(path)
    return cast("list[FetchedFile]", files)


def _is_inside(path: str) -> bool:
    """Whether a path stays below the folder that it is relative to, on any file system."""
    parts = path.split("/")
    return path.isprintable() and len(parts) <= DEPTH_MAX and not {"", ".", ".."} & set(parts)


def _is_there(folder: Path, file: FetchedFile) -> bool:
    """Whether the folder has a file with this content. Reads it if its size is right."""
    try:
        descriptor = os.open(folder / file["path"], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    with os.fdopen(descriptor, "rb", buffering=0) as found:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size != file["size"]:
            return False
        return hashlib.file_digest(found, "sha256").hexdigest() == file["sha256"]


def _hash(file: _File, end: int, buffer: bytearray) -> None:
    """Go on with the hash of a file, up to `end`."""
    view = memoryview(buffer)
    while file.hashed < end:
        count = os.preadv(file.descriptor, [view[: end - file.hashed]], file.hashed)
        if not count:
            raise OSError(errno.EIO, f"{file.path} lost bytes that were written")
        file.digest.update(view[:count])
        file.hashed += count
