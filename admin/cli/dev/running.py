"""The process of a function on this machine: started, asked whether it is ready, ended."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from environments.launch import NO_LIMIT
from environments.programs import LAUNCH, SEARCH
from registry.errors import BadRequest

HOST: Final = "127.0.0.1"
STOP_S: Final = 5.0
"""Seconds that calls have to end when the process stops."""
ANSWER_MAX: Final = 1024


def choose_port(port: int) -> int:
    """Return a port of this machine that is free, 0 for any. Raises BadRequest."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind((HOST, port))
        except OSError as error:
            text = f"--port {port}: expected a free port, got: {error.strerror}"
            raise BadRequest(text) from error
        return int(taken.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Start:
    """How a process is started, and how it is known to be ready."""

    command: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    programs: Path
    """The shell's folder of programs, the first one of PATH."""
    port: int
    ready: str
    """Path that is asked; any status below 500 means ready."""


class Running:
    """One process with all its children. It ends with the one that started it, however that
    ends."""

    def __init__(self, start: Start) -> None:
        """Raises OSError."""
        environment = {
            "PATH": f"{start.programs}:{SEARCH}",
            "HOME": str(Path.home()),
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            **start.environment,
        }
        command = [sys.executable, "-I", "-S", str(LAUNCH), str(os.getpid()), NO_LIMIT]
        self._process = subprocess.Popen(
            [*command, *start.command],
            cwd=start.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._pidfd = os.pidfd_open(self._process.pid)
        self._start = start
        self._probe: socket.socket | None = None
        self.is_ready = False

    def wait(self, seconds: float) -> int | None:
        """Wait until it ends or becomes ready, for some seconds at most; return its exit code, None
        while it runs."""
        if self._probe is None and not self.is_ready:
            self._connect()
        waited: list[int | socket.socket] = [self._pidfd, *([self._probe] if self._probe else [])]
        readable, _, _ = select.select(waited, [], [], seconds)
        if self._pidfd in readable:
            return self._end()
        if self._probe in readable:
            self._read_answer()
        return None

    def stop(self) -> None:
        """End it, and whatever it has started. An interrupt of this wait ends it at once."""
        try:
            if self._process.returncode is None:
                self._process.terminate()
                select.select([self._pidfd], [], [], STOP_S)
        finally:
            self._end()
            os.close(self._pidfd)
            self._forget_probe()

    def _end(self) -> int:
        """Kill what is left of it and of its children; return its exit code."""
        if self._process.returncode is None:
            # Before it is reaped: until then its number belongs to no other group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        return self._process.wait()

    def _connect(self) -> None:
        probe = socket.socket()
        try:
            probe.settimeout(1.0)
            probe.connect((HOST, self._start.port))
            host = f"Host: {HOST}:{self._start.port}\r\nConnection: close"
            probe.sendall(f"GET {self._start.ready} HTTP/1.1\r\n{host}\r\n\r\n".encode("ascii"))
        except OSError:
            probe.close()
        else:
            self._probe = probe

    def _read_answer(self) -> None:
        assert self._probe is not None
        with contextlib.suppress(OSError):
            words = self._probe.recv(ANSWER_MAX).split(b" ", 2)
            status = words[1] if len(words) > 1 else b""
            self.is_ready = status.isdigit() and len(status) == 3 and status < b"500"
        self._forget_probe()

    def _forget_probe(self) -> None:
        if self._probe is not None:
            self._probe.close()
            self._probe = None
