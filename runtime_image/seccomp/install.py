"""Installs the system call filter in this process, irrevocably."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Final

from runtime_image.seccomp.program import CALLS, packed, program

PR_SET_NO_NEW_PRIVS: Final = 38
SECCOMP_SET_MODE_FILTER: Final = 1
TSYNC: Final = 1
SPEC_ALLOW: Final = 4
"""Flags of seccomp(2). TSYNC: the filter applies to all threads. SPEC_ALLOW: kernels before 5.16 do
not enable their costly mitigation of speculative reads."""


class _Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install() -> None:
    """Refuse the system calls of `program`, in all threads and all later child processes.

    Also sets no_new_privs: set-user-ID programs run with this user's rights. Raises OSError if the
    kernel does not support the filter, or `CALLS` does not contain the machine.
    """
    name = os.uname().machine
    if name not in CALLS:
        expected = " or ".join(CALLS)
        raise OSError(
            errno.ENOSYS, f"cannot install the system call filter: expected {expected}, got {name}"
        )
    rows = program(name)
    filter_ = _Program(len(rows), packed(rows))
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero):
        raise _failed("no_new_privs")
    for flags in (TSYNC | SPEC_ALLOW, TSYNC):
        number = ctypes.c_long(CALLS[name]["seccomp"])
        operation, given = ctypes.c_ulong(SECCOMP_SET_MODE_FILTER), ctypes.c_ulong(flags)
        if not libc.syscall(number, operation, given, ctypes.byref(filter_)):
            return
    raise _failed("seccomp")


def _failed(what: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"cannot install the system call filter: {what}: {os.strerror(code)}")
