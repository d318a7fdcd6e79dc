"""fnctl on a pseudo-terminal: screen contents, keys, resizing, signals."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from runtime_image.proc import read_stat
from tests.support import job_shell

UNTIL_S = 90.0
ENTER_SCREEN, LEAVE_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
HOME = "\x1b[H"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class PseudoTerminal:
    """A terminal with one command in its foreground, until `close`."""

    def __init__(
        self, command: list[str], environment: Mapping[str, str], size: tuple[int, int]
    ) -> None:
        self._ours, theirs = os.openpty()
        self.resize(*size, told=False)
        self._written = ""
        self._news = threading.Condition()
        self._process = subprocess.Popen(
            [sys.executable, "-P", job_shell.__file__, *command],
            env={"PATH": os.environ["PATH"], "TERM": "xterm-256color", **environment},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def written(self) -> str:
        """Return everything written so far."""
        with self._news:
            return self._written

    @property
    def screen(self) -> list[str]:
        """Return the lines of the last complete screen, without styles."""
        frames = self.written.split(HOME)
        return [line.rstrip() for line in _CONTROL.sub("", frames[-1]).split("\r\n")]

    def until(self, *texts: str) -> None:
        """Wait until all texts are on the screen at once."""
        self.until_so(lambda: all(text in "\n".join(self.screen) for text in texts), texts)

    def until_written(self, text: str) -> None:
        """Wait until `text` has been written, now or earlier."""
        self.until_so(lambda: text in self.written, text)

    def until_so(self, condition: Callable[[], bool], wanted: object) -> None:
        """Wait until `condition` holds; it is checked after every write."""
        end_s = time.monotonic() + UNTIL_S
        while not condition():
            with self._news:
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    screen = "\n".join(self.screen)
                    raise AssertionError(f"expected {wanted}, got\n{screen}")
                self._news.wait(min(left_s, 0.2))

    def press(self, keys: str) -> None:
        """Type `keys`."""
        os.write(self._ours, keys.encode())

    def resize(self, width: int, height: int, told: bool = True) -> None:
        """Resize the terminal; the foreground process gets SIGWINCH."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        if told:
            self.send(signal.SIGWINCH)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the foreground process."""
        os.killpg(os.tcgetpgrp(self._ours), number)

    def cpu_s(self) -> float:
        """Return the CPU seconds used by the command."""
        stat = read_stat(f"/proc/{os.tcgetpgrp(self._ours)}")
        assert stat is not None
        return stat.cpu_s

    def ended(self) -> tuple[int, bool]:
        """Wait for the end; return the exit code, and whether the terminal settings were
        restored."""
        self.until_written("[ended ")
        self._process.wait(UNTIL_S)
        found = re.search(r"\[ended (-?\d+) (\w+)\]", self.written)
        assert found is not None
        return int(found[1]), found[2] == "same"

    def close(self) -> None:
        """Kill what still runs and close the terminal."""
        if self._process.poll() is None:
            self.send(signal.SIGKILL)
        self._process.wait(UNTIL_S)
        self._reader.join(UNTIL_S)
        os.close(self._ours)

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._ours, 65536)
            except OSError:
                return  # the other end is closed
            with self._news:
                self._written += data.decode(errors="replace")
                self._news.notify_all()


@contextmanager
def terminal(
    command: list[str], environment: Mapping[str, str], size: tuple[int, int] = (100, 30)
) -> Iterator[PseudoTerminal]:
    """Run `command` on a terminal of `size` (columns, lines) until the end of the block."""
    opened = PseudoTerminal(command, environment, size)
    try:
        yield opened
    finally:
        opened.close()
