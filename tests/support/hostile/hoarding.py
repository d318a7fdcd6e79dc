"""Takes as much as there is of something, or never lets go."""

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
    """How many processes can be made before the kernel refuses; they end with the answer."""
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
    """Until it is killed."""
    kept = []
    while True:
        kept.append(bytearray(os.urandom(MIB)) * 8)


def fill(order):
    """MiB that a folder takes, with all of it given back."""
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
    """Fill a folder that is memory, and do not give it back."""
    with (Path(order["folder"]) / "kept").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * MIB)


def spin(order):
    """All the CPU there is, for so many seconds."""
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
    """Lines without end for so many seconds, as fast as they are taken; how many."""
    end, lines = time.monotonic() + order["seconds"], 0
    while time.monotonic() < end:
        os.write(1, b"\x1b]0;owned\x07 " + b"x" * 4000 + b"\n")
        lines += 1
    return lines


def dump(_order):
    """Its memory to wherever the host keeps that of programs that crash."""
    os.abort()


def kill_all(_order):
    """Every process that it may signal, itself included."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def hold(order):
    """The interpreter's lock in a C call: no other thread runs, no PING is answered."""
    ctypes.PyDLL(None).poll(None, 0, order["seconds"] * 1000)
    return "let go"


def ignore_term(_order):
    """TERM does nothing from now on, and no turn of the replica's loop ends any more."""
    ctypes.CDLL(None).signal(signal.SIGTERM, 1)
    main = threading.main_thread().ident
    loop = sys._current_frames()[main]
    while loop.f_back is not None and "Loop" not in str(loop.f_locals.get("self")):
        loop = loop.f_back
    loop.f_locals["self"].turn_end = lambda: waited(3600)
    return "deaf"


def close_all(_order):
    """Every descriptor but the standard ones."""
    os.closerange(3, 4096)
    return "closed"


def greet_again(order):
    """What its record is good for: a second greeting, or to be somebody else's data socket."""
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
