"""Protocol violations in shared memory, and attempts to write to the gateway's slabs."""

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

from lies import META, answer, frame, own_id, sockets, write
from trying import all_tried, waited

NOTICE = struct.Struct("<IQ")
PLACE = struct.Struct("<IQQ")
SLAB, RESPONSE = 16, 17
SHRINK_AND_GROW = 2 | 4
MIB = 2**20
LIMIT = 64 * MIB
HUGE = 4
LIBC = ctypes.CDLL(None, use_errno=True)


def memfd(size=MIB, seals=SHRINK_AND_GROW, flags=0):
    descriptor = os.memfd_create("lie", os.MFD_ALLOW_SEALING | flags)
    os.ftruncate(descriptor, size)
    if seals:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def tell(number, size, *descriptors):
    """Send a slab notice with arbitrary descriptors."""
    socket.send_fds(sockets()["side"], [NOTICE.pack(number, size)], list(descriptors))


def say_where(number, offset, length, **fields):
    """Send an answer that refers to this place in a slab."""
    place = PLACE.pack(number, offset, length)
    write(sockets()["data"], answer(own_id(), body=place, flags=SLAB, **fields))


def lie_at(offset, length, **fields):
    def lie():
        tell(1, MIB, memfd())
        say_where(1, offset, length, **fields)

    return lie


def regular_file():
    path = Path("/tmp/lie")
    path.write_bytes(bytes(MIB))
    return os.open(path, os.O_RDWR)


def shrunk():
    """Truncate a slab after announcing it, with only growing sealed."""
    descriptor = memfd(seals=4)
    tell(1, MIB, descriptor)
    os.ftruncate(descriptor, 0)
    say_where(1, 0, MIB)


def withdrawn():
    tell(1, MIB, memfd())
    tell(1, 0)
    say_where(1, 0, 5)


def without_end():
    """Announce more slabs than accepted, as fast as they are read."""
    for _ in range(1000):
        tell(1, MIB, memfd())
        tell(1, 0)


def hung_up():
    sockets()["side"].shutdown(socket.SHUT_RDWR)


def half_a_notice():
    socket.send_fds(sockets()["side"], [b"123"], [memfd()])


def own_link():
    link = sockets()["data"]
    tell(1, MIB, link.fileno())
    link.close()


LIES = {
    "a slab that nobody knows": lambda: say_where(7, 0, 5),
    "a slab that was withdrawn": withdrawn,
    "no place": lambda: write(sockets()["data"], frame(RESPONSE, own_id(), meta=META, flags=SLAB)),
    "behind the end": lie_at(MIB, 1),
    "over the end": lie_at(1, MIB),
    "an answer over the limit": lie_at(0, LIMIT + 1),
    "an offset without end": lie_at(2**64 - 1, 5),
    "a longer head": lie_at(0, 5, aux=6),
    "no seals": lambda: tell(1, MIB, memfd(seals=0)),
    "a slab that shrinks": shrunk,
    "huge pages": lambda: tell(1, 2 * MIB, memfd(2 * MIB, 0, HUGE)),
    "a regular file": lambda: tell(1, MIB, regular_file()),
    "a pipe": lambda: tell(1, MIB, os.pipe()[0]),
    "its own link": own_link,
    "less than was said": lambda: tell(1, 2 * MIB, memfd()),
    "a slab over the limit": lambda: tell(1, LIMIT + MIB, memfd(LIMIT + MIB)),
    "the same twice": lambda: [tell(1, MIB, memfd()) for _ in range(2)],
    "too many": lambda: [tell(number, MIB, memfd()) for number in range(20)],
    "fifty descriptors": lambda: tell(1, MIB, *[memfd() for _ in range(50)]),
    "no descriptor": lambda: tell(1, MIB),
    "half a notice": half_a_notice,
    "notices without end": without_end,
    "an end": hung_up,
}


def side_lie(order):
    """Send one of LIES, then a normal answer."""
    try:
        LIES[order["lie"]]()
    except OSError as error:
        # The gateway hung up during the write.
        waited(0.3)
        return type(error).__name__
    waited(0.3)
    return "sent"


def endless(order):
    """Answer from an empty slab: it costs no memory here, but its full length in the gateway."""
    tell(9, LIMIT, memfd(LIMIT))
    say_where(9, 0, order["mib"] * MIB, meta=b"\x01" + META[1:])
    waited(0.3)
    return "sent"


def mappings():
    """Return the mappings of the gateway's memory with their access rights."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line.split()[:2] for line in lines if "/memfd:fngate" in line and " r--s " in line]


def written_in_child(address):
    """Write to `address` in a child process; return how the child ended."""
    child = os.fork()
    if not child:
        ctypes.memset(address, 1, 1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        raise OSError(-code, "ended")
    return "written"


def scribble(_order):
    """Try every way to change requests in the gateway's memory: this one's and others'."""
    [place, rights] = mappings()[0]
    address, end = (int(part, 16) for part in place.split("-"))

    def protect():
        if LIBC.mprotect(ctypes.c_void_p(address), 4096, 3):
            raise OSError(ctypes.get_errno(), "refused")
        return "writable"

    def through(path, offset):
        with Path(path).open("r+b", buffering=0) as file:
            file.seek(offset)
            return file.write(b"x")

    def cut():
        descriptor = os.open(f"/proc/self/map_files/{place}", os.O_RDWR)
        os.ftruncate(descriptor, 0)
        return "cut"

    return {
        "rights": rights,
        "mib": (end - address) // MIB,
        "tried": all_tried(
            {
                "directly": lambda: written_in_child(address),
                "made writable": protect,
                "through /proc/self/mem": lambda: through("/proc/self/mem", address),
                "opened anew": lambda: through(f"/proc/self/map_files/{place}", 0),
                "cut": cut,
            }
        ),
    }


ATTACKS = {"endless": endless, "scribble": scribble, "side_lie": side_lie}
