"""Attacks that take kernel resources counted per user, and keep them until the replica ends."""

import array
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import resource
import select
import signal
import socket
import threading
import time
from pathlib import Path

from trying import waited

LIBC = ctypes.CDLL(None, use_errno=True)
KEPT = []
SIDE = 1500
"""Descriptors of either kind; each epoll watches each eventfd."""
PASSED_AT_ONCE = 250
PASSED_MAX = 40_000
F_SETPIPE_SZ = 1031
SIGEV_NONE = 1
FILLED_MIB = 48


def refused(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def until_refused(take, most):
    """Call `take` until it fails; return the count and the error."""
    for count in range(most):
        try:
            take(count)
        except OSError as error:
            return [count, errno.errorcode.get(error.errno, str(error.errno))]
    return [most, ""]


def few_descriptors():
    """Return how many descriptors of either kind fit, at most SIDE."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(SIDE, (soft - 300) // 2)


def watched():
    side = few_descriptors()
    events = [os.eventfd(0) for _ in range(side)]
    epolls = []
    KEPT.extend((events, epolls))

    def watch(count):
        if count % side == 0:
            epolls.append(select.epoll())
        epolls[-1].register(events[count % side], select.EPOLLIN)

    return until_refused(watch, side * side)


def watches(order):
    """Take epoll watches with several processes, because descriptors per process are limited."""
    reader, writer = os.pipe()
    for _ in range(order.get("processes", 4)):
        if not os.fork():
            os.write(writer, f"{watched()[0]}\n".encode())
            waited(3600)
            os._exit(0)
    counts = []
    while len(counts) < order.get("processes", 4):
        counts += os.read(reader, 4096).split()
    os.close(reader)
    os.close(writer)
    return [sum(map(int, counts)), ""]


def in_flight(_order):
    """Leave descriptors in transit in sockets that nothing reads."""
    descriptor = array.array("i", [os.eventfd(0)] * PASSED_AT_ONCE)
    what = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptor)]
    pairs = []
    KEPT.append(pairs)

    def send(_count):
        while True:
            try:
                if not pairs:
                    raise BlockingIOError
                pairs[-1][0].sendmsg([b"x"], what)
                return
            except BlockingIOError:
                pairs.append(socket.socketpair())
                pairs[-1][0].setblocking(False)

    count, error = until_refused(send, PASSED_MAX // PASSED_AT_ONCE)
    return [count * PASSED_AT_ONCE, error]


def inotify(_order):
    def take(_count):
        KEPT.append(refused(LIBC.inotify_init()))

    instances = until_refused(take, 100_000)
    with contextlib.suppress(OSError, IndexError):
        for path in Path("/usr").rglob("*"):
            refused(LIBC.inotify_add_watch(KEPT[-1], bytes(path), 2))
    return instances


def timers(_order):
    """Create POSIX timers; each takes one slot of the pending signals."""
    made = ctypes.c_void_p()
    event = (ctypes.c_int * 16)(0, 0, 0, SIGEV_NONE)
    return until_refused(
        lambda _: refused(LIBC.timer_create(0, event, ctypes.byref(made))), 200_000
    )


def signals(_order):
    """Queue real-time signals, which this thread blocks."""
    number = signal.SIGRTMIN + 1
    signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    return until_refused(lambda _: refused(LIBC.sigqueue(os.getpid(), number, None)), 200_000)


def keys(_order):
    add_key = ctypes.c_long(248)
    return until_refused(
        lambda at: refused(
            LIBC.syscall(add_key, b"user", b"k%d" % at, b"x", ctypes.c_long(1), ctypes.c_long(-4))
        ),
        10_000,
    )


def pipes(_order):
    """Create pipes with the largest possible buffers."""

    def take(_count):
        KEPT.append(os.pipe())
        fcntl.fcntl(KEPT[-1][1], F_SETPIPE_SZ, 1 << 20)

    return until_refused(take, 1000)


def locked(_order):
    """Lock memory against swapping."""
    area = mmap.mmap(-1, 64 << 20)
    KEPT.append(area)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    return until_refused(
        lambda at: refused(
            LIBC.mlock(ctypes.c_void_p(address + at * mmap.PAGESIZE), mmap.PAGESIZE)
        ),
        (64 << 20) // mmap.PAGESIZE,
    )


def sysv(_order):
    """Create System V shared memory, semaphores and queues."""
    taken = [
        until_refused(lambda _: refused(LIBC.shmget(0, 4096, 0o1600)), 10_000),
        until_refused(lambda _: refused(LIBC.semget(0, 1, 0o1600)), 50_000),
        until_refused(lambda _: refused(LIBC.msgget(0, 0o1600)), 50_000),
    ]
    return [sum(count for count, _ in taken), " ".join(error for _, error in taken)]


def queues(_order):
    """Create POSIX message queues."""
    rt = ctypes.CDLL("librt.so.1", use_errno=True)
    flags = os.O_CREAT | os.O_RDWR
    return until_refused(lambda at: refused(rt.mq_open(b"/q%d" % at, flags, 0o600, None)), 10_000)


def locks(_order):
    """Lock byte ranges of one file."""
    file = Path("/tmp/locked").open("w+b")  # noqa: SIM115 - stays open on purpose
    KEPT.append(file)
    return until_refused(lambda at: fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * at), 3000)


def threads(_order):
    """Start waiting threads until no more can be started."""
    ended = threading.Event()
    count = 0
    with contextlib.suppress(RuntimeError):
        while count < 2000:
            threading.Thread(target=ended.wait, daemon=True).start()
            count += 1
    ended.set()
    return [count, "refused"]


def sockets(_order):
    """Open sockets of every family, and try io_uring and similar calls: what seccomp must
    refuse."""
    made = 0
    for family in range(46):
        with contextlib.suppress(OSError):
            KEPT.append(socket.socket(family))
            made += family not in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
    for number in (425, 323, 321):
        made += LIBC.syscall(ctypes.c_long(number), 0, 0, 0, 0) >= 0
    return [made, ""]


def scratch(_order):
    """Fill /tmp and /dev/shm as far as the memory limit permits."""
    block, mib = b"x" * (1 << 20), 0
    for folder in ("/tmp", "/dev/shm"):
        with contextlib.suppress(OSError), Path(folder, "filled").open("wb", buffering=0) as file:
            for _ in range(FILLED_MIB):
                mib += file.write(block) >> 20
    return [mib, ""]


KINDS = {
    "epoll watches": watches,
    "descriptors in flight": in_flight,
    "inotify": inotify,
    "POSIX timers": timers,
    "waiting signals": signals,
    "keys": keys,
    "pipe buffers": pipes,
    "locked memory": locked,
    "System V": sysv,
    "message queues": queues,
    "file locks": locks,
    "threads": threads,
    "sockets and calls": sockets,
    "scratch space": scratch,
}


def hoard(order):
    """Hoard some KINDS or all; return for each the amount, the error that ended it, and seconds."""
    taken = {}
    for kind in order.get("kinds", KINDS):
        began = time.monotonic()
        try:
            taken[kind] = KINDS[kind](order)
        except OSError as error:
            taken[kind] = [0, errno.errorcode.get(error.errno, "")]
        taken[kind].append(round(time.monotonic() - began, 1))
    return {"uid": os.getuid(), "taken": taken}


ATTACKS = {"hoard": hoard}
