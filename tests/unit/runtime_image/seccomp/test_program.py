"""The seccomp program, interpreted as by the kernel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_image.seccomp import program as filters
from runtime_image.seccomp.program import AF_NETLINK, ALLOW, ENOSYS, EPERM
from tests.support.bpf import JUMPS, LOAD, RETURN, verdict

MACHINES = sorted(filters.CALLS)
NUMBERS = st.one_of(st.integers(0, 600), st.integers(0, 2**32 - 1))
SMALL = st.one_of(st.integers(0, 50), st.integers(0, 2**64 - 1))
WORD = 2**32
INSTRUCTIONS_MAX = 4096


def expected(machine: str, audit: int, number: int, first: int, third: int) -> int:
    """Return the expected verdict, as an independent implementation of the rules."""
    names = {number: name for name, number in filters.CALLS[machine].items()}
    name = names.get(number, "")
    if audit != filters.AUDIT[machine] or (machine == "x86_64" and number >= filters.X32_BIT):
        return EPERM
    if name == "clone3":
        return ENOSYS
    is_refused = name in filters.REFUSED
    if name == "clone":
        is_refused = any(first & flag for flag in filters.NAMESPACES.values())
    if name in ("socket", "socketpair"):
        family, protocol = first % WORD, third % WORD
        is_route = family == AF_NETLINK and protocol == filters.NETLINK_ROUTE
        is_refused = not (family in filters.FAMILIES or is_route)
    return EPERM if is_refused else ALLOW


@given(st.sampled_from(MACHINES), NUMBERS, SMALL, SMALL)
def test_it_decides_as_the_rules_say(machine: str, number: int, first: int, third: int) -> None:
    """The program agrees with the rules for any call number and arguments, on both machines."""
    audit = filters.AUDIT[machine]

    got = verdict(filters.program(machine), number, audit, first, 0, third)

    assert got == expected(machine, audit, number, first, third)


@pytest.mark.parametrize("machine", MACHINES)
def test_every_named_call_is_decided_as_the_rules_say(machine: str) -> None:
    """The program agrees with the rules for every named call, each address family, and with and
    without each namespace flag."""
    audit, rows = filters.AUDIT[machine], filters.program(machine)
    firsts = [*range(50), *filters.NAMESPACES.values(), 0x3D0F00]

    for number in (*filters.CALLS[machine].values(), 0, 1, 59, 435):
        for first in firsts:
            for third in (0, 1, 15):
                got = verdict(rows, number, audit, first, 0, third)
                assert got == expected(machine, audit, number, first, third), (number, first, third)


@given(st.sampled_from(MACHINES), NUMBERS, st.integers(0, 2**32 - 1))
def test_another_abi_gets_nothing(machine: str, number: int, audit: int) -> None:
    """Calls of another architecture or word size are refused: their numbers would reach the same
    code."""
    if audit != filters.AUDIT[machine]:
        assert verdict(filters.program(machine), number, audit) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_the_kernel_can_take_it(machine: str) -> None:
    """The program has known codes only, jumps within its bounds and a final return, in 8 bytes
    each."""
    rows = filters.program(machine)

    for at, (code, if_true, if_false, _) in enumerate(rows):
        assert code in {LOAD, RETURN, *JUMPS}
        assert at + 1 + max(if_true, if_false) < len(rows) or code == RETURN
        assert max(if_true, if_false) < 256
    assert rows[-1][0] == RETURN
    assert len(filters.packed(rows)) == 8 * len(rows) < 8 * INSTRUCTIONS_MAX


def test_a_machine_that_is_not_known_has_no_program() -> None:
    """An unknown machine has no program, because call numbers differ between machines."""
    with pytest.raises(KeyError):
        filters.program("riscv64")
