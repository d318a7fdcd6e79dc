"""Network link of a stand-in host with latency, loss and breaks, in a process of its own.

`python relay.py NAME PID HERE THERE`: a TUN device NAME with address HERE in this network
namespace, another one with address THERE in that of process PID. Packets pass between them in
order. Each line on standard input is a JSON object with members of `State`, and is answered by a
line with the numbers of packets passed and dropped. The process ends with its input.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field, fields

# From the kernel's headers if_tun.h and sched.h.
TUNSETIFF = 0x400454CA
IFF_TUN = 0x0001
IFF_NO_PI = 0x1000
CLONE_NEWNET = 0x40000000
PACKET_MAX = 65_536
BURST = 64
"""Max packets read of one device before the other has its turn."""
QUEUE = 10_000
"""Packets that the kernel keeps for a device."""


@dataclass
class State:
    """`delay_s` and `loss` (a share) of each direction; `out`: packets pass from here to the host,
    `back`: from the host to here."""

    delay_s: float = 0.0
    loss: float = 0.0
    out: bool = True
    back: bool = True
    passed: int = field(default=0, init=False)
    dropped: int = field(default=0, init=False)


class Direction:
    """Packets on their way from one device to the other."""

    def __init__(self, source: int, target: int, name: str, chance: random.Random) -> None:
        self.source = source
        self._target = target
        self._name = name
        self._chance = chance
        self._queue: deque[tuple[float, bytes]] = deque()

    def take(self, state: State) -> None:
        """Read the packets that have arrived; drop some, and all in a partition."""
        for _ in range(BURST):
            try:
                packet = os.read(self.source, PACKET_MAX)
            except BlockingIOError:
                return
            if not getattr(state, self._name) or self._chance.random() < state.loss:
                state.dropped += 1
                continue
            state.passed += 1
            self._queue.append((time.monotonic() + state.delay_s, packet))

    def pass_on(self) -> float | None:
        """Deliver what is due; return the seconds until the next packet, None if there is none."""
        while self._queue:
            wait = self._queue[0][0] - time.monotonic()
            if wait > 0:
                return wait
            try:
                os.write(self._target, self._queue.popleft()[1])
            except OSError:  # the device is down or its queue is full: the packet is lost
                continue
        return None


def tun(name: str) -> int:
    """Create a TUN device in this thread's network namespace; it ends with the descriptor."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return fd


def device(name: str, here: str, there: str) -> int:
    """Create a TUN device with an address."""
    fd = tun(name)
    subprocess.run(["ip", "address", "add", here, "peer", there, "dev", name], check=True)
    subprocess.run(["ip", "link", "set", name, "up", "txqueuelen", str(QUEUE)], check=True)
    return fd


def enter_network(pid: int) -> None:
    """Move this process to the network namespace of another."""
    fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(fd, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
    os.close(fd)


def command(state: State, line: bytes) -> None:
    """Apply one line of input and answer it."""
    given = json.loads(line)
    for one in fields(state):
        if one.init:
            setattr(state, one.name, given.get(one.name, getattr(state, one.name)))
    say(json.dumps({"passed": state.passed, "dropped": state.dropped}))


def say(line: str) -> None:
    """Write a line on standard output."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Pass packets on until standard input ends."""
    name, pid, here, there = sys.argv[1:]
    outer = device(name, here, there)
    enter_network(int(pid))
    inner = device("eth0", there, here)
    chance, state = random.Random(name), State()
    directions = [
        Direction(outer, inner, "out", chance),
        Direction(inner, outer, "back", chance),
    ]
    poll = select.poll()
    for fd in (0, outer, inner):
        poll.register(fd, select.POLLIN)
    say("ready")
    while True:
        waits = [wait for one in directions if (wait := one.pass_on()) is not None]
        ready = poll.poll(min(waits) * 1000 if waits else None)
        for fd, _ in ready:
            if fd == 0:
                line = os.read(0, PACKET_MAX)
                if not line:
                    return
                command(state, line)
        for one in directions:
            one.take(state)


if __name__ == "__main__":
    main()
