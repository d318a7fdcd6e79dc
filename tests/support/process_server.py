"""A whole server in its own process, started by `fnctl serve`."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

FNCTL = str(Path(sys.executable).parent / "fnctl")
END_S = 90.0
"""More than `FN_SHUTDOWN_S`, for which a server waits that still has requests."""
_SERVING = re.compile(r"(?:\"url\": \"|\bserving\b.*\burl=)(http://[^\s\"]+)")
"""The server's startup line, in either log format."""


class ServerProcess:
    """`fnctl serve` over the data folder `data` on `port` (0: chosen by the system).

    `environment` is added to this process's environment. `program` replaces fnctl for the server,
    `client` for every other verb. `log`: last lines of the log; `complaints`: its errors.
    """

    def __init__(
        self,
        data: Path,
        *options: str,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = (FNCTL,),
        client: Sequence[str] = (FNCTL,),
    ) -> None:
        self.data = data
        self._program = program
        self._client = client
        self._options = options
        self._environment = environment or {}
        self.process: subprocess.Popen[str] | None = None
        self.port = 0
        self.url = ""
        self.log: deque[str] = deque(maxlen=1000)
        self.complaints: deque[str] = deque(maxlen=1000)

    def start(self) -> None:
        """Start the server; return once it accepts calls."""
        command = [*self._program, "serve", "--port", str(self.port), "--data", str(self.data)]
        self.process = subprocess.Popen(
            [*command, "--log-format", "json", *self._options],
            env={**os.environ, **self._environment},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self.url = self._read_url()
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()

    def _read_url(self) -> str:
        assert self.process is not None
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._keep(line)
            found = _SERVING.search(line)
            if found is not None:
                return found[1]
        raise AssertionError(f"the server did not start: {''.join(self.log)}")

    def _drain(self) -> None:
        assert self.process is not None
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._keep(line)

    def _keep(self, line: str) -> None:
        self.log.append(line)
        # Lines that are not JSON come from Python or a library: a traceback or a warning.
        if '"level": "error"' in line or not line.startswith("{"):
            self.complaints.append(line)

    @property
    def token(self) -> str:
        """Return the admin token of its data folder."""
        return (self.data / "admin.token").read_text().strip()

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of an administrator's request."""
        return {"Authorization": f"Bearer {self.token}"}

    def kill(self) -> None:
        """Send SIGKILL, as a crash would end it."""
        self._end(signal.SIGKILL)

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """Send SIGINT or another signal; return the exit code."""
        return self._end(number)

    def forget(self) -> None:
        """Release this process's resources after the server was killed by other means."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        process, self.process = self.process, None
        assert process is not None
        process.send_signal(number)
        code = process.wait(END_S)
        self._reader.join(END_S)
        assert process.stderr is not None
        process.stderr.close()
        return code

    def replica_processes(self) -> dict[str, int]:
        """Return id and pid of the replicas of this data folder."""
        root = os.fsencode(self.data)
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    command = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if b"\0runtime_image\0" in command and root in command:
                    run_dir = command.split(b"\0")[-2]
                    found[Path(os.fsdecode(run_dir)).name] = int(entry.name)
        return found

    def replica_pids(self, role: str = "") -> list[int]:
        """Return the pids of the replicas of this data folder, optionally only of one role."""
        return [
            pid
            for id, pid in self.replica_processes().items()
            if not role or self._role(id) == role
        ]

    def _role(self, id: str) -> str:
        """Return the role in a replica's record, "" if the record is gone."""
        for path in self.data.rglob(f"{id}/replica.json"):
            try:
                return str(json.loads(path.read_text())["role"])
            except OSError:
                break
        return ""

    def sockets(self) -> list[Path]:
        """Return the socket files below the data folder."""
        return [path for path in self.data.rglob("*") if path.is_socket()]

    def session(self) -> aiohttp.ClientSession:
        """Return a client session with the admin token and no connection limit."""
        connector = aiohttp.TCPConnector(limit=0)
        return aiohttp.ClientSession(self.url, headers=self.headers, connector=connector)

    def fnctl(self, *arguments: str, timeout_s: float = END_S) -> subprocess.CompletedProcess[str]:
        """Run `fnctl` against this server, for at most `timeout_s`."""
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": os.environ.get("HOME", "/"),
            "FN_URL": self.url,
            "FN_DATA": str(self.data),
        }
        return subprocess.run(
            [*self._client, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def fnctl_json(self, *arguments: str) -> Any:
        """Run `fnctl ... --json`, require success and return the parsed output."""
        done = self.fnctl(*arguments, "--json")
        assert done.returncode == 0, done.stderr + done.stdout
        return json.loads(done.stdout)


@contextmanager
def server_process(
    data: Path,
    *options: str,
    environment: Mapping[str, str] | None = None,
    program: Sequence[str] = (FNCTL,),
    client: Sequence[str] = (FNCTL,),
) -> Iterator[ServerProcess]:
    """Run a server; at the end it and every replica of its data folder are gone."""
    server = ServerProcess(data, *options, environment=environment, program=program, client=client)
    server.start()
    try:
        yield server
    finally:
        if server.process is not None:
            server.stop()
        for pid in server.replica_pids():
            end_group(pid)


def end_group(pid: int) -> None:
    """Kill an orphaned replica's process group and wait for its end."""
    try:
        watch = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    os.killpg(pid, signal.SIGKILL)
    wait_end(watch)


def wait_end(pidfd: int, seconds: float = END_S) -> None:
    """Wait for the end of a process by its pidfd, then close the pidfd."""
    try:
        readable, _, _ = select.select([pidfd], [], [], seconds)
        assert readable, f"the process still lives after {seconds} s"
    finally:
        os.close(pidfd)
