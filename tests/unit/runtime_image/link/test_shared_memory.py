"""Slabs, their seals and ranges, and the side channel that passes them."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime_image.contract.link import SLAB_NOTICE
from runtime_image.link.allocator import BLOCK
from runtime_image.link.frames import LinkError
from runtime_image.link.shared_memory import (
    NO_DESCRIPTOR,
    SIZE_SEALS,
    SideChannel,
    SlabNotice,
    SlabRange,
    check_size,
    is_unread,
    make_slab,
    map_for_reading,
    open_for_reading,
    unpack_range,
)

Slab = tuple[int, mmap.mmap]
MFD_HUGETLB = 0x0004
PROT_WRITE = 2


@pytest.fixture
def slab() -> Iterator[Slab]:
    """A slab that only this process may write."""
    descriptor, memory = make_slab(4 * BLOCK, read_only=True)
    yield descriptor, memory
    memory.close()
    os.close(descriptor)


@pytest.fixture
def reader(slab: Slab) -> Iterator[int]:
    """The read-only descriptor that is passed to the other side."""
    descriptor = open_for_reading(slab[0])
    yield descriptor
    os.close(descriptor)


def test_a_reader_sees_what_is_written(slab: Slab, reader: int) -> None:
    """A reader's existing view shows later writes without a copy."""
    mapped = map_for_reading(reader, 4 * BLOCK)
    view = memoryview(mapped)[BLOCK : BLOCK + 5]

    slab[1][BLOCK : BLOCK + 5] = b"hello"

    assert view == b"hello"
    assert view.readonly


