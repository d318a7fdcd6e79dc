"""Tries every system call that the filter refuses. Executed in the trial start of an image."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from collections.abc import Iterator
from typing import Final

from runtime_image.seccomp.program import (
    AF_NETLINK,
    CALLS,
    FAMILIES,
    NAMESPACES,
    NETLINK_ROUTE,
    REFUSED,
    X32_BIT,
)

FAMILIES_MAX: Final = 46
"""AF_MAX of Linux 6."""
NETLINK_MAX: Final = 23
CLONE_SIGHAND: Final = 0x0800
"""Without CLONE_VM, the kernel answers EINVAL and creates no process."""
GETPID_X32: Final = X32_BIT | 39


def let_through() -> list[str]:
    """Return the names of refused calls that passed the filter; arguments make them harmless."""
    return [name for name, expected, got in _tried() if got != expected]


def withheld() -> list[str]:
    """Return the names of socket kinds that a replica needs but cannot open."""
    return [
        name
        for name, family, protocol in (
            ("AF_UNIX", socket.AF_UNIX, 0),
            ("AF_INET", socket.AF_INET, 0),
            ("NETLINK_ROUTE", AF_NETLINK, NETLINK_ROUTE),
        )
        if _socket(family, protocol)
    ]


def _tried() -> Iterator[tuple[str, int, int]]:
    """Yield name, expected error and actual error of each call."""
    calls = CALLS[os.uname().machine]
    for name in REFUSED:
        # Invalid file, address and request; unshare(0) does nothing.
        arguments = (0,) if name == "unshare" else (-1, 0, 0, 0, 0)
        yield name, errno.EPERM, _called(calls[name], *arguments)
    yield "clone3", errno.ENOSYS, _called(calls["clone3"], 0, 0)
    for name, flag in NAMESPACES.items():
        error = _called(calls["clone"], flag | CLONE_SIGHAND, 0, 0, 0, 0)
        yield f"clone of a {name} namespace", errno.EPERM, error
    for family in range(FAMILIES_MAX):
        if family not in (*FAMILIES, AF_NETLINK):
            yield f"socket family {family}", errno.EPERM, _socket(family, 0)
    for protocol in range(1, NETLINK_MAX):
        yield f"netlink protocol {protocol}", errno.EPERM, _socket(AF_NETLINK, protocol)
    if os.uname().machine == "x86_64":
        yield "x32", errno.EPERM, _called(GETPID_X32)


def _called(number: int, *arguments: int) -> int:
    """Return the error of a system call, 0 for none."""
    libc = ctypes.CDLL(None, use_errno=True)
    given = (ctypes.c_long(one) for one in (number, *arguments))
    return ctypes.get_errno() if libc.syscall(*given) < 0 else 0


def _socket(family: int, protocol: int) -> int:
    """Return the error of opening a socket, 0 for none."""
    kind = socket.SOCK_RAW if family == AF_NETLINK else socket.SOCK_STREAM
    try:
        socket.socket(family, kind, protocol).close()
    except OSError as error:
        return error.errno or errno.EIO
    return 0
