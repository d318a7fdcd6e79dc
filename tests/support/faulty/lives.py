"""Faults of a server's life: how it starts, what it leaves behind, how it refuses to end."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time

MIB = 1 << 20


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this module."""
    add = parser.add_argument
    add("--exit", type=int, help="exit at once with this code")
    add("--listen-after", type=float, default=0.0, help="listen after so many seconds")
    add("--ready-after", type=float, default=0.0, help="answer 503 for so many seconds")
    add("--never-ready", action="store_true", help="answer 503 for ever")
    add("--elsewhere", action="store_true", help="listen on the next port")
    add("--deaf", action="store_true", help="ignore TERM")
    add("--slow-end", type=float, default=0.0, help="end so many seconds after TERM")
    add("--away", action="store_true", help="serve in a process of another session; exit 0")
    add("--orphans", type=int, default=0, help="processes in sessions of their own, deaf to TERM")
    add("--talks", action="store_true", help="write log lines for ever")
    add("--eats", type=int, default=0, help="MiB of memory to use at once")
    add("--answers-first", action="store_true", help="answer each connection before its request")


def begin(given: argparse.Namespace) -> None:
    """Do what comes before listening."""
    if given.exit is not None:
        sys.stderr.write(f"exits at once with {given.exit}\n")
        sys.exit(given.exit)
    for _ in range(given.orphans):
        if _fork_away():
            _stay()
    if given.away and not _fork_away():
        sys.exit(0)
    if given.deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if given.slow_end:
        signal.signal(signal.SIGTERM, lambda *_: threading.Timer(given.slow_end, _end).start())
    if given.talks:
        threading.Thread(target=_talk, daemon=True).start()
    if given.eats:
        EATEN.append(b"\x01" * (given.eats * MIB))


def _fork_away() -> bool:
    """Fork twice and leave the session; return whether this is the grandchild."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    return True


def _stay() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        signal.pause()


def _talk() -> None:
    lines = (b"a line that never ends being followed by another one " * 10 + b"\n") * 120
    while True:
        os.write(2, lines)
        time.sleep(0.005)  # about 12 MiB a second


def _end() -> None:
    os._exit(0)


EATEN: list[bytes] = []
