"""Namespaces of a server: a network and processes of its own, and a view of the files.

The sidecar enters a user and a network namespace, in which its server starts too: nobody outside
can reach the server, and it can use any port. The server then gets a PID namespace (`reaper.py`)
and a mount namespace of its own, in which its bundle is read-only and the run folders, with sockets
and tokens, are hidden. Sources: user_namespaces(7), network_namespaces(7), pid_namespaces(7),
mount_namespaces(7), capabilities(7).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from runtime_image.contract.server import Network
from runtime_image.server import libc

OWN: Final = libc.CLONE_NEWUSER | libc.CLONE_NEWNET
"""The namespaces that an isolated server shares with its sidecar. Those of its processes and mounts
are its own."""
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 0x1
_INTERFACE: Final = struct.Struct("16sH22x")
"""`struct ifreq` with flags (netdevice(7))."""
_RESERVED_PORTS: Final = "/proc/sys/net/ipv4/ip_local_reserved_ports"
_REASON_MAX: Final = 500
_DROPPED: Final = (12, 13, 16, 19, 21, 27)
"""CAP_NET_ADMIN, NET_RAW, SYS_MODULE, SYS_PTRACE, SYS_ADMIN, MKNOD: with them a server that runs as
root could undo its mounts and read its sidecar's memory."""
_KEPT_FLAGS: Final = (
    (os.ST_NOSUID, libc.MS_NOSUID),
    (os.ST_NODEV, libc.MS_NODEV),
    (os.ST_NOEXEC, libc.MS_NOEXEC),
    (os.ST_NOATIME, libc.MS_NOATIME),
    (os.ST_NODIRATIME, libc.MS_NODIRATIME),
    (os.ST_RELATIME, libc.MS_RELATIME),
)
"""Flags that a user namespace may not remove from a mount."""


class Isolation(NamedTuple):
    """Why a server shares something with the host; "" for what it does not share."""

    network: str
    processes: str


def isolate(network: Network, port: int) -> Isolation:
    """Enter a network of its own, and find out whether a PID namespace can be used in it.

    For a process with one thread. A child tries first, because there is no way back: some kernels
    create the namespaces and refuse everything in them.
    """
    if network != "none":
        reason = f"its network is {network}"
        return Isolation(reason, reason)
    reason = ""
    for flags in (OWN, libc.CLONE_NEWNET):
        no_processes = in_child(partial(enter_all, flags, port))
        refused = in_child(partial(enter, flags, port)) if no_processes else ""
        if not refused:
            enter(flags, port)
            return Isolation("", f"namespaces are refused: {no_processes}" if no_processes else "")
        reason = reason or f"namespaces are refused: {refused}"
    return Isolation(reason, reason)


def enter_all(flags: int, port: int) -> None:
    """Enter all namespaces, also those of the processes and mounts. Raises OSError."""
    enter(flags, port)
    libc.unshare(libc.CLONE_NEWPID)
    refused = in_child(_mount_own_proc)
    if refused:
        raise OSError(refused)


def _mount_own_proc() -> None:
    own_mounts()
    mount_proc()


def in_child(action: Callable[[], None]) -> str:
    """Run `action` in a child process; return "" or the text of its error."""
    readable, writable = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            action()
        except BaseException as error:  # noqa: BLE001 - reported by the parent
            os.write(writable, (str(error) or repr(error)).encode()[:_REASON_MAX])
            os._exit(1)
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as pipe:
        said = pipe.read(_REASON_MAX)
    _, status = os.waitpid(pid, 0)
    return said.decode("utf-8", "replace") or ("" if status == 0 else f"status {status}")


def enter(flags: int, port: int) -> None:
    """Create and enter namespaces, with the loopback interface up. Raises OSError."""
    if flags & libc.CLONE_NEWUSER:
        _enter_user(flags)
    else:
        libc.unshare(flags)
    _bring_up_loopback()
    # A connection's own port is chosen from the same range as a server's: without this, one to a
    # port without a listener may connect to itself.
    with contextlib.suppress(OSError):
        Path(_RESERVED_PORTS).write_text(str(port))


def _enter_user(flags: int) -> None:
    """Create the namespaces and map the users.

    Root maps every id to itself, so that servers may change their user. That takes a process that
    is still outside. Anybody else maps one id, which takes none.
    """
    uid, gid = os.geteuid(), os.getegid()
    if uid:
        libc.unshare(flags)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
        return
    parent = os.getpid()
    maps = {name: _identity(name) for name in ("uid_map", "gid_map")}
    has_entered, entered = os.pipe()
    helper = os.fork()
    if not helper:
        os.close(entered)
        try:
            os.read(has_entered, 1)
            for name, text in maps.items():
                Path(f"/proc/{parent}/{name}").write_text(text)
        except BaseException:  # noqa: BLE001 - the parent reports it
            os._exit(1)
        os._exit(0)
    os.close(has_entered)
    try:
        libc.unshare(flags)
    finally:
        os.close(entered)
        _, status = os.waitpid(helper, 0)
    if status:
        raise OSError("the ids of the user namespace cannot be mapped")


def _identity(name: str) -> str:
    """Return a map in which every id of this namespace stands for itself."""
    lines = Path(f"/proc/self/{name}").read_text().splitlines()
    return "".join(f"{first} {first} {count}\n" for first, _, count in map(str.split, lines))


def _bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, _INTERFACE.pack(b"lo", _IFF_UP))


def own_mounts() -> None:
    """Enter a mount namespace from which no mount spreads. Raises OSError."""
    libc.unshare(libc.CLONE_NEWNS)
    libc.mount("none", "/", flags=libc.MS_REC | libc.MS_PRIVATE)


def mount_proc() -> None:
    """Show the processes of this PID namespace in /proc, and no others.

    Raises OSError: the kernel refuses it where parts of /proc are hidden, as in many containers.
    """
    libc.mount("proc", "/proc", "proc", libc.MS_NOSUID | libc.MS_NODEV | libc.MS_NOEXEC)


def limit_view(model_dir: Path, run_dir: Path, kept: Path, *, has_processes: bool) -> None:
    """Give this process, a child of an isolated sidecar, its own view of the files.

    `model_dir` gets read-only; all run folders are hidden, except `kept` below `run_dir`. /proc has
    the processes of this PID namespace if it is the server's own. Drops the capabilities to undo
    that.
    """
    own_mounts()
    hidden = run_dir if model_dir.is_relative_to(run_dir.parent) else run_dir.parent
    _bind_read_only(str(model_dir))
    folder = os.open(kept, os.O_PATH | os.O_DIRECTORY)
    libc.mount("fngate", str(hidden), "tmpfs", libc.MS_NOSUID | libc.MS_NODEV, "mode=755,size=64k")
    kept.mkdir(mode=0o755, parents=True)
    libc.mount(f"/proc/self/fd/{folder}", str(kept), flags=libc.MS_BIND)
    os.close(folder)
    _remount_read_only(str(hidden))
    if has_processes:
        mount_proc()
    for capability in _DROPPED:
        with contextlib.suppress(OSError):
            libc.prctl(libc.PR_CAPBSET_DROP, capability)


def _bind_read_only(folder: str) -> None:
    libc.mount(folder, folder, flags=libc.MS_BIND | libc.MS_REC)
    _remount_read_only(folder)


def _remount_read_only(folder: str) -> None:
    has = os.statvfs(folder).f_flag
    kept = sum(flag for shown, flag in _KEPT_FLAGS if has & shown)
    libc.mount("none", folder, flags=libc.MS_REMOUNT | libc.MS_BIND | libc.MS_RDONLY | kept)
