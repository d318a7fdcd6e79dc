"""The faulty server as a function and as a process, and the processes that it leaves."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.process_server import ServerProcess

SOURCE = Path(__file__).parent / "faulty"
MARK = "FAULTY_MARK"
"""Environment variable of a function's processes that names the test's data folder."""


def command(*options: str, port: str = "${PORT}") -> list[str]:
    """Return the server's command."""
    return [sys.executable, "-B", "-E", "-S", "faulty.py", "--port", port, *options]


def bundle(
    folder: Path,
    name: str,
    *options: str,
    mark: str = "",
    life: str = "",
    limits: str = "",
    more: str = "",
) -> Path:
    """Write a bundle of the faulty server below `folder`; return it.

    `life` and `limits` are lines of the tables [server] and [limits], `more` further tables.
    """
    path = folder / name
    shutil.copytree(SOURCE, path, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    words = ", ".join(f'"{word}"' for word in command(*options))
    ready = "" if "ready =" in life else 'ready = "/ready"'
    text = f"""schema = 1
name = "{name}"

[server]
command = [{words}]
{ready}
{life}

[server.env]
{MARK} = "{mark}"

[limits]
{limits}

{more}
"""
    (path / "function.toml").write_text(text)
    return path


def deploy(
    server: ServerProcess, folder: Path, name: str, *options: str, **tables: str
) -> dict[str, Any]:
    """Deploy the faulty server as a function; it must succeed. `tables` as of `bundle`."""
    path = bundle(folder, name, *options, mark=str(server.data), **tables)
    deployed: dict[str, Any] = server.fnctl_json("deploy", str(path), "--trust")
    return deployed


def try_deploy(
    server: ServerProcess, folder: Path, name: str, *options: str, **tables: str
) -> subprocess.CompletedProcess[str]:
    """Deploy as `deploy`, whether it succeeds or not."""
    path = bundle(folder, name, *options, mark=str(server.data), **tables)
    return server.fnctl("deploy", str(path), "--trust")


def survivors(mark: Path | str) -> dict[int, str]:
    """Return pid and command of every process whose mark begins so; zombies have none."""
    wanted = f"{MARK}={mark}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            values = (entry / "environ").read_bytes().split(b"\0")
            if any(value.startswith(wanted) for value in values):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(entry.name)] = command
        except OSError:  # the process has ended
            continue
    return found


@contextmanager
def running(*options: str) -> Iterator[int]:
    """Run the server as a process of its own; yield its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    process = subprocess.Popen(
        command(*options, port=str(port)), cwd=SOURCE, stdout=subprocess.PIPE, env={**os.environ}
    )
    try:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == port
        yield port
    finally:
        process.kill()
        process.communicate()
