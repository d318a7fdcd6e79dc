"""A stand-in for a server of models, as a function and as a process.

Its text, its tokens and its vectors follow from the request, and orders in the request's text
direct it: see `chat/answers.py`.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.process_server import ServerProcess

SOURCE = Path(__file__).parent / "chat"


def command(*options: str, port: str = "${PORT}") -> list[str]:
    """Return the server's command."""
    return [sys.executable, "-B", "-E", "-S", "chat.py", "--port", port, *options]


def bundle(
    folder: Path,
    name: str,
    *options: str,
    api: str = "",
    life: str = "",
    limits: str = "",
    more: str = "",
) -> Path:
    """Write a bundle of the server below `folder`; return it.

    `api`, `life` and `limits` are lines of the tables [openai], [server] and [limits], `more`
    further tables.
    """
    path = folder / name
    shutil.copytree(SOURCE, path, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    words = ", ".join(json.dumps(word) for word in command(*options))
    text = f"""schema = 1
name = "{name}"

[server]
command = [{words}]
ready = "/health"
stop_grace_s = 2
{life}

[openai]
{api}

[limits]
{limits}

{more}
"""
    (path / "function.toml").write_text(text)
    return path


def deploy(
    server: ServerProcess, folder: Path, name: str, *options: str, **tables: str
) -> dict[str, Any]:
    """Deploy the server as a function; it must succeed. `tables` as of `bundle`."""
    path = bundle(folder, name, *options, **tables)
    deployed: dict[str, Any] = server.fnctl_json("deploy", str(path), "--trust")
    return deployed


def counted(path: Path) -> list[dict[str, Any]]:
    """Return the calls that servers with `--counts PATH` have served, in their order, but golden
    samples.

    `end` is `calls` for a whole answer, `failed`, `left` (by the client) or `died`; `input` and
    `output` are tokens.
    """
    lines = path.read_text().splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
    return [one for one in found if one["path"] != "golden"]


@contextmanager
def running(*options: str) -> Iterator[int]:
    """Run the server as a process of its own; yield its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    words = command(*options, port=str(port))
    process = subprocess.Popen(words, cwd=SOURCE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == port
        yield port
    finally:
        process.kill()
        process.communicate()
