"""Python functions that stream, as a plain and as an async generator, and readers of them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.process_server import ServerProcess
from tests.support.raw_http import Connection, Got, connected, request

_HANDLER = """
import asyncio, os, time

OPEN = {"now": 0, "made": 0, "ended_s": 0.0}


async def predict(n: int = 0, ms: float = 0, size: int = 0, form: str = "dict", fail: int = -1,
            skip: int = 0, told: bool = False):
    if told:
        return {**OPEN, "pid": os.getpid(), "mark": MARK}
    return stream(n, ms, size, form, fail, skip)


async def stream(n, ms, size, form, fail, skip):
    OPEN["now"] += 1
    try:
        for at in range(n):
            if at == fail:
                raise RuntimeError("mid")
            OPEN["made"] += 1
            yield value(at, size, form)
            if ms:
                await asyncio.sleep(ms / 1e3)
    finally:
        OPEN["now"] -= 1
        OPEN["ended_s"] = time.time()


def value(at, size, form):
    if form == "bytes":
        return b"x" * size if size else b"%d\\n" % at
    if form == "str":
        return f"t{at}" + "x" * size
    return {"i": at, "x": "x" * size} if size else {"i": at}
"""
HANDLERS = {
    "async": _HANDLER,
    "plain": _HANDLER.replace("async def", "def")
    .replace("await asyncio.sleep", "time.sleep")
    .replace("import asyncio, ", "import "),
}
"""Handlers by kind. They count generators that are open, and values that they made."""
TYPES = {"Content-Type": "application/json"}


def bundle(
    folder: Path,
    name: str,
    kind: str,
    *,
    limits: str = "concurrency = 64",
    table: str = "",
    mark: str = "",
) -> str:
    """Write the folder of a function; return its path. `table`: lines of [python]; another `mark`
    makes another revision."""
    path = folder / f"{name}{mark}"
    path.mkdir(parents=True, exist_ok=True)
    (path / "function.toml").write_text(
        f'schema = 1\nname = "{name}"\n[python]\n{table}\n[limits]\n{limits}\n'
    )
    (path / "handler.py").write_text(f"MARK = {mark!r}\n{HANDLERS[kind]}")
    return str(path)


def deploy(server: ServerProcess, folder: Path, name: str, kind: str, **more: str) -> None:
    """Deploy a function; it must succeed."""
    done = server.fnctl("deploy", bundle(folder, name, kind, **more), "--trust")
    assert done.returncode == 0, done.stderr + done.stdout


def asked(name: str, accept: str = "", **inputs: Any) -> bytes:
    """Return a call as it is sent."""
    fields = {**TYPES, **({"Accept": accept} if accept else {})}
    return request("POST", f"/fn/{name}", json.dumps({"inputs": inputs}).encode(), fields)


async def call(port: int, name: str, accept: str = "", **inputs: Any) -> Got:
    """Return the answer to one call, over a connection of its own."""
    async with connected(port) as connection:
        await connection.send(asked(name, accept, **inputs))
        return await connection.answer("POST")


async def told(port: int, name: str) -> dict[str, Any]:
    """Return what the function says of its generators."""
    got = await call(port, name, told=True)
    assert got.status == 200, got
    outputs: dict[str, Any] = got.json()["outputs"]
    return outputs


@dataclass
class Events:
    """The events of an answer."""

    numbers: list[int]
    error: dict[str, Any] | None = None
    """The problem of `event: error`."""


def events(body: bytes) -> Events:
    """Return the events of a body, of which a last one may be half there."""
    found = Events([])
    *whole, _ = bytes(body).split(b"\n\n")
    for event in whole:
        lines = event.split(b"\n")
        if lines[0] == b"event: error":
            found.error = json.loads(lines[1].removeprefix(b"data: "))
        elif lines[0].startswith(b"data: "):
            found.numbers.append(json.loads(lines[0].removeprefix(b"data: "))["i"])
        else:
            assert lines[0].startswith(b":"), event
    return found


async def opened(connection: Connection, name: str, **inputs: Any) -> None:
    """Ask for a stream, and read the head of its answer and perhaps more."""
    await connection.send(asked(name, **inputs))
    head = await connection.reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head


def runner_pids(server: ServerProcess) -> list[int]:
    """Return the processes of the data folder that run handlers."""
    root, found = os.fsencode(server.data), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0].startswith(root) and any(w.endswith(b"/python_runner") for w in words):
                found.append(int(entry.name))
    return found
