"""Programs of a build: started clean, watched, and ended with their children."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from registry.errors import EnvironmentRefused

LAUNCH: Final = Path(__file__).with_name("launch.py")
OUTPUT_MAX: Final = 1024 * 1024
"""Max bytes of a program's stdout: more is an error."""
TEXT_MAX: Final = 128 * 1024
"""Bytes of a program's stderr that are kept: as many of its begin as of its end."""
STEP_S: Final = 0.1
"""Seconds between two looks at cancellation, deadline and what was written."""
SEARCH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_READ: Final = 64 * 1024


class WorkCancelled(Exception):
    """The caller cancelled a piece of work; it has changed nothing."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a piece of work is; `total` is 0 if it is unknown."""

    phase: str
    """`wait`, `resolve`, `load`, `check`, `compile` or `store`."""
    done: int = 0
    """Bytes in `resolve` and `load`, else files."""
    total: int = 0


@dataclass(slots=True)
class Work:
    """What a caller knows about a piece of work: who is told, how it is cancelled, how long it may
    take. `told` is called in the thread that works."""

    told: Callable[[Progress], None] = field(default=lambda _: None)
    cancelled: threading.Event = field(default_factory=threading.Event)
    seconds: float = 3600.0
    """Max seconds from the creation of this object on."""
    _end_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._end_s = time.monotonic() + self.seconds

    def check(self) -> None:
        """Raise WorkCancelled if it was cancelled, EnvironmentRefused if it takes too long."""
        if self.cancelled.is_set():
            raise WorkCancelled("cancelled")
        if time.monotonic() > self._end_s:
            raise EnvironmentRefused(f"expected an end within {self.seconds:.0f} s, got none")

    def pause(self) -> None:
        """Wait one step, or until it is cancelled."""
        self.cancelled.wait(STEP_S)
        self.check()


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a program; EnvironmentRefused when it exceeds one."""

    seconds: float
    written_max: int = 64 * 1024 * 1024
    """Max bytes that it writes to files."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What a program left."""

    code: int
    """Its exit code, negative for a signal."""
    out: bytes
    text: str
    """Its stderr; of a long one begin and end."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run. It gets no variable and no descriptor besides these."""

    arguments: Sequence[str | Path]
    folder: Path
    """Working folder; also its HOME."""
    environment: Mapping[str, str] = field(default_factory=dict)
    held: tuple[int, ...] = ()
    """Descriptors that it holds until it ends: those of locks."""


def run(program: Program, limits: Limits, work: Work, phase: str = "") -> Ended:
    """Run a program to its end; with a `phase`, `work` is told what it has written.

    Raises WorkCancelled, EnvironmentRefused at a limit, and OSError if it cannot be started. What
    it has started is ended with it, in each case.
    """
    running = _Running(program, limits)
    try:
        return running.until_end(limits, work, phase)
    finally:
        running.close()


class _Running:
    def __init__(self, program: Program, limits: Limits) -> None:
        name = Path(program.arguments[0]).name
        self._name = name
        environment = {
            "PATH": SEARCH,
            "HOME": str(program.folder),
            "TMPDIR": str(program.folder),
            "LANG": "C.UTF-8",
            **program.environment,
        }
        command = [sys.executable, "-I", "-S", str(LAUNCH), str(os.getpid())]
        self._process = subprocess.Popen(
            [*command, str(limits.written_max), *map(str, program.arguments)],
            cwd=program.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            pass_fds=program.held,
        )
        self._out, self._first, self._last = bytearray(), bytearray(), bytearray()
        self._selector = selectors.DefaultSelector()
        self._pidfd = os.pidfd_open(self._process.pid)
        self._selector.register(self._pidfd, selectors.EVENT_READ)
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ)

    def until_end(self, limits: Limits, work: Work, phase: str) -> Ended:
        """Read what it writes until it ends."""
        end_s = time.monotonic() + limits.seconds
        written = 0
        if phase:
            work.told(Progress(phase))
        while not self._turn():
            work.check()
            if time.monotonic() > end_s:
                text = f"{self._name}: expected an end within {limits.seconds:.0f} s, got none"
                raise EnvironmentRefused(text)
            before, written = written, self._written()
            if written > limits.written_max:
                most = f"{limits.written_max / 2**20:.1f} MiB"
                raise EnvironmentRefused(f"{self._name}: expected at most {most} written, got more")
            self._check_output()
            if phase and written != before:
                work.told(Progress(phase, written))
        self._kill()
        code = self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            while self._read(pipe):
                pass
        self._check_output()
        return Ended(code, bytes(self._out), self._text())

    def close(self) -> None:
        """End what still runs, and free all descriptors. Idempotent."""
        if self._process.returncode is None:
            self._kill()
            self._process.wait()
        self._selector.close()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        os.close(self._pidfd)

    def _turn(self) -> bool:
        """Wait for one step or what comes earlier; return whether the program has ended."""
        has_ended = False
        for key, _ in self._selector.select(STEP_S):
            if key.fd == self._pidfd:
                has_ended = True
            elif not self._read(key.fileobj):
                self._selector.unregister(key.fileobj)
        return has_ended

    def _read(self, pipe: object) -> bool:
        """Read one piece; return False where nothing is there, at the end too."""
        assert pipe is not None
        try:
            data = os.read(pipe.fileno(), _READ)  # type: ignore[attr-defined]
        except BlockingIOError:
            return False
        if pipe is self._process.stdout:
            self._out += data[: max(0, OUTPUT_MAX + 1 - len(self._out))]
        else:
            room = max(0, TEXT_MAX // 2 - len(self._first))
            self._first += data[:room]
            self._last = (self._last + data[room:])[-TEXT_MAX // 2 :]
        return bool(data)

    def _check_output(self) -> None:
        if len(self._out) > OUTPUT_MAX:
            raise EnvironmentRefused(f"{self._name}: expected at most {OUTPUT_MAX} B, got more")

    def _text(self) -> str:
        return (self._first + self._last).decode("utf-8", "replace")

    def _written(self) -> int:
        """Return the bytes that it has written to files and pipes; 0 where nobody may know."""
        with contextlib.suppress(OSError, ValueError):
            for line in Path(f"/proc/{self._process.pid}/io").read_text().splitlines():
                if line.startswith("wchar: "):
                    return int(line[7:])
        return 0

    def _kill(self) -> None:
        """Kill the whole group. Its number is not used again before `wait`."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
