"""A server that falls sick in a given way: `python sick.py PORT [options]`. Standard library only.

GET /turn/WAY makes it sick, every other path is a call of `CALLS`. A process that is started again
is well again, unless `--born` says otherwise. A right answer is the name of the process, which is
random: process ids repeat in namespaces.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

NAME = os.urandom(8).hex()
PIECE = 2**20
EATEN: list[bytes] = []
ENGINE = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"


class Sick(Exception):
    """The connection is to be closed without an answer."""


class Server:
    """The server. `way`: how it is sick, "" while it is well."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._began_s = time.monotonic()
        self._listener: asyncio.Server | None = None
        self._engine: asyncio.subprocess.Process | None = None
        self._asked: dict[bytes, asyncio.Future[None]] = {}
        self._ids = itertools.count()
        self._stuck_s = 0.0
        self._steps = 0
        self.way = ""

    async def serve(self) -> None:
        """Serve until the process ends."""
        pipe = asyncio.subprocess.PIPE
        if self._given.engine:
            command = (sys.executable, "-c", ENGINE)
            made = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
            self._engine, reading = made, asyncio.create_task(self._read_engine(made))
            reading.add_done_callback(lambda _: None)
        if self._given.missing:
            threading.Thread(target=_download, args=(self._given.missing,), daemon=True).start()
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self._given.port)
        await asyncio.Event().wait()

    async def _read_engine(self, engine: asyncio.subprocess.Process) -> None:
        assert engine.stdout is not None
        async for line in engine.stdout:
            self._steps += 1
            if (asked := self._asked.pop(line, None)) is not None:
                asked.set_result(None)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError, Sick, MemoryError):
            await self._answer(await reader.readuntil(b"\r\n\r\n"), writer)
        writer.close()

    async def _answer(self, head: bytes, writer: asyncio.StreamWriter) -> None:
        url = urlsplit(head.split(b" ")[1].decode())
        asked = {name: float(values[0]) for name, values in parse_qs(url.query).items()}
        status, text = 200, NAME
        if url.path.startswith("/turn/"):
            self._turn(url.path.removeprefix("/turn/"), asked)
        elif url.path == "/metrics":
            text = f"# TYPE steps_total counter\nsteps_total {self._steps}\n"
        elif url.path in ("/health", "/"):
            status = await self._health(url.path)
        else:
            self.way = self.way or self._given.born
            await self._suffer()
            if url.path == "/error":
                status = 500
            elif url.path in ("/events", "/big"):
                await (self._events if url.path == "/events" else _big)(writer, asked)
                return
            else:
                await CALLS[url.path](self, asked)
        writer.write(
            f"HTTP/1.1 {status} x\r\nContent-Length: {len(text)}\r\n"
            f"Connection: close\r\n\r\n{text}".encode()
        )
        await writer.drain()

    def _turn(self, way: str, asked: dict[str, float]) -> None:
        """Become sick, a moment after the answer to this request."""
        self.way = way
        self._stuck_s = time.monotonic() + asked.get("s", 0.0)
        loop = asyncio.get_running_loop()
        if way == "refuses":
            assert self._listener is not None
            loop.call_later(0.2, self._listener.close)
        elif way == "stops":
            loop.call_later(0.2, os.kill, os.getpid(), signal.SIGSTOP)
        elif way == "engine":
            assert self._engine is not None
            self._engine.send_signal(signal.SIGSTOP)
        elif way == "full":
            _fill_memory()

    async def _health(self, path: str) -> int:
        age_s = time.monotonic() - self._began_s
        if age_s < self._given.missing:
            return 404
        if age_s < self._given.loading:
            return 503
        if self.way == "fails":
            return 500
        await self._suffer()
        return 401 if path == "/" else 200

    async def _suffer(self) -> None:
        """Do what a sick server does with any request. Raises Sick, MemoryError."""
        if self.way in ("closes", "fails"):
            raise Sick
        if self.way == "silent":
            await asyncio.Event().wait()
        if self.way == "stuck":
            await asyncio.sleep(max(0.0, self._stuck_s - time.monotonic()))
        if self.way == "full":
            bytes(8 * PIECE)

    async def work(self, asked: dict[str, float]) -> None:
        """Take `s` seconds, with `spin` of a busy core, with `steps` of a counter that moves."""
        end_s = time.monotonic() + asked.get("s", 0.0)
        if asked.get("spin"):
            threading.Thread(target=_spin, args=(asked["s"],), daemon=True).start()
        while (left_s := end_s - time.monotonic()) > 0:
            self._steps += bool(asked.get("steps"))
            await asyncio.sleep(min(left_s, 0.5))

    async def ask_engine(self, _asked: dict[str, float]) -> None:
        """Wait for the engine."""
        assert self._engine is not None
        assert self._engine.stdin is not None
        line = b"%d\n" % next(self._ids)
        done = self._asked[line] = asyncio.get_running_loop().create_future()
        self._engine.stdin.write(line)
        await done

    async def freeze(self, asked: dict[str, float]) -> None:
        """Stop everything for `s` seconds, as a collection of garbage does."""
        time.sleep(asked["s"])  # noqa: ASYNC251 - that is the point

    async def never(self, _asked: dict[str, float]) -> None:
        """Answer never."""
        await asyncio.Event().wait()

    async def _events(self, writer: asyncio.StreamWriter, asked: dict[str, float]) -> None:
        """Send an event four times a second, for `s` seconds."""
        writer.write(b"HTTP/1.0 200 x\r\nContent-Type: text/event-stream\r\n\r\n")
        for number in range(int(4 * asked["s"])):
            writer.write(b"data: %d\n\n" % number)
            await writer.drain()
            await asyncio.sleep(0.25)
        writer.write(b"data: end\n\n")


