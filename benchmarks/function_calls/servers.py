"""Servers of one function as processes of their own, and their clients."""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.function_calls import programs
from benchmarks.measuring.processes import cpu_ms, family
from benchmarks.measuring.record import Figures
from benchmarks.references import environments

ROOT = Path(__file__).parents[2]
START_S = 120.0
POLL_S = 0.002
GOOD = b"HTTP/1.1 200 "
LAST_CHUNK = b"\r\n0\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)


@dataclass(frozen=True)
class Program:
    """How to start a server. `{port}` in `words` is its port; `path` is where the function is."""

    words: tuple[str, ...]
    path: str = "/"


def own_programs(folder: Path) -> dict[str, Program]:
    """Write the programs that need nothing installed; return how to start them."""
    found = {}
    for at, (name, text) in enumerate(programs.HANDLERS.items()):
        (folder / f"h{at}.py").write_text(text)
        (folder / f"{at}.json").write_text(json.dumps({"handler": f"h{at}.py"}))
        words = ("-I", "-u", str(ROOT / "python_runner"), f"{at}.json", "127.0.0.1:{port}")
        found[name] = Program((sys.executable, *words))
    (folder / "raw.py").write_text(programs.ASGI)
    found["uvicorn, raw ASGI"] = Program((sys.executable, *_uvicorn("raw:app")))
    return found


def field_programs(folder: Path, left_out: dict[str, str]) -> dict[str, Program]:
    """Install other servers into environments of their own, in the temporary folder; return how
    to start them. `left_out` gets the reasons of those that cannot be installed."""
    texts = {"fast": programs.FASTAPI, "lit": programs.LITSERVE, "bento": programs.BENTOML}
    for module, text in texts.items():
        (folder / f"{module}.py").write_text(text)
    bento = ("-m", "bentoml", "serve", "bento:Greeter", "--host", "127.0.0.1", "-p", "{port}", "-q")
    fast = ("uvicorn", "fastapi", "httptools")
    rows = (
        ("FastAPI async def", fast, _uvicorn("fast:app"), "/"),
        ("FastAPI def", fast, _uvicorn("fast:app"), "/def"),
        ("LitServe", ("litserve",), ("lit.py", "{port}"), "/predict"),
        ("BentoML", ("bentoml",), bento, "/predict"),
    )
    found = {}
    for name, packages, words, path in rows:
        program = packages[0]
        home = environments.environment("-".join(packages))
        try:
            python = environments.program(home, program, packages).with_name("python")
        except RuntimeError as error:
            left_out[name] = str(error)
            continue
        found[name] = Program((str(python), *words), path)
    return found


def _uvicorn(app: str) -> tuple[str, ...]:
    return ("-m", "uvicorn", app, "--port", "{port}", *programs.UVICORN.split())


class Server:
    """A running server, in a session of its own. Leaving the block ends all of its processes."""

    def __init__(self, program: Program, folder: Path) -> None:
        self._program = program
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self._began_s = time.perf_counter()
        self._process = subprocess.Popen(
            [word.replace("{port}", str(self.port)) for word in program.words],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "BENTOML_DO_NOT_TRACK": "true", "LIT_TELEMETRY": "0"},
        )
        self.request = request_of(program.path, programs.BODY)

    def first_answer_ms(self) -> float:
        """Return the milliseconds from the start of the process to the end of the first answer."""
        while time.perf_counter() - self._began_s < START_S:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port)) as end:
                end.sendall(self.request)
                answer_of(end)
                return (time.perf_counter() - self._began_s) * 1e3
            if self._process.poll() is not None:
                raise RuntimeError(f"it ended with {self._process.returncode}")
            time.sleep(POLL_S)
        raise TimeoutError(f"no answer within {START_S:g} s")

    def warm(self, connections: int, calls: int) -> Figures:
        """Return CPU and time of one call, of `connections` that ask again at each answer."""
        pids = family(self._process.pid)
        before_ms, began_s = cpu_ms(pids), time.perf_counter()
        call_all(self.port, self.request, connections, calls)
        took_s = time.perf_counter() - began_s
        return {
            f"CPU us, {connections} open": (cpu_ms(pids) - before_ms) / calls * 1e3,
            f"us, {connections} open": took_s / calls * 1e6,
        }

    def close(self) -> None:
        """End it and its children."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def request_of(path: str, body: bytes, fields: Mapping[str, str] | None = None) -> bytes:
    """Return a request as it is sent."""
    more = "".join(f"{name}: {value}\r\n" for name, value in (fields or {}).items())
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: bench\r\nAccept: */*\r\n{more}"
    length = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + length.encode() + body


def answer_of(end: socket.socket) -> bytes:
    """Return the next answer. Raises ConnectionError if the server closes."""
    answer = b""
    while not is_whole(answer):
        part = end.recv(65536)
        if not part:
            raise ConnectionError(f"the server closed: {answer[:300]!r}")
        answer += part
    return answer


def is_whole(answer: bytes) -> bool:
    """Whether an answer is here as a whole. Raises ConnectionError for one without success."""
    if not answer.startswith(GOOD[: len(answer)]):
        raise ConnectionError(f"expected 200, got {answer[:300]!r}")
    head, found, body = answer.partition(b"\r\n\r\n")
    length = _LENGTH.search(head)
    if not found or length is None:
        return answer.endswith(LAST_CHUNK)
    return len(body) >= int(length[1])


def call_all(port: int, request: bytes, connections: int, calls: int) -> None:
    """Make calls over several connections, each with one call in flight. Raises ConnectionError
    for an answer without success."""
    with selectors.DefaultSelector() as selector:
        ends = [socket.create_connection(("127.0.0.1", port)) for _ in range(connections)]
        for end in ends:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(end, selectors.EVENT_READ)
            end.sendall(request)
        asked, answered = connections, 0
        while answered < calls:
            for key, _ in selector.select():
                end = key.fileobj
                assert isinstance(end, socket.socket)
                answer_of(end)
                answered += 1
                if asked < calls:
                    asked += 1
                    end.sendall(request)
        for end in ends:
            end.close()
