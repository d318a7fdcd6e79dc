"""Attacks that exhaust a resource or never release it."""

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from trying import all_tried, waited

MIB = 2**20
FORKS_MAX = 2000


def forks(_order):
    """Return how many processes can be forked until the kernel refuses. They end with the
    answer."""
    pids, refused = [], "never"
    while len(pids) < FORKS_MAX:
        try:
            pid = os.fork()
        except OSError as error:
            refused = error.errno
            break
        if not pid:
            waited(60)
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return {"made": len(pids), "refused": refused}


def memory(_order):
    """Allocate memory until killed."""
    kept = []
    while True:
        kept.append(bytearray(os.urandom(MIB)) * 8)


def fill(order):
    """Return how many MiB fit into a folder; everything is freed again."""
    path, count = Path(order["folder"]) / "filled", 0
    try:
        with path.open("wb", buffering=0) as file:
            while count < order.get("most_mib", 4096):
                count += file.write(b"x" * MIB) / MIB
    except OSError as error:
        return {"mib": round(count), "refused": error.errno}
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
    return {"mib": round(count), "refused": 0}


def keep_full(order):
    """Fill a memory-backed folder and keep it full."""
    with (Path(order["folder"]) / "kept").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * MIB)


def spin(order):
    """Use all CPU time for `seconds`."""
    end = time.monotonic() + order["seconds"]

    def turn():
        while time.monotonic() < end:
            sum(range(1000))

    if not os.fork():
        turn()
        os._exit(0)
    turn()
    os.wait()
    return "spun"


def talk(order):
    """Write endless lines for `seconds`, as fast as they are read; return their number."""
    end, lines = time.monotonic() + order["seconds"], 0
    while time.monotonic() < end:
        os.write(1, b"\x1b]0;owned\x07 " + b"x" * 4000 + b"\n")
        lines += 1
    return lines


def dump(_order):
    """Dump core to wherever the host stores core files."""
    os.abort()


def kill_all(_order):
    """Kill every process that may be signalled, including itself."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def hold(order):
    """Hold the interpreter lock in a C call: no other thread runs, no PING is answered."""
    ctypes.PyDLL(None).poll(None, 0, order["seconds"] * 1000)
    return "let go"


def ignore_term(_order):
    """Ignore SIGTERM and block the replica's loop."""
    ctypes.CDLL(None).signal(signal.SIGTERM, 1)
    main = threading.main_thread().ident
    loop = sys._current_frames()[main]
    while loop.f_back is not None and "Loop" not in str(loop.f_locals.get("self")):
        loop = loop.f_back
    loop.f_locals["self"].turn_end = lambda: waited(3600)
    return "deaf"


def close_all(_order):
    """Close every descriptor except the standard ones."""
    os.closerange(3, 4096)
    return "closed"


def greet_again(order):
    """Use the replica's record to send a second HELLO, or to pose as another replica's data
    socket."""
    run = Path(order["run"])
    record = json.loads((run / "replica.json").read_text())

    def connect(name):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(1)
            sock.connect(str(run / name))
            sock.sendall(b"\0" * 16)
            return sock.recv(100)

    def listen():
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(run / "data.sock"))

    return {
        "token": len(record["token"]),
        **all_tried({"greet": lambda: connect("ctl.sock"), "listen": listen}),
    }


ATTACKS = {
    "close_all": close_all,
    "dump": dump,
    "fill": fill,
    "forks": forks,
    "greet_again": greet_again,
    "hold": hold,
    "ignore_term": ignore_term,
    "keep_full": keep_full,
    "kill_all": kill_all,
    "memory": memory,
    "spin": spin,
    "talk": talk,
}
