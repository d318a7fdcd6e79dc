"""System calls refused to a replica, as a program for the kernel's filter (BPF). Pure.

Handlers and model files are not trusted. The filter refuses calls that a model server never needs
and that reach much kernel code or open namespaces. The isolation must not depend on the seccomp
profile of the container engine, and the process driver has no engine at all. Sources: seccomp(2),
and the kernel's linux/filter.h, linux/seccomp.h, linux/audit.h, asm/unistd.h.
"""

from __future__ import annotations

import errno
import struct
from typing import Final

Instruction = tuple[int, int, int, int]
"""`struct sock_filter`: code, jump if true, jump if false (both relative to the next instruction),
operand."""
Program = list[Instruction]

AUDIT: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The kernel's AUDIT_ARCH constant of each machine's native ABI, by uname(2)'s machine name."""
_NAMES: Final = (
    *("socket", "socketpair", "clone", "clone3", "seccomp", "ptrace", "unshare", "setns"),
    *("add_key", "request_key", "keyctl", "bpf", "userfaultfd"),
    *("io_uring_setup", "io_uring_enter", "io_uring_register"),
)
_X86_64: Final = (41, 53, 56, 435, 317, 101, 272, 308, 248, 249, 250, 321, 323, 425, 426, 427)
_AARCH64: Final = (198, 199, 220, 435, 277, 117, 97, 268, 217, 218, 219, 280, 282, 425, 426, 427)
CALLS: Final = {
    "x86_64": dict(zip(_NAMES, _X86_64, strict=True)),
    "aarch64": dict(zip(_NAMES, _AARCH64, strict=True)),
}
"""Numbers of system calls, by machine and name."""
REFUSED: Final = _NAMES[5:]
"""Calls that fail with EPERM for any arguments."""
X32_BIT: Final = 0x4000_0000
"""Numbers from here on belong to x86-64's second ABI (x32), which reaches the same kernel code."""

AF_UNIX: Final = 1
AF_INET: Final = 2
AF_INET6: Final = 10
AF_NETLINK: Final = 16
NETLINK_ROUTE: Final = 0
FAMILIES: Final = (AF_UNIX, AF_INET, AF_INET6)
"""Sockets of other families fail with EPERM. The exception is NETLINK_ROUTE, which getifaddrs(3)
and therefore NCCL and Gloo need."""
NAMESPACES: Final = {
    "mount": 0x0002_0000,
    "cgroup": 0x0200_0000,
    "uts": 0x0400_0000,
    "ipc": 0x0800_0000,
    "user": 0x1000_0000,
    "pid": 0x2000_0000,
    "network": 0x4000_0000,
}
"""Flags of clone(2) that fail with EPERM. Time namespaces need unshare or clone3."""

ALLOW: Final = 0x7FFF_0000
EPERM: Final = 0x0005_0000 | errno.EPERM
ENOSYS: Final = 0x0005_0000 | errno.ENOSYS
"""Result of clone3: its flags are in memory, which no filter can read. The C library falls back to
clone."""
NUMBER_AT: Final = 0
AUDIT_AT: Final = 4
ARGUMENTS_AT: Final = 16
"""Offsets in `struct seccomp_data`. The low 4 of an argument's 8 bytes come first (both machines
are little-endian); the filtered calls use only these."""
LOAD: Final = 0x20
"""BPF_LD | BPF_W | BPF_ABS."""
IF_EQUAL: Final = 0x15
IF_AT_LEAST: Final = 0x35
IF_ANY_BIT: Final = 0x45
"""BPF_JMP | BPF_JEQ, BPF_JGE, BPF_JSET, each | BPF_K."""
RETURN: Final = 0x06
"""BPF_RET | BPF_K."""


def program(name: str) -> Program:
    """Return the filter of a machine, by its name from uname(2). Raises KeyError for any other.

    Calls not named here are allowed without reading their arguments, so that kernels from 5.11 on
    cache the verdict and skip the filter.
    """
    calls = CALLS[name]
    rows: Program = [
        (LOAD, 0, 0, AUDIT_AT),
        (IF_EQUAL, 1, 0, AUDIT[name]),
        _returned(EPERM),
        (LOAD, 0, 0, NUMBER_AT),
    ]
    if name == "x86_64":
        rows += [(IF_AT_LEAST, 0, 1, X32_BIT), _returned(EPERM)]
    for call in REFUSED:
        rows += _case(calls[call], [_returned(EPERM)])
    rows += _case(calls["clone3"], [_returned(ENOSYS)])
    rows += _case(calls["clone"], _flags())
    rows += _case(calls["socket"], _family())
    rows += _case(calls["socketpair"], _family())
    return [*rows, _returned(ALLOW)]


def packed(rows: Program) -> bytes:
    """Encode the program as the kernel expects it: an array of `struct sock_filter`."""
    return b"".join(struct.pack("=HBBI", *row) for row in rows)


def _returned(verdict: int) -> Instruction:
    return (RETURN, 0, 0, verdict)


def _case(number: int, then: Program) -> Program:
    """Return rows that run `then` for call `number`; every path of `then` returns a verdict."""
    return [(IF_EQUAL, 0, len(then), number), *then]


def _flags() -> Program:
    """Rows for clone: refuse new namespaces."""
    return [
        (LOAD, 0, 0, ARGUMENTS_AT),
        (IF_ANY_BIT, 0, 1, sum(NAMESPACES.values())),
        _returned(EPERM),
        _returned(ALLOW),
    ]


def _family() -> Program:
    """Rows for socket and socketpair: domain is the first argument, protocol the third."""
    last = len(FAMILIES) + 3
    return [
        (LOAD, 0, 0, ARGUMENTS_AT),
        *((IF_EQUAL, last - at, 0, family) for at, family in enumerate(FAMILIES)),
        (IF_EQUAL, 0, 2, AF_NETLINK),
        (LOAD, 0, 0, ARGUMENTS_AT + 16),
        (IF_EQUAL, 1, 0, NETLINK_ROUTE),
        _returned(EPERM),
        _returned(ALLOW),
    ]
