"""Process groups: find, signal and reap them without confusing them with unrelated groups.

The kernel reuses a pid once the parent has waited for the process and its group is empty. A pidfd
always refers to the same process, so groups are signalled through it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from registry.files import is_exhausted
from runtime_image.proc import parse_stat

PIDFD_SIGNAL_PROCESS_GROUP: Final = 4
"""Flag of pidfd_send_signal(2) since Linux 6.9 (linux/pidfd.h); Python has no constant for it."""


@dataclass(slots=True)
class ProcessGroup:
    """Process group and session of one replica; its leader is the replica's first process.

    `pid` is the id of leader, group and session. `child` is None if an earlier server started it:
    another process then waits for the leader, and the pid may be reused.
    """

    pid: int
    pidfd: int
    child: subprocess.Popen[bytes] | None

    def has_ended(self) -> bool:
        """Whether the leader has exited; its children may still run."""
        ended = select.poll()
        ended.register(self.pidfd, select.POLLIN)
        return bool(ended.poll(0))

    def exit_code(self) -> int | None:
        """Return the leader's exit code, negative for a signal; None if it runs or is not our
        child.

        The zombie is kept (WNOWAIT): as long as it exists, its pid cannot be reused.
        """
        if self.child is None:
            return None
        if self.child.returncode is not None:
            return self.child.returncode
        try:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def signal(self, number: int) -> bool:
        """Signal every process of the group; False if there is none. Raises PermissionError."""
        try:
            if _pidfds_name_groups():
                signal.pidfd_send_signal(self.pidfd, number, None, PIDFD_SIGNAL_PROCESS_GROUP)
            elif self._owns_number():
                os.killpg(self.pid, number)
            else:
                return False
        except ProcessLookupError:
            return False
        return True

    def _owns_number(self) -> bool:
        """Whether the pid cannot have been reused for another group.

        It is reserved by our unreaped zombie. It is also reserved by members of the group, as long
        as no process has it as its own pid.
        """
        if self.child is not None and self.child.returncode is None:
            return True
        return not self.has_ended() or not Path(f"/proc/{self.pid}").exists()

    def is_running(self) -> bool:
        """Whether any process of the group still runs; zombies do not count.

        Raises PermissionError.
        """
        if not self.has_ended():
            return True
        if _pidfds_name_groups():
            # The usual case, which avoids a scan of /proc.
            self.reap()
            if not self.signal(0):
                return False
        return bool(members(self.pid))

    def reap(self) -> None:
        """Reap the ended leader, and orphans of the group that were reparented to this process.

        Only for a group that was killed: afterwards its pid may be reused.
        """
        if self.child is not None:
            self.child.poll()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-self.pid, os.WNOHANG)[0]:
                pass

    def close(self) -> None:
        """Close the pidfd, whether the group runs or not."""
        os.close(self.pidfd)
        if self.child is not None and self.child.poll() is None:
            # Left running for adoption: prevents Popen's warning about an unreaped child.
            self.child.returncode = 0


def members(group: int) -> frozenset[int]:
    """Return the pids of the processes in a group, without zombies. Raises OSError."""
    return frozenset(pid for pid in pids() if _is_member(pid, group))


def below(root: int) -> frozenset[int]:
    """Return the pids of all processes below a process, by their parents. Raises OSError."""
    children: dict[int, list[int]] = {}
    for pid in pids():
        stat = parse_stat(read(pid, "stat"))
        if stat is not None:
            children.setdefault(stat.parent, []).append(pid)
    found: list[int] = []
    parents = [root]
    while parents:
        there = children.pop(parents.pop(), [])
        found += there
        parents += there
    return frozenset(found)


def find(run_root: Path, module: str) -> dict[str, ProcessGroup]:
    """Return the replicas that run for the folder `run_root` by id, including those of earlier
    servers.

    A replica is a session leader, runs as this user, and has the command line
    `... -m MODULE RUN_ROOT/ID`. The user is checked because any user may start a process with such
    a command line. Raises OSError if /proc cannot be read.
    """
    found: dict[str, ProcessGroup] = {}
    try:
        for pid in pids():
            id = _replica(pid, run_root, module)
            group = _held(pid) if id else None
            if group is None:
                continue
            # Checked again: the pid may have been reused before the pidfd was opened.
            if id in found or _replica(pid, run_root, module) != id or group.has_ended():
                group.close()
            else:
                found[id] = group
    except OSError:
        for group in found.values():
            group.close()
        raise
    return found


def _held(pid: int) -> ProcessGroup | None:
    try:
        return ProcessGroup(pid, os.pidfd_open(pid), None)
    except ProcessLookupError:
        return None


def _replica(pid: int, run_root: Path, module: str) -> str:
    """Return the id of the replica whose leader is this process, "" for none."""
    arguments = read(pid, "cmdline").split(b"\0")
    if arguments[-4:-2] != [b"-m", module.encode()]:
        return ""
    run_dir = Path(os.fsdecode(arguments[-2]))
    is_ours = run_dir.parent == run_root and is_of(pid, os.getuid()) and _is_leader(pid)
    return run_dir.name if is_ours else ""


def is_of(pid: int, uid: int) -> bool:
    """Whether all four user ids of a process are `uid` (proc_pid_status(5)). The owner of its /proc
    folder is not sufficient: it may be root."""
    for line in read(pid, "status").splitlines():
        if line.startswith(b"Uid:"):
            return {int(field) for field in line.split()[1:]} == {uid}
    return False


def _is_leader(pid: int) -> bool:
    """Whether a process leads its group and session. Its children have the same command line until
    they exec."""
    stat = parse_stat(read(pid, "stat"))
    return stat is not None and stat.group == stat.session == pid


def _is_member(pid: int, group: int) -> bool:
    stat = parse_stat(read(pid, "stat"))
    return stat is not None and stat.group == group and not stat.is_zombie


def read(pid: int, name: str) -> bytes:
    """Return a file of a process in /proc, b"" if it is gone or inaccessible. Raises OSError if
    file descriptors are exhausted."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError as error:
        if is_exhausted(error):
            raise
        return b""


def pids() -> Iterator[int]:
    """Yield the pids of all processes. Raises OSError."""
    with os.scandir("/proc") as entries:
        yield from (int(entry.name) for entry in entries if entry.name.isdecimal())


@functools.cache
def _pidfds_name_groups() -> bool:
    """Whether this kernel signals groups through a pidfd (Linux 6.9 and newer)."""
    own = os.pidfd_open(os.getpid())
    try:
        signal.pidfd_send_signal(own, 0, None, PIDFD_SIGNAL_PROCESS_GROUP)
    except OSError:
        return False
    finally:
        os.close(own)
    return True
