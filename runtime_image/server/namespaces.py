"""Namespaces of a server: a network, processes and mounts of its own.

The sidecar enters a user and a network namespace, in which its server starts too: nobody outside
can reach the server, and it can use any port. The server then gets a PID namespace (`reaper.py`)
and a mount namespace (`view.py`) of its own. A server in the host's network has the latter only.
Sources: user_namespaces(7), network_namespaces(7), pid_namespaces(7), capabilities(7).
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
from runtime_image.server import libc, view

OWN: Final = libc.CLONE_NEWUSER | libc.CLONE_NEWNET
"""The namespaces that an isolated server shares with its sidecar. Those of its processes and mounts
are its own."""
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 0x1
_INTERFACE: Final = struct.Struct("16sH22x")
"""`struct ifreq` with flags (netdevice(7))."""
_RESERVED_PORTS: Final = "/proc/sys/net/ipv4/ip_local_reserved_ports"
_REASON_MAX: Final = 500


class Isolation(NamedTuple):
    """Why a server shares something with the host; "" for what it does not share."""

    network: str
    processes: str
    files: str


def isolate(network: Network, port: int) -> Isolation:
    """Enter a network of its own, and find out whether a PID namespace can be used in it, and own
    mounts in any case.

    For a process with one thread. A child tries first, because there is no way back: some kernels
    create the namespaces and refuse everything in them.
    """
    reason = "" if network == "none" else f"its network is {network}"
    for flags in (OWN, libc.CLONE_NEWNET) if network == "none" else ():
        no_processes = in_child(partial(enter_all, flags, port))
        refused = in_child(partial(enter_with_mounts, flags, port)) if no_processes else ""
        if not refused:
            enter(flags, port)
            return Isolation("", refusal(no_processes), "")
        reason = reason or refusal(refused)
    # Root keeps its rights in the host's network, where a user namespace would take them.
    files = ""
    for flags in (libc.CLONE_NEWUSER,) if os.geteuid() else (0, libc.CLONE_NEWUSER):
        refused = in_child(partial(enter_with_mounts, flags, port))
        if not refused:
            enter(flags, port)
            return Isolation(reason, reason, "")
        files = files or refusal(refused)
    return Isolation(reason, reason, files)


def refusal(reason: str) -> str:
    """Return what is said of namespaces that were refused, "" if they were not."""
    return f"namespaces are refused: {reason}" if reason else ""


def enter_all(flags: int, port: int) -> None:
    """Enter all namespaces, also those of the processes and mounts. Raises OSError."""
    enter(flags, port)
    libc.unshare(libc.CLONE_NEWPID)
    refused = in_child(_mount_own_proc)
    if refused:
        raise OSError(refused)


def _mount_own_proc() -> None:
    _mount_over()
    view.mount_proc()


def enter_with_mounts(flags: int, port: int) -> None:
    """Enter namespaces, and mount something. Raises OSError."""
    enter(flags, port)
    _mount_over()


def _mount_over() -> None:
    view.own_mounts()
    view.hide(view.HIDDEN)


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
    """Create and enter namespaces, a network with the loopback interface up. Raises OSError."""
    if flags & libc.CLONE_NEWUSER:
        _enter_user(flags)
    elif flags:
        libc.unshare(flags)
    if not flags & libc.CLONE_NEWNET:
        return
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
