"""Network links between this machine and a stand-in host: a plain one, and one with faults."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.fleet.relay import tun

RELAY = Path(__file__).with_name("relay.py")
HOSTS_MAX = 8
"""Links of one test process at a time."""
PROCESSES_MAX = 131_072
END_S = 10.0
LAST = 9999
"""Metric of a route that any other one precedes."""

_numbers = itertools.count()


def addresses() -> tuple[str, str, str]:
    """Return a device name and two addresses, here and there, that no other link has.

    They are of 10.64.0.0/10, the range being divided among the process ids of this machine.
    """
    number = next(_numbers) % HOSTS_MAX
    first = (10 << 24) + (64 << 16) + 4 * (os.getpid() % PROCESSES_MAX * HOSTS_MAX + number)
    here, there = (".".join(map(str, (first + n).to_bytes(4, "big"))) for n in (1, 2))
    return f"fnf{os.getpid()}-{number}", here, there


class Sink:
    """Route to an address behind which there is no host: packets vanish, as to one without power.

    A link to the same address has precedence. It ends with this process.
    """

    def __init__(self, name: str, there: str) -> None:
        self._fd = tun(name)
        _run("ip", "link", "set", name, "up")
        _run("ip", "route", "add", there, "dev", name, "metric", str(LAST))

    def close(self) -> None:
        """Remove the route."""
        os.close(self._fd)


class Wire:
    """A pair of virtual Ethernet devices: no delay, no loss."""

    def __init__(self, name: str, here: str, there: str) -> None:
        self._name, self._here, self._there = name, here, there

    def connect(self, pid: int) -> None:
        """Connect the network namespace of a process."""
        self.disconnect()
        inside = ["nsenter", f"--target={pid}", "--net"]
        ends = [([], self._name, self._here), (inside, "eth0", self._there)]
        add = ["ip", "link", "add", self._name, "type", "veth"]
        _run(*add, "peer", "name", "eth0", "netns", str(pid))
        for enter, name, address in ends:
            peer = self._there if address == self._here else self._here
            _run(*enter, "ip", "address", "add", address, "peer", peer, "dev", name)
            _run(*enter, "ip", "link", "set", name, "up")

    def disconnect(self) -> None:
        """Remove the devices, if there are any."""
        subprocess.run(["ip", "link", "delete", self._name], stderr=subprocess.DEVNULL, check=False)


class Relay:
    """A link whose packets pass through a process, which delays and drops them: see relay.py."""

    def __init__(self, name: str, here: str, there: str) -> None:
        self._name, self._here, self._there = name, here, there
        self._process: subprocess.Popen[bytes] | None = None
        self._state: dict[str, float | bool] = {}

    def connect(self, pid: int) -> None:
        """Connect the network namespace of a process; the link is as it was set."""
        self.disconnect()
        words = [self._name, str(pid), self._here, self._there]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(RELAY), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", "the relay did not start"
        self.set(**self._state)

    def disconnect(self) -> None:
        """End the process, and the devices with it."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate(timeout=END_S)

    def set(self, **state: float | bool) -> dict[str, Any]:
        """Change members of relay.State (delay_s, loss, out, back); return what passed so far."""
        self._state |= state
        if self._process is None:
            return {}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(self._state).encode() + b"\n")
        self._process.stdin.flush()
        counts: dict[str, Any] = json.loads(self._process.stdout.readline())
        return counts

    def cut(self) -> None:
        """Partition: no packet passes in either direction."""
        self.set(out=False, back=False)

    def half_open(self) -> None:
        """Let packets pass to the host, and none back."""
        self.set(out=True, back=False)

    def heal(self) -> None:
        """Let all packets pass."""
        self.set(out=True, back=True)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