async def _big(writer: asyncio.StreamWriter, asked: dict[str, float]) -> None:
    """Send `mib` MiB."""
    size = int(asked["mib"])
    writer.write(b"HTTP/1.1 200 x\r\nContent-Length: %d\r\n\r\n" % (size * PIECE))
    for _ in range(size):
        writer.write(bytes(PIECE))
        await writer.drain()


def _fill_memory() -> None:
    """Use all memory that the process may have: 64 MiB more than now (RLIMIT_AS)."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + 64 * PIECE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with contextlib.suppress(MemoryError):
        while True:
            EATEN.append(bytes(PIECE))


def _download(seconds: float) -> None:
    """Write 256 KiB a second to a file."""
    end_s = time.monotonic() + seconds
    with tempfile.TemporaryFile() as file:
        while time.monotonic() < end_s:
            file.write(bytes(PIECE // 16))
            file.flush()
            time.sleep(0.25)


def _spin(seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        pass


CALLS: dict[str, Callable[[Server, dict[str, float]], Awaitable[None]]] = {
    "/work": Server.work,
    "/engine": Server.ask_engine,
    "/freeze": Server.freeze,
    "/never": Server.never,
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("port", type=int)
    add("--born", default="", help="how it is sick from its first call on")
    add("--loading", type=float, default=0.0, help="seconds for which it answers 503")
    add(
        "--missing", type=float, default=0.0, help="seconds for which it answers 404, and downloads"
    )
    add("--engine", action="store_true", help="a process of its own answers /engine")
    add("--hangs-after", default="", help="a file: once it exists, every start of this hangs")
    return parser.parse_args()


def main() -> None:
    """Serve, or hang as a start that waits for a lock does."""
    given = _options()
    mark = Path(given.hangs_after) if given.hangs_after else None
    if mark is not None and mark.exists():
        while True:
            signal.pause()
    if mark is not None:
        mark.touch()
    asyncio.run(Server(given).serve())


if __name__ == "__main__":
    main()
