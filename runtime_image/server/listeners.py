"""Who listens on which port, by /proc/net/tcp and the open files of processes (proc_net(5))."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from runtime_image.server.process_tree import Process

_LISTEN: Final = "0A"
SHOWN_MAX: Final = 5
"""Max addresses named in a message."""


class Listener(NamedTuple):
    """A listening TCP socket of this network namespace."""

    host: str
    port: int
    inode: int

    @property
    def is_local(self) -> bool:
        """Whether only this network namespace reaches it."""
        return self.host == "::1" or self.host.removeprefix("::ffff:").startswith("127.")

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def listeners() -> list[Listener]:
    """Return all listening TCP sockets of this network namespace."""
    found: list[Listener] = []
    for name in ("tcp", "tcp6"):
        try:
            text = Path(f"/proc/self/net/{name}").read_text()
        except OSError:
            continue
        found += parse(text)
    return found


def others() -> list[Listener]:
    """Return them without those of this process: in a Pod it listens for gateways itself."""
    own = sockets_of([Process(os.getpid(), 0)])
    return [one for one in listeners() if one.inode not in own]


def parse(text: str) -> Iterator[Listener]:
    """Yield the listening sockets of a file like /proc/net/tcp."""
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTEN:
            address, port = fields[1].split(":")
            yield Listener(_host(address), int(port, 16), int(fields[9]))


def _host(address: str) -> str:
    """Return an address in its usual form; the file has 32-bit words in the machine's order."""
    words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    return socket.inet_ntop(socket.AF_INET6 if len(words) > 1 else socket.AF_INET, packed)


def sockets_of(processes: Iterable[Process]) -> dict[int, str]:
    """Return the inodes of all sockets that these processes have open, each with the path of one
    descriptor, for `leads_to`."""
    found: dict[int, str] = {}
    for process in processes:
        folder = f"/proc/{process.pid}/fd"
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            target = _target(f"{folder}/{name}")
            if target.startswith("socket:["):
                found[int(target[8:-1])] = f"{folder}/{name}"
    return found


def leads_to(path: str, inode: int) -> bool:
    """Whether a path from `sockets_of` still is that socket."""
    return _target(path) == f"socket:[{inode}]"


def _target(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""


def describe(found: Iterable[Listener]) -> str:
    """Return the addresses as text, at most SHOWN_MAX of them."""
    texts = sorted({str(one) for one in found})
    more = f" and {len(texts) - SHOWN_MAX} more" if len(texts) > SHOWN_MAX else ""
    return ", ".join(texts[:SHOWN_MAX]) + more
