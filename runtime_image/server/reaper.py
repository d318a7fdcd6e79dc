"""The first process of a server's PID namespace, and the start of a server in it.

When the first process of a PID namespace ends, the kernel kills all others in it and keeps the
first one until they are gone (pid_namespaces(7)). That first process is the *reaper*: it dies with
the sidecar, so no process of the server survives, whatever it did to its session, its parents or
its environment. The server is its child: a zombie whose parent is outside would keep the reaper.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from runtime_image.server import libc

NAME: Final = "fngate-reaper"
"""Name of the process in lists of processes; at most 15 bytes (proc_pid_comm(5))."""
_CREDENTIALS: Final = struct.Struct("3i")
"""`struct ucred`: pid, uid, gid (unix(7))."""
_CODE: Final = struct.Struct("=i")
_READY: Final = b"1"
_FD_MAX: Final = 0x7FFF_FFFF
_SOCK_FD: Final = 3


class Reaper:
    """The sidecar's side of a reaper. `pid` and `server` are pids in the sidecar's namespace.

    `sock` is readable once the server or the reaper has ended.
    """

    def __init__(self, pid: int, server: int, sock: socket.socket) -> None:
        self.pid = pid
        self.server = server
        self.sock = sock

    def take_exit(self) -> int:
        """Return the exit code of the server, negative for a signal. Its pid may be reused from now
        on. For a readable `sock`."""
        try:
            data = self.sock.recv(_CODE.size)
        except ConnectionResetError:
            data = b""  # the reaper ended before it read everything
        if not data:
            return -signal.SIGKILL  # with the reaper
        with contextlib.suppress(OSError):
            self.sock.send(_READY)
        return int(_CODE.unpack(data)[0])


def start(server: Callable[[], NoReturn]) -> Reaper:
    """Run `server` in a new process of a new PID namespace, for a process with one thread that is a
    subreaper. Raises OSError.

    A process that has called unshare(CLONE_NEWPID) can start no thread any more, so another one
    does it, and ends.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    launcher = os.fork()
    if not launcher:
        ours.close()
        with contextlib.suppress(OSError):
            _launch(server, theirs)
        os._exit(0)
    theirs.close()
    try:
        try:
            made = Reaper(_sender(ours), _sender(ours), ours)
        finally:
            os.waitpid(launcher, 0)
        # From now on this process is the reaper's parent.
        ours.send(_READY)
    except OSError:
        ours.close()
        raise
    return made


def _sender(sock: socket.socket) -> int:
    """Return the pid of the process that sent the next message; the kernel translates it."""
    data, ancillary, _, _ = sock.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size))
    if not data:
        raise OSError("the PID namespace of the server cannot be created")
    return int(_CREDENTIALS.unpack(ancillary[0][2])[0])


def _launch(server: Callable[[], NoReturn], sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(NAME)
    # The server must not read the token in the reaper's memory, which is a copy of the sidecar's.
    libc.prctl(libc.PR_SET_DUMPABLE, 0)
    libc.unshare(libc.CLONE_NEWPID)
    if not os.fork():
        try:
            _reap(server, sock)
        finally:
            os._exit(0)


def _reap(server: Callable[[], NoReturn], sock: socket.socket) -> None:
    """Start the server, report its exit, and return when the sidecar or every process has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sock.send(_READY)
    pid = os.fork()
    if not pid:
        libc.prctl(libc.PR_SET_DUMPABLE, 1)
        sock.send(_READY)
        server()
    os.dup2(sock.fileno(), _SOCK_FD)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(_SOCK_FD):
        os.dup2(null, fd)
    os.closerange(_SOCK_FD + 1, _FD_MAX)
    if not os.read(_SOCK_FD, 1):
        return
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
    sidecar = select.poll()
    sidecar.register(_SOCK_FD, 0)
    if sidecar.poll(0):
        return  # it ended before the signal was set
    with contextlib.suppress(ChildProcessError):
        while True:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            if found is None:
                continue
            if found.si_pid == pid:
                is_exit = found.si_code == os.CLD_EXITED
                os.write(_SOCK_FD, _CODE.pack(found.si_status if is_exit else -found.si_status))
                # Until the sidecar knows, the pid must stay the server's.
                if not os.read(_SOCK_FD, 1):
                    return
            os.waitpid(found.si_pid, 0)
