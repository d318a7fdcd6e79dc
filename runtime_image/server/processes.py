"""The processes of a server: start, memory, end.

In a PID namespace of its own the kernel ends the server with its reaper (`reaper.py`), in every
case. Without one, it dies with the sidecar (PR_SET_PDEATHSIG), its orphans come to the sidecar (a
subreaper), and the driver finds what outlives a killed sidecar by MARKER, unless a process has
removed it from its environment.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from runtime_image.contract.server import (
    BUNDLE,
    DEVICE_ORDER,
    GPUS,
    MARKER,
    SERVER_FOLDER,
    VISIBLE_DEVICES,
    ServerSpec,
    several_gpus,
)
from runtime_image.replica.loop import Loop
from runtime_image.server import libc, reaper
from runtime_image.server.process_tree import Process, descendants, kill
from runtime_image.server.reaper import Reaper

HOST: Final = "127.0.0.1"
SOCKET: Final = "http.sock"
KILL_POLL_S: Final = 0.005
KILL_ROUND_S: Final = 0.02
"""Pause between two rounds of KILL, and the length of one."""
KILL_S: Final = 10.0
"""Seconds after which a tree that survives KILL is given up; the driver then looks for MARKER."""
OOM_SCORE: Final = 500
"""The kernel ends a server before the manager and its sidecar."""
_REASON_MAX: Final = 500
_PATH_SHOWN: Final = 300
"""Max characters of a PATH in a reason."""
_ERROR_FD: Final = 3
_FD_MAX: Final = 0x7FFF_FFFF


@dataclass(frozen=True, slots=True)
class Folders:
    """Folders of one server; `home` and `temporary` are its HOME and TMPDIR."""

    root: Path
    home: Path
    temporary: Path
    sockets: Path

    @classmethod
    def below(cls, run_dir: Path) -> Folders:
        """Return the folders below a run folder."""
        root = run_dir / SERVER_FOLDER
        return cls(root, root / "home", root / "tmp", root / "socket")

    @property
    def socket(self) -> Path:
        """Path of ${SOCKET}."""
        return self.sockets / SOCKET

    def create(self) -> None:
        """Create the folders."""
        for folder in (self.root, self.home, self.temporary, self.sockets):
            folder.mkdir(mode=0o700, exist_ok=True)


@dataclass(frozen=True, slots=True)
class Launch:
    """What is executed: arguments, environment, working folder."""

    arguments: list[str]
    environment: dict[str, str]
    folder: Path


def uses_socket(spec: ServerSpec) -> bool:
    """Whether the server listens on ${SOCKET} instead of a port."""
    return any("${SOCKET}" in text for text in (*spec.command, *spec.env.values()))


def plan(
    spec: ServerSpec,
    model_dir: Path,
    folders: Folders,
    port: int,
    own: dict[str, str],
    secrets: Mapping[str, str] | None = None,
) -> Launch:
    """Return what to execute. `own` is the sidecar's environment, of which little is passed on;
    nothing is replaced in `secrets`, which are values by variable. The server sees the GPUs that
    the driver lets the sidecar see."""
    gpus = sum(map(bool, own.get(VISIBLE_DEVICES, "").split(",")))
    values = {
        "${PORT}": str(port),
        "${SOCKET}": str(folders.socket),
        "${HOST}": HOST,
        GPUS: str(gpus),
    }

    def filled(text: str) -> str:
        for name, value in values.items():
            text = text.replace(name, value)
        return text

    passed = ("OMP_NUM_THREADS", VISIBLE_DEVICES)
    environment = {
        "PATH": own.get("PATH", os.defpath),
        "HOME": str(folders.home),
        "TMPDIR": str(folders.temporary),
        "LANG": own.get("LANG", "C.UTF-8"),
        **{name: own[name] for name in passed if name in own},
        **several_gpus(gpus, spec.network),
        **{name: filled(value) for name, value in spec.env.items()},
        **(secrets or {}),
        "PORT": str(port),
        MARKER: str(folders.root.parent),
        BUNDLE: str(model_dir),
    }
    # Numbers of GPUs mean what the driver meant by them, in the order that it set.
    environment |= {name: own[name] for name in (VISIBLE_DEVICES, DEVICE_ORDER) if name in own}
    arguments = [filled(word) for word in spec.command]
    return Launch(arguments, environment, model_dir)


class ServerProcesses:
    """The server and everything that it starts. All methods but `running` belong to the loop's
    thread."""

    def __init__(self, loop: Loop, *, exited: Callable[[], None]) -> None:
        """`exited` is called once, when the server's first process has ended."""
        self._loop = loop
        self._exited = exited
        self._pid = 0
        self._reaper: Reaper | None = None
        self._code: int | None = None
        self._ended: Callable[[], None] | None = None
        self._kill_until_s = 0.0
        self._is_killing = False
        libc.prctl(libc.PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGCHLD, lambda *_: loop.post(self.reap))

    def start(self, launch: Launch, enter: Callable[[], None], *, has_namespace: bool) -> None:
        """Start the server, in a PID namespace of its own if `has_namespace`; `enter` runs in the
        new process before the command.

        Raises OSError with the reason if the command cannot be executed.
        """
        readable, writable = os.pipe()
        parent = 0 if has_namespace else os.getpid()

        def become() -> NoReturn:
            try:
                _become(launch, enter, parent, writable)
            except BaseException as error:  # noqa: BLE001 - reported by the parent
                text = error.strerror if isinstance(error, OSError) else str(error)
                if isinstance(error, FileNotFoundError):
                    text = _not_found(launch, error.strerror)
                os.write(_ERROR_FD, (text or repr(error)).encode()[:_REASON_MAX])
            os._exit(127)

        try:
            if has_namespace:
                self._reaper = reaper.start(become)
                self._pid = self._reaper.server
                self._loop.watch(self._reaper.sock, self._take_exit)
            else:
                self._pid = os.fork() or become()
        finally:
            os.close(writable)
            # The pipe closes with the successful exec.
            with os.fdopen(readable, "rb") as pipe:
                refused = pipe.read(_REASON_MAX).decode("utf-8", "replace")
        if refused:
            raise OSError(f"{launch.arguments[0]}: {refused}")

    def end_to_restart(self, ended: Callable[[], None]) -> None:
        """End what is left of a server that has exited; call `ended` when another may start. For a
        server without a namespace."""

        def reset() -> None:
            self._pid, self._code, self._is_killing = 0, None, False
            ended()

        self.end(0.0, reset)

    def running(self) -> list[Process]:
        """Return the server's processes. In any thread."""
        own = self._reaper.pid if self._reaper is not None else 0
        return [one for one in descendants(os.getpid()) if one.pid != own]

    def said_exit(self) -> str:
        """Return how the server's first process ended."""
        code = self._code
        if code is None:
            return "runs"
        if code >= 0:
            return f"exited with code {code}"
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
        return f"was killed by signal {-code}"

    def reap(self) -> None:
        """Reap the server and its orphans. Only this function waits for processes, and in the
        loop's thread, so that no pid is reused between a look and a signal."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._finish()
                return
            if not pid:
                break
            if pid == self._pid and self._reaper is None:
                self._exit(os.waitstatus_to_exitcode(status))
        if self._ended is not None and self._code is not None and not self._has_group():
            self._begin_kill()

    def _take_exit(self) -> None:
        if self._reaper is not None:
            self._loop.forget(self._reaper.sock)
            self._exit(self._reaper.take_exit())
            self._look()

    def _exit(self, code: int) -> None:
        self._code = code
        self._loop.post(self._exited)

    def _look(self) -> None:
        """Look for the end of the server's group, after its own: a reaper does not tell it."""
        self.reap()
        is_waiting = self._ended is not None and not self._is_killing
        if is_waiting and self._reaper is not None and self._code is not None:
            self._loop.after(KILL_POLL_S, self._look)

    def end(self, grace_s: float, ended: Callable[[], None]) -> None:
        """Send TERM to the server's group, then KILL to the whole tree; call `ended` once no
        process is left.

        KILL follows after `grace_s`, or as soon as the group has ended: what is left then is in
        another session and got no TERM.
        """
        self._ended = ended
        if grace_s > 0 and self._pid and self._code is None:
            # Not reaped: the number still is the group's.
            with contextlib.suppress(OSError):
                os.killpg(self._pid, signal.SIGTERM)
        else:
            grace_s = 0.0
        self._kill_until_s = self._loop.clock() + grace_s + KILL_S
        self._loop.after(grace_s, self._begin_kill)
        self._look()

    def _begin_kill(self) -> None:
        # A timer of a server that has been restarted meanwhile finds nothing to end.
        if self._ended is not None and not self._is_killing:
            self._is_killing = True
            self._kill()

    def _has_group(self) -> bool:
        """Whether a process of the server's group is left. Once the group is gone its number may
        be another one's: that only means to wait."""
        try:
            os.killpg(self._pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return True
        return True

    def _kill(self) -> None:
        """Kill the tree, again and again: processes may be forked while it is read."""
        if self._ended is None:
            return
        if self._loop.clock() >= self._kill_until_s:
            self._finish()
            return
        # The reaper is the first one, and its end is that of all. Without a reaper: no pause as
        # long as there is something, since a process may fork and exit for ever, and each of them
        # lives for less than a millisecond.
        until_s = self._loop.clock() + KILL_ROUND_S
        while (found := descendants(os.getpid())) and self._loop.clock() < until_s:
            for process in found:
                kill(process)
        self._loop.after(KILL_POLL_S, self._kill)
        self.reap()

    def _finish(self) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended()


def _not_found(launch: Launch, text: str | None) -> str:
    """Return why the program was not found, and what to do; `text` is the system's reason."""
    program = launch.arguments[0]
    if program.startswith("/"):
        return text or "not found"
    if "/" in program:
        return f"{text}; expected an absolute path, or the name of an installed program"
    path = ":".join(dict.fromkeys(launch.environment.get("PATH", "").split(":")))[:_PATH_SHOWN]
    return f"not found in {path}; expected a program there (FN_SERVER_PATH), or an absolute path"


def _become(launch: Launch, enter: Callable[[], None], parent: int, writable: int) -> None:
    """Turn this child into the server. `parent` is 0 where the reaper ends it."""
    # No descriptor of the sidecar is passed on: neither links nor the data listener.
    os.dup2(writable, _ERROR_FD, inheritable=False)
    os.closerange(_ERROR_FD + 1, _FD_MAX)
    if parent:
        libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # the sidecar ended before the line above
    os.setsid()
    for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    enter()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.chdir(launch.folder)
    program, environment = launch.arguments[0], launch.environment
    os.execvpe(program, launch.arguments, environment)  # noqa: S606 - no shell is intended
