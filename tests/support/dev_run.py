"""`fnctl dev` as a real process, with an index on loopback that has the installed msgspec."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.support.package_index import PackageIndex, package_index

WAIT_S = 60.0
STEM = f"cp{sys.version_info[0]}{sys.version_info[1]}"


def add_installed(index: PackageIndex, name: str) -> None:
    """Add an installed package to an index, as a wheel for this interpreter."""
    found = metadata.distribution(name)
    files = {
        str(file): Path(str(file.locate())).read_bytes()
        for file in found.files or ()
        if file.parts[0] == name and "__pycache__" not in file.parts
    }
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    index.files.pop(name, None)
    index.add(name, found.version, files=files, tag=f"{STEM}-{STEM}-{platform}")


@contextmanager
def real_index() -> Iterator[PackageIndex]:
    """Serve an index with the msgspec that is installed here."""
    with package_index() as index:
        add_installed(index, "msgspec")
        yield index


@dataclass
class DevRun:
    """A run of `fnctl dev`, and what it has said."""

    process: subprocess.Popen[str]
    said: list[str]

    def until(self, part: str) -> str:
        """Return the next line that has a part."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip("\n"))
            if part in line:
                return self.said[-1]
        raise AssertionError(f"it ended without {part!r}: {self.said}")

    def ready(self) -> int:
        """Wait until it serves; return its port."""
        line = self.until("ready after")
        return int(line.partition("127.0.0.1:")[2].partition("/")[0])

    def end(self, number: int = signal.SIGINT) -> int:
        """End it by a signal; return its exit code."""
        self.process.send_signal(number)
        assert self.process.stdout is not None
        self.said += [line.rstrip("\n") for line in self.process.stdout]
        return self.process.wait(WAIT_S)


@contextmanager
def dev_run(folder: Path, index: PackageIndex, *words: str) -> Iterator[DevRun]:
    """Run `fnctl dev` on a folder; its cache and its work are beside that."""
    command = [sys.executable, "-c", "from admin.cli.main import main; main()", "dev", str(folder)]
    command += ["--port", "0", "--cache", str(folder.parent / "cache")]
    process = subprocess.Popen(
        [*command, "--uv-config", str(index.config(folder.parent)), *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(folder.parent)},
        start_new_session=True,
    )
    try:
        yield DevRun(process, [])
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def call(port: int, inputs: Any = None, fields: Mapping[str, str] | None = None) -> tuple[int, Any]:
    """Call what serves on a port; return status and document."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        body = json.dumps({"inputs": inputs or {}})
        connection.request(
            "POST", "/", body, {"Content-Type": "application/json", **(fields or {})}
        )
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()