def test_a_reader_cannot_write(reader: int) -> None:
    """A reader can write neither by system call nor through a mapping, even after reopening the
    memory."""
    again = os.open(f"/proc/self/fd/{reader}", os.O_RDWR | os.O_CLOEXEC)
    try:
        for descriptor in (reader, again):
            with pytest.raises(OSError, match=r"not permitted|Bad file"):
                os.pwrite(descriptor, b"x", 0)
            with pytest.raises(PermissionError):
                mmap.mmap(descriptor, BLOCK, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(again)


def test_a_readers_mapping_cannot_be_made_writable(reader: int) -> None:
    """mprotect(2) fails, and so does writing through /proc/self/mem."""
    mapped = mmap.mmap(reader, BLOCK, mmap.MAP_SHARED, mmap.PROT_READ)
    libc = ctypes.CDLL(None, use_errno=True)
    [line] = [
        line
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "/memfd:fngate" in line and " r--s " in line
    ]
    address = int(line.partition("-")[0], 16)

    assert libc.mprotect(ctypes.c_void_p(address), BLOCK, 1 | PROT_WRITE) == -1
    with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
        memory.seek(address)
        with pytest.raises(OSError, match="error"):
            memory.write(b"x")
    assert mapped[:1] == b"\0"


@pytest.mark.parametrize("size", [0, 3 * BLOCK, 5 * BLOCK])
def test_a_slab_cannot_be_resized(slab: Slab, size: int) -> None:
    """Not even its creator can resize a slab, so an access within it never fails."""
    with pytest.raises(PermissionError):
        os.ftruncate(slab[0], size)


def test_a_reader_cannot_add_seals(reader: int) -> None:
    """A reader cannot add a seal, such as one that would stop the writer."""
    again = os.open(f"/proc/self/fd/{reader}", os.O_RDWR | os.O_CLOEXEC)
    try:
        with pytest.raises(PermissionError):
            fcntl.fcntl(again, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    finally:
        os.close(again)


def test_every_reader_is_detected(slab: Slab) -> None:
    """An open descriptor, one in flight, a mapping and a view each count as a reader until they are
    gone."""
    own, passed = open_for_reading(slab[0]), open_for_reading(slab[0])
    sent, received = socket.socketpair()
    try:
        assert not is_unread(own)
        socket.send_fds(sent, [b"x"], [passed])
        os.close(passed)
        assert not is_unread(own)
        _, [passed], _, _ = socket.recv_fds(received, 1, 1)
        mapped = map_for_reading(passed, 4 * BLOCK)
        os.close(passed)
        assert not is_unread(own)
        view = memoryview(mapped)[:5]
        del mapped
        assert not is_unread(own)
        del view
        assert is_unread(own)
    finally:
        sent.close()
        received.close()
        os.close(own)


def test_an_answer_slab_is_writable_and_not_resizable() -> None:
    """A replica's answer slab is sealed in size only, as a gateway requires."""
    descriptor, memory = make_slab(BLOCK, read_only=False)
    try:
        check_size(descriptor, BLOCK)
        os.pwrite(descriptor, b"x", 5)
        assert memory[5:6] == b"x"
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def sealed(seals: int, size: int = BLOCK, flags: int = 0) -> int:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
    os.ftruncate(descriptor, size)
    if seals:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


@pytest.mark.parametrize(
    ("seals", "size", "flags"),
    [
        (0, BLOCK, 0),
        (fcntl.F_SEAL_SHRINK, BLOCK, 0),
        (fcntl.F_SEAL_GROW, BLOCK, 0),
        (SIZE_SEALS, BLOCK - 1, 0),
        (SIZE_SEALS, 2 * BLOCK, 0),
        (0, 2 * 2**20, MFD_HUGETLB),
    ],
)
def test_a_memfd_that_may_change_its_size_is_refused(seals: int, size: int, flags: int) -> None:
    """A memfd is refused unless it is sealed against both size changes and has the announced
    size."""
    descriptor = sealed(seals, size, flags)
    try:
        with pytest.raises(LinkError, match="expected a slab"):
            check_size(descriptor, BLOCK)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("flags", [os.O_RDWR, os.O_RDONLY, os.O_PATH])
def test_what_is_no_memfd_is_refused(tmp_path: Path, flags: int) -> None:
    """A file has no seals, and a path-only descriptor (O_PATH) has none either."""
    path = tmp_path / "file"
    path.write_bytes(bytes(BLOCK))
    descriptor = os.open(path, flags)
    try:
        with pytest.raises(LinkError, match="expected a memfd"):
            check_size(descriptor, BLOCK)
        with pytest.raises(LinkError, match="expected a memfd"):
            map_for_reading(descriptor, BLOCK)
    finally:
        os.close(descriptor)


def test_an_unreadable_memfd_is_refused() -> None:
    """A sealed memfd opened for writing only gets an error that says so."""
    descriptor = sealed(SIZE_SEALS)
    write_only = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_CLOEXEC)
    try:
        with pytest.raises(LinkError, match="cannot be mapped"):
            map_for_reading(write_only, BLOCK)
    finally:
        os.close(write_only)
        os.close(descriptor)


def test_a_slab_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    """An impossible size is an OSError, and no descriptor stays open (leak check)."""
    with pytest.raises((OSError, OverflowError)):
        make_slab(2**62, read_only=True)


def test_a_slab_range_survives_serialisation() -> None:
    """Number, offset and length survive serialisation; any other length is refused."""
    place = SlabRange(7, 2**40, 3)

    assert unpack_range(place.pack()) == place
    with pytest.raises(LinkError, match="expected a slab range of 20 bytes, got 21"):
        unpack_range(place.pack() + b"x")


Ends = tuple[SideChannel, SideChannel]
MANY = 10_000


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Both ends of a side channel."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made = SideChannel(pair[0]), SideChannel(pair[1])
    yield made
    for end in made:
        end.close()


@pytest.fixture
def null() -> Iterator[int]:
    """A descriptor of /dev/null."""
    descriptor = os.open(os.devnull, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def test_a_slab_is_passed_on(ends: Ends, null: int) -> None:
    """Number, size and descriptor (close-on-exec) arrive, then the notice that the slab is
    withdrawn."""
    assert ends[0].announce(3, 4096, null)
    assert ends[0].retire(3)

    notice = ends[1].receive()
    assert notice is not None
    same = os.path.samestat(os.fstat(notice.descriptor), os.fstat(null))
    inheritable = os.get_inheritable(notice.descriptor)
    os.close(notice.descriptor)

    assert (notice.number, notice.size, same, inheritable) == (3, 4096, True, False)
    assert ends[1].receive() == SlabNotice(3, 0, NO_DESCRIPTOR)
    assert ends[1].receive() is None


def test_a_notice_without_room_is_not_sent(ends: Ends, null: int) -> None:
    """Sending never blocks: a notice that finds no room is not sent."""
    while ends[0].retire(1):
        pass

    assert not ends[0].announce(3, 4096, null)


def test_the_end_of_the_peer_is_reported(ends: Ends, null: int) -> None:
    """The peer's end is an error for the receiver, and for the sender a notice that was not
    sent."""
    ends[1].close()

    with pytest.raises(EOFError):
        ends[0].receive()
    assert not ends[0].announce(3, 4096, null)
    assert not ends[0].retire(3)


def test_the_end_is_reported_despite_a_forked_child(ends: Ends) -> None:
    """The end is reported even if a forked child of a handler still holds the descriptor."""
    child = os.dup(ends[1].sock.fileno())
    ends[1].close()
    try:
        with pytest.raises(EOFError):
            ends[0].receive()
    finally:
        os.close(child)


def test_a_closed_end_receives_nothing(ends: Ends) -> None:
    """A closed end behaves as if its peer were gone."""
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
    """A notice that is too short, too long or has no or several descriptors is an error; all
    descriptors are closed."""
    before = len(os.listdir("/proc/self/fd"))
    socket.send_fds(ends[0].sock, [data], [null] * descriptors)

    with pytest.raises(LinkError, match="expected a slab's notice"):
        ends[1].receive()
    assert len(os.listdir("/proc/self/fd")) == before
