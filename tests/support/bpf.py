"""Interpreter for seccomp filter programs, as in the kernel (linux/bpf_common.h)."""

from __future__ import annotations

import struct

from runtime_image.seccomp.program import Program

LOAD, RETURN = 0x20, 0x06
JUMPS = {
    0x15: lambda value, operand: value == operand,
    0x35: lambda value, operand: value >= operand,
    0x45: lambda value, operand: bool(value & operand),
}
DATA = struct.Struct("<iIQ6Q")


def verdict(program: Program, number: int, audit: int, *arguments: int) -> int:
    """Return the filter's verdict on a system call. Arguments are 64 bits each."""
    six = [*arguments, *[0] * (6 - len(arguments))]
    data = DATA.pack(struct.unpack("<i", struct.pack("<I", number))[0], audit, 0, *six)
    at = value = 0
    while True:
        code, if_true, if_false, operand = program[at]
        at += 1
        if code == RETURN:
            return operand
        if code == LOAD:
            [value] = struct.unpack_from("<I", data, operand)
        else:
            at += if_true if JUMPS[code](value, operand) else if_false
