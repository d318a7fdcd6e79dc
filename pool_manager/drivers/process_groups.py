"""Process groups: found, signalled and waited for without mistaking a stranger's for ours.

The kernel gives the number of a process out again once its parent has waited for it and its group
is empty. A pidfd goes on meaning the same process, so groups are signalled through it.
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

PIDFD_SIGNAL_PROCESS_GROUP: Final = 4
"""Flag of pidfd_send_signal(2) since Linux 6.9 (linux/pidfd.h); Python has no name for it."""


@dataclass(slots=True)
class ProcessGroup:
    """A session of one replica, whose leader is its first process.

    `pid` is the number of leader, group and session. `child` is None where an earlier server
    started it: then another process waits for the leader, and the number may be given out again.
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
        """The leader's exit code, negative for a signal; None if it runs or is not our child.

        The zombie stays (WNOWAIT): as long as it is there nobody else can get its number.
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
        """Signal every process of the group; whether there was any. Raises PermissionError."""
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
        """Whether the number cannot have been given to another group meanwhile.

        Our unreaped zombie keeps it; so do members of the group, while no process has it as its
        own number.
        """
        if self.child is not None and self.child.returncode is None:
            return True
        return not self.has_ended() or not Path(f"/proc/{self.pid}").exists()

    def is_running(self) -> bool:
        """Whether any process of the group still runs; zombies hold nothing.

        Raises PermissionError.
        """
        if not self.has_ended():
            return True
        if _pidfds_name_groups():
            # The usual case, without a walk through /proc.
            self.reap()
            if not self.signal(0):
                return False
        return bool(members(self.pid))

    def reap(self) -> None:
        """Wait for the ended leader, and for orphans of the group that came to this process.

        Only for a group that was killed: from now on its number may be given out again.
        """
        if self.child is not None:
            self.child.poll()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-self.pid, os.WNOHANG)[0]:
                pass

    def close(self) -> None:
        """Let go of the group, whether it runs or not."""
        os.close(self.pidfd)
        if self.child is not None and self.child.poll() is None:
            # Left running for adoption: Popen must not complain that nobody waited for it.
            self.child.returncode = 0


def members(group: int) -> frozenset[int]:
    """The numbers of the processes in a group, zombies excepted. Raises OSError."""
    return frozenset(pid for pid in _pids() if _is_member(pid, group))


def find(run_root: Path, module: str) -> dict[str, ProcessGroup]:
    """The replicas that run for the folder `run_root`, by id, whoever started them.

    A replica is the leader of a session, belongs to this very user and has the command line
    `... -m MODULE RUN_ROOT/ID`; anybody may give a process of his such a command line. Raises
    OSError where that cannot be found out.
    """
    found: dict[str, ProcessGroup] = {}
    try:
        for pid in _pids():
            id = _replica(pid, run_root, module)
            group = _held(pid) if id else None
            if group is None:
                continue
            # Asked again: before there was a pidfd, the number may have become another's.
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
    """The replica that a process is the leader of, "" for none."""
    arguments = _read(pid, "cmdline").split(b"\0")
    if arguments[-4:-2] != [b"-m", module.encode()]:
        return ""
    run_dir = Path(os.fsdecode(arguments[-2]))
    is_ours = run_dir.parent == run_root and _is_of(pid, os.getuid()) and _is_leader(pid)
    return run_dir.name if is_ours else ""


def _is_of(pid: int, uid: int) -> bool:
    """By all four user ids (proc_pid_status(5)): the folder's owner may be root all the same."""
    for line in _read(pid, "status").splitlines():
        if line.startswith(b"Uid:"):
            return {int(field) for field in line.split()[1:]} == {uid}
    return False


def _is_leader(pid: int) -> bool:
    """Whether it leads group and session: children that did not exec have its command line."""
    fields = _stat(pid)
    return fields[2:4] == [b"%d" % pid] * 2


def _is_member(pid: int, group: int) -> bool:
    fields = _stat(pid)
    return len(fields) > 2 and int(fields[2]) == group and fields[0] not in (b"Z", b"X")


def _stat(pid: int) -> list[bytes]:
    """State, parent, group, session and more (proc_pid_stat(5)); empty where it is gone."""
    return _read(pid, "stat").rpartition(b")")[2].split()


def _read(pid: int, name: str) -> bytes:
    """A file of a process in /proc, b"" where it is gone or kept from us. Raises OSError."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError as error:
        if is_exhausted(error):
            raise
        return b""


def _pids() -> Iterator[int]:
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
