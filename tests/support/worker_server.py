"""A server with several gateway workers, and connections to a chosen worker."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from admin.workers.process import MODULE
from runtime_image.proc import read_stat
from tests.support.process_server import END_S, ServerProcess

CONNECTIONS_MAX = 200
"""Max connections made until each worker has one. With two workers the chance that all go to one is
2^-199."""

ESTABLISHED = "01"
"""State of a connection in proc(5)."""
NOT_TAKEN = "0"
"""Inode of a connection that has not been accepted yet."""
ASKS_MAX = 5_000
"""Max polls of a condition that should come true soon, at 100 us or more each."""


def worker_pids(supervisor: int) -> list[int]:
    """Return the pids of a server's gateway workers, found by their command lines."""
    found = []
    for task in Path(f"/proc/{supervisor}/task").iterdir():
        try:
            children = (task / "children").read_text().split()
        except OSError:  # the thread has ended
            continue
        for pid in children:
            with contextlib.suppress(OSError):
                if f"\0{MODULE}\0".encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(int(pid))
    return sorted(found)


def gateway_pids(server: int) -> list[int]:
    """Return the pids of a server's gateway processes: its workers, or the server itself."""
    return worker_pids(server) or [server]


class Line:
    """One kept-alive connection to a server. `pid`: the gateway process that accepted it."""

    def __init__(self, server: ServerProcess) -> None:
        parts = urlsplit(server.url)
        assert parts.hostname is not None
        self._http = http.client.HTTPConnection(parts.hostname, parts.port, timeout=END_S)
        assert server.process is not None
        self.headers: dict[str, str] = {}
        """Headers of the last answer."""
        # Connect without a request: the first one decides whether the fast front or aiohttp
        # reads the rest.
        self._http.connect()
        mine = self._http.sock.getsockname()[1]
        try:
            self.pid = holder(server.process.pid, int(parts.port or 0), mine)
        except ConnectionError:
            self._http.close()
            raise

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """Send one request; return the status and the decoded JSON or bytes. A dict is sent as
        JSON."""
        self.send(method, path, body, headers)
        return self.receive()

    def receive(self) -> tuple[int, Any]:
        """Return the answer to the request that was sent, as `ask` does."""
        answer = self._http.getresponse()
        self.headers = dict(answer.getheaders())
        data = answer.read()
        is_json = "json" in answer.headers.get("Content-Type", "")
        return answer.status, json.loads(data) if is_json and data else data

    def send(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send one request without waiting for its answer. A dict is sent as JSON."""
        given = dict(headers or {})
        if isinstance(body, dict):
            body = json.dumps(body).encode()
            given.setdefault("Content-Type", "application/json")
        if self._http.sock is None:
            self._http.connect()
        # Head and body in one piece: a refusal that comes before the body ends the connection.
        sock = self._http.sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        self._http.request(method, path, body, given)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)

    def call(
        self, ref: str, inputs: dict[str, Any], headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """Send POST /fn/REF."""
        return self.ask("POST", f"/fn/{ref}", {"inputs": inputs}, headers)

    def taken(self) -> socket.socket:
        """Return a duplicate of its socket, for another client's use."""
        return self._http.sock.dup()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()


@contextmanager
def lines(server: ServerProcess, each: int = 1) -> Iterator[list[Line]]:
    """Open `each` connections to every gateway process, grouped by process."""
    assert server.process is not None
    found: dict[int, list[Line]] = {pid: [] for pid in gateway_pids(server.process.pid)}
    made: list[Line] = []
    try:
        while any(len(there) < each for there in found.values()):
            assert len(made) < CONNECTIONS_MAX, f"not all of {sorted(found)} take connections"
            line = Line(server)
            made.append(line)
            found[line.pid].append(line)
        yield [line for there in found.values() for line in there[:each]]
    finally:
        for line in made:
            line.close()


def until_replaced(server: ServerProcess, gone: int) -> None:
    """Poll until all workers run again without the one that is `gone`. Meanwhile the server must
    report that it is degraded, and why."""
    assert server.process is not None
    for _ in range(ASKS_MAX):
        line = Line(server)
        status, document = line.ask("GET", "/readyz", headers=server.headers)
        line.close()
        assert status == 200
        if document["status"] == "ok":
            assert gone not in worker_pids(server.process.pid)
            return
        assert "workers: 1 of 2 run" in document["reasons"]
    raise AssertionError("the worker is not replaced")


def holder(server: int, port: int, peer: int) -> int:
    """Return the gateway process that accepted the connection from port `peer` to `port` (proc(5)).

    Raises ConnectionError if the connection ends before a process accepts it.
    """
    for _ in range(ASKS_MAX):
        inode = _inode(port, peer)
        for pid in gateway_pids(server) if inode != NOT_TAKEN else ():
            if f"socket:[{inode}]" in _descriptors(pid):
                return pid
    raise ConnectionError(f"no process takes the connection from port {peer}")


def _inode(port: int, peer: int) -> str:
    """Return the inode of the server's end of a connection. Raises ConnectionError if there is
    none."""
    for local, remote, inode in _connections():
        if (local, remote) == (port, peer):
            return inode
    raise ConnectionError(f"the connection from port {peer} is gone")


def peers(port: int) -> set[int]:
    """Return the local ports of all connections to a port of this machine."""
    return {local for local, remote, _ in _connections() if remote == port}


def _connections() -> Iterator[tuple[int, int, str]]:
    """Yield the ports and the inode of both ends of all established connections (proc(5)).

    A socket of IPv6 may have a connection of IPv4, as those of gRPC do.
    """
    for table in ("tcp", "tcp6"):
        for row in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = row.split()
            local, remote = (int(fields[place].rpartition(":")[2], 16) for place in (1, 2))
            if fields[3] == ESTABLISHED:
                yield local, remote, fields[9]


def _descriptors(pid: int) -> set[str]:
    found = set()
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(str(entry.readlink()))
    except OSError:  # the process has ended
        return set()
    return found


def alive(pid: int) -> bool:
    """Return whether a process runs. A zombie does not count."""
    stat = read_stat(f"/proc/{pid}")
    return stat is not None and not stat.is_zombie


def watch(pid: int) -> int:
    """Return a pidfd, which becomes readable when the process has ended."""
    return os.pidfd_open(pid)
