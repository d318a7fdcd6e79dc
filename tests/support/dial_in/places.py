"""Where the replicas of a host that dials in run: on loopback, or in a network of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.support.fleet.links import Relay, Sink, addresses

HOLD = "ip link set lo up && echo held && exec cat"
"""Program of the process that holds a network namespace; it ends with its standard input."""


@dataclass(frozen=True)
class Place:
    """What an engine knows of one of its hosts."""

    name: str
    """Name of the host."""
    server: str
    """Address of this machine as its replicas dial it."""
    folder: str
    """Folder of its replicas, which nothing but its engine and they use."""
    memory_mib: float = 4096.0
    """Memory that its replicas share."""
    network: int = 0
    """Pid of the process whose network namespace is the host's, 0 for this machine's."""

    @property
    def python(self) -> str:
        """The interpreter of its replicas: a program that starts it in the host's network."""
        if not self.network:
            return sys.executable
        program = Path(self.folder, "python")
        enter = f"nsenter --target={self.network} --net"
        program.write_text(f'#!/bin/sh\nexec {enter} {sys.executable} "$@"\n')
        program.chmod(0o755)
        return str(program)

    @property
    def is_away(self) -> bool:
        """Whether the engine cannot reach the host: the file `away` says so, to engines of other
        processes, too."""
        return Path(self.folder, "away").exists()

    def set_away(self, *, is_away: bool) -> None:
        """Take the host away from its engine, or give it back."""
        away = Path(self.folder, "away")
        away.touch() if is_away else away.unlink(missing_ok=True)

    def to_json(self) -> dict[str, Any]:
        """Return what `Place(**it)` is."""
        return asdict(self)


def loopback(name: str, root: Path) -> Place:
    """Return a host on this machine's loopback."""
    folder = root / name
    folder.mkdir(mode=0o700, parents=True)
    return Place(name, "127.0.0.1", str(folder))


class Network:
    """A network namespace, and the link between it and this machine, which may be cut."""

    def __init__(self) -> None:
        device, self.here, there = addresses()
        self._sink = Sink(f"{device}x", there)
        self.link = Relay(device, self.here, there)
        self._holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-ec", HOLD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"held\n", "no network namespace"
        self.link.connect(self._holder.pid)

    def place(self, name: str, root: Path, memory_mib: float) -> Place:
        """Return the host in this network, with memory for its replicas."""
        folder = root / name
        folder.mkdir(mode=0o700, parents=True)
        return Place(name, self.here, str(folder), memory_mib, self._holder.pid)

    def close(self) -> None:
        """End the link; the namespace ends with the last replica."""
        self.link.disconnect()
        self._holder.communicate()
        self._sink.close()


def can_open_networks() -> bool:
    """Whether this process may make network namespaces with a link."""
    return os.geteuid() == 0 and os.access("/dev/net/tun", os.R_OK | os.W_OK)


@contextmanager
def networks(count: int) -> Iterator[list[Network]]:
    """Yield network namespaces that end with the block. Needs root."""
    found: list[Network] = []
    try:
        while len(found) < count:
            found.append(Network())
        yield found
    finally:
        for one in found:
            one.close()


def free_port() -> int:
    """Return a TCP port that nothing of this machine listens at."""
    with socket.socket() as sock:
        sock.bind(("", 0))
        port: int = sock.getsockname()[1]
    return port
