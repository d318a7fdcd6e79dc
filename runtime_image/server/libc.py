"""System calls that Python 3.11 has no function for, by ctypes."""

from __future__ import annotations

import ctypes
import os
from typing import Final

PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE: Final = 4
PR_CAPBSET_DROP: Final = 24
PR_SET_CHILD_SUBREAPER: Final = 36
"""Options of prctl(2)."""
CLONE_NEWNS: Final = 0x0002_0000
CLONE_NEWUSER: Final = 0x1000_0000
CLONE_NEWPID: Final = 0x2000_0000
CLONE_NEWNET: Final = 0x4000_0000
"""Flags of unshare(2)."""
MS_RDONLY: Final = 0x1
MS_NOSUID: Final = 0x2
MS_NODEV: Final = 0x4
MS_NOEXEC: Final = 0x8
MS_REMOUNT: Final = 0x20
MS_NOATIME: Final = 0x400
MS_NODIRATIME: Final = 0x800
MS_BIND: Final = 0x1000
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 0x4_0000
MS_RELATIME: Final = 0x20_0000
"""Flags of mount(2)."""

_libc = ctypes.CDLL(None, use_errno=True)
_ulong = ctypes.c_ulong


def prctl(option: int, value: int) -> None:
    """Call prctl(2). Raises OSError."""
    zero = _ulong(0)
    _check(_libc.prctl(option, _ulong(value), zero, zero, zero), f"prctl {option}")


def unshare(flags: int) -> None:
    """Call unshare(2). Raises OSError."""
    _check(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Call mount(2). Raises OSError."""
    given = (source.encode(), os.fsencode(target), kind.encode() or None)
    _check(_libc.mount(*given, _ulong(flags), options.encode() or None), f"mount {target}")


def _check(result: int, what: str) -> None:
    if result:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
