"""The side channel: slabs' descriptors, one with each notice."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from runtime_image.contract.link import SLAB_NOTICE
from runtime_image.link.frames import LinkError
from runtime_image.link.shared_memory import NONE, SideChannel, SlabNotice

Ends = tuple[SideChannel, SideChannel]
MANY = 10_000


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Both of them."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made = SideChannel(pair[0]), SideChannel(pair[1])
    yield made
    for end in made:
        end.close()


@pytest.fixture
def null() -> Iterator[int]:
    """Some descriptor."""
    descriptor = os.open(os.devnull, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def test_a_slab_is_passed_on(ends: Ends, null: int) -> None:
    """Number, size and the descriptor itself, closed on exec; then that it is used no more."""
    assert ends[0].announce(3, 4096, null)
    assert ends[0].retire(3)

    notice = ends[1].receive()
    assert notice is not None
    same = os.path.samestat(os.fstat(notice.descriptor), os.fstat(null))
    inheritable = os.get_inheritable(notice.descriptor)
    os.close(notice.descriptor)

    assert (notice.number, notice.size, same, inheritable) == (3, 4096, True, False)
    assert ends[1].receive() == SlabNotice(3, 0, NONE)
    assert ends[1].receive() is None


def test_what_finds_no_room_is_not_sent(ends: Ends, null: int) -> None:
    """Neither end ever waits for the other to read."""
    while ends[0].retire(1):
        pass

    assert not ends[0].announce(3, 4096, null)


def test_the_end_of_the_other_side_is_told(ends: Ends, null: int) -> None:
    """To who receives as an error, to who sends as something that was not sent."""
    ends[1].close()

    with pytest.raises(EOFError):
        ends[0].receive()
    assert not ends[0].announce(3, 4096, null)
    assert not ends[0].retire(3)


def test_an_end_is_told_even_if_a_child_has_it_still(ends: Ends) -> None:
    """As a handler's child may, which was forked while the link was there."""
    child = os.dup(ends[1].sock.fileno())
    ends[1].close()
    try:
        with pytest.raises(EOFError):
            ends[0].receive()
    finally:
        os.close(child)


def test_a_closed_end_receives_nothing(ends: Ends) -> None:
    """It is as one whose other side is gone."""
    ends[0].close()

    with pytest.raises(EOFError):
        ends[0].receive()


@pytest.mark.parametrize(
    ("data", "descriptors"),
    [
        (SLAB_NOTICE.pack(1, 4096), 0),
        (SLAB_NOTICE.pack(1, 4096), 2),
        (SLAB_NOTICE.pack(1, 4096), 200),
        (SLAB_NOTICE.pack(1, 0), 1),
        (SLAB_NOTICE.pack(1, 4096)[:-1], 1),
        (SLAB_NOTICE.pack(1, 4096) + b"x", 1),
        (b"", 1),
        (b"x", 0),
        (bytes(100_000), 0),
    ],
)
def test_anything_else_breaks_the_protocol_and_leaves_nothing_open(
    ends: Ends, null: int, data: bytes, descriptors: int
) -> None:
    """Too short, too long, without a descriptor or with more than one; all of them are closed."""
    before = len(os.listdir("/proc/self/fd"))
    socket.send_fds(ends[0].sock, [data], [null] * descriptors)

    with pytest.raises(LinkError, match="expected a slab's notice"):
        ends[1].receive()
    assert len(os.listdir("/proc/self/fd")) == before
