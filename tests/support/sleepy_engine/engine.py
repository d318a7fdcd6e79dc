"""A stand-in for vLLM with sleep mode, and with the faults that engines have had in it.

`python engine.py ADDRESS` listens on a port or on the path of a Unix socket. It has vLLM's /sleep,
/wake_up, /is_sleeping and /health, and completions and chats with log probabilities below /v1,
whose answers are those of `../chat/answers.py`. What it holds of each GPU that it sees is in a file
in the folder of --held, which the stand-in of NVML reads (`memory.py`); `tests/gpu/park_server.py`
gives it the memory of real ones. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import socketserver
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "chat"))
sys.path.append(str(Path(__file__).resolve().parent))

import answers
from memory import StandInMemory

FAULTS = {
    "sleep-fails": "/sleep answers 500, and nothing happens",
    "sleep-hangs": "/sleep is never answered",
    "sleep-dies": "/sleep ends the process",
    "frees-nothing": "it says that it sleeps, and holds all memory",
    "frees-half": "the same with half of it",
    "early": "/sleep answers at once, and frees --slow seconds later",
    "no-sleep-mode": "/sleep answers 200, and nothing happens: vLLM without --enable-sleep-mode",
    "wake-fails": "/wake_up answers 500: out of memory",
    "wake-hangs": "/wake_up is never answered",
    "wake-dies": "/wake_up ends the process",
    "stays-asleep": "/wake_up answers 200, and nothing happens",
    "lies": "the same, and /is_sleeping says that it is awake",
    "garbage": "all answers after a wake are wrong",
    "garbage-later": "the same from the third token on",
    "stale-prefix": "after a wake, prompts are wrong that were cached before the sleep",
    "slow": "/sleep and /wake_up take 100 times as long, and are right",
    "hung": "completions and chats are never answered",
}
"""What may go wrong, by --fault, or from now on by the text of the file of --fault-file."""
KEPT = {"frees-nothing": 1.0, "frees-half": 0.5}
"""Share of its memory that an engine with a fault keeps in a sleep."""
FOREVER = threading.Event()


class Memory(Protocol):
    """What an engine has of its GPUs."""

    def fill(self, *, is_right: bool) -> None:
        """Take all of it, and put the weights there, damaged ones unless `is_right`. Raises
        MemoryError if a GPU has too little."""

    def free(self, kept: float) -> None:
        """Give it back but for this share, from 0 to 1, and what an engine always keeps."""

    def is_right(self) -> bool:
        """Whether the weights are those that were loaded."""


class Engine:
    """The engine behind the server."""

    def __init__(self, given: argparse.Namespace, memory: Memory) -> None:
        self._fault: str = given.fault
        self._fault_file = Path(given.fault_file) if given.fault_file else None
        self._usual_s: float = given.slow
        self._answer_s: float = given.answer
        self._memory = memory
        self.is_asleep = False
        self._was_woken = self._is_gone = self._is_garbled = False
        """Whether /wake_up was called since it slept, whether its weights are gone, and whether it
        is wrong from the third token on."""
        self._cached: set[str] = set()
        """Prompts in the cache of prefixes."""
        self._stale: set[str] = set()
        memory.fill(is_right=True)

    @property
    def fault(self) -> str:
        """What goes wrong now."""
        if self._fault_file is not None:
            with suppress(FileNotFoundError):
                return self._fault_file.read_text()
        return self._fault

    @property
    def _slow_s(self) -> float:
        return self._usual_s * (100 if self.fault == "slow" else 1)

    def put_to_sleep(self, level: int) -> int:
        """POST /sleep. Return a status."""
        self._break("sleep")
        if self.fault == "no-sleep-mode":
            return 200
        if self.fault == "early":
            threading.Timer(self._slow_s, self._fall_asleep, (level,)).start()
            return 200
        FOREVER.wait(self._slow_s)
        self._fall_asleep(level)
        return 500 if self.fault == "sleep-fails" else 200

    def wake(self) -> int:
        """POST /wake_up. Return a status."""
        self._break("wake")
        if self.fault in ("wake-fails", "stays-asleep", "lies"):
            return 500 if self.fault == "wake-fails" else 200
        FOREVER.wait(self._slow_s)
        fault = self.fault
        try:
            self._memory.fill(is_right=fault != "garbage")
        except MemoryError:
            return 500
        self._is_garbled = fault == "garbage-later"
        self.is_asleep = False
        return 200

    def says_asleep(self) -> bool:
        """GET /is_sleeping."""
        return self.is_asleep and not (self.fault == "lies" and self._was_woken)

    def generate(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Answer a completion or a chat."""
        if self.fault == "hung":
            FOREVER.wait()
        is_chat = path.endswith("/chat/completions")
        text = answers.text_of(body["messages"] if is_chat else body["prompt"])
        FOREVER.wait(self._answer_s + answers.orders_of(text).think)
        document = (answers.chat if is_chat else answers.completion)(body, text).document
        # vLLM does not use its cache where log probabilities of the prompt are asked for.
        uses_cache = not (body.get("echo") or body.get("prompt_logprobs"))
        if self._is_wrong(text, uses_cache=uses_cache):
            spoil(document, 2 if self._is_garbled else 0)
        if uses_cache:
            self._cached.add(text)
        return document

    def _is_wrong(self, text: str, *, uses_cache: bool) -> bool:
        is_damaged = self._is_gone or self._is_garbled or not self._memory.is_right()
        return is_damaged or (uses_cache and text in self._stale)

    def _break(self, call: str) -> None:
        self._was_woken = call == "wake"
        if self.fault == f"{call}-dies":
            os._exit(1)
        if self.fault == f"{call}-hangs":
            FOREVER.wait()

    def _fall_asleep(self, level: int) -> None:
        if self.fault == "sleep-fails":
            return
        self.is_asleep = True
        self._is_gone = self._is_gone or level != 1
        if self.fault == "stale-prefix":
            self._stale |= self._cached
        self._cached.clear()
        self._memory.free(KEPT.get(self.fault, 0.0))


def spoil(document: dict[str, Any], begin: int) -> None:
    """Make the tokens of an answer wrong from a place on; with `begin` 0 those of its prompt,
    too."""
    choice = document["choices"][0]
    found = choice.get("logprobs") or {}
    if "content" in found:
        for one in found["content"][begin:]:
            one.update(token="\ufffd", logprob=-9.0, top_logprobs=[])
    elif "token_logprobs" in found:
        is_echoed = found["token_logprobs"][0] is None
        prompt = document["usage"]["prompt_tokens"] if is_echoed else 0
        first = prompt + begin if begin else int(is_echoed)
        size = len(found["token_logprobs"]) - first
        found["token_logprobs"][first:] = [-9.0] * size
        found["tokens"][first:] = ["\ufffd"] * size
        found["top_logprobs"][first:] = [{}] * size
    said, name = (choice["message"], "content") if "message" in choice else (choice, "text")
    words = (said[name] or "").split()
    said[name] = " ".join([*words[:begin], *["\ufffd"] * len(words[begin:])])


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    engine: Engine
    served = ""
    """File that gets a line for each request: its path, and when it came and was answered."""
    began_s = 0.0

    def parse_request(self) -> bool:
        """Note when a request came."""
        self.began_s = time.monotonic()
        return super().parse_request()

    def do_GET(self) -> None:
        """Answer /health and /is_sleeping."""
        if self.path == "/is_sleeping":
            self._answer(200, {"is_sleeping": self.engine.says_asleep()})
        else:
            self._answer(200 if self.path == "/health" else 404, {})

    def do_POST(self) -> None:
        """Answer calls of sleep mode, completions and chats."""
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        target = urlsplit(self.path)
        if target.path == "/sleep":
            self._answer(
                self.engine.put_to_sleep(int(parse_qs(target.query).get("level", "1")[0])), {}
            )
        elif target.path == "/wake_up":
            self._answer(self.engine.wake(), {})
        elif target.path not in ("/v1/completions", "/v1/chat/completions"):
            self._answer(404, {})
        elif self.engine.is_asleep:
            self._answer(503, {"error": {"message": "the model is sleeping"}})
        else:
            self._answer(200, self.engine.generate(target.path, json.loads(data)))

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        if self.served:
            with Path(self.served).open("a") as lines:
                lines.write(f"{self.path} {self.began_s} {time.monotonic()}\n")

    def address_string(self) -> str:
        """Return the client's name; one of a Unix socket has none."""
        return "client"

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


class TcpServer(socketserver.ThreadingTCPServer):
    """On a port of the loopback interface."""

    daemon_threads = allow_reuse_address = True


class UnixServer(socketserver.ThreadingUnixStreamServer):
    """On a Unix socket."""

    daemon_threads = True


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(prog="engine.py")
    made.add_argument("address", help="a port, or the path of a Unix socket")
    made.add_argument("--fault", choices=["", *FAULTS], default="")
    made.add_argument("--fault-file", default="", help="file with the fault of now, if it exists")
    made.add_argument("--load", type=float, default=0.0, help="seconds until it serves")
    made.add_argument("--slow", type=float, default=0.0, help="seconds of a sleep, and of a wake")
    made.add_argument("--answer", type=float, default=0.0, help="seconds of each answer")
    made.add_argument("--served", default="", help="file that gets the times of requests")
    made.add_argument("--held", default="", help="folder that says how much memory it holds")
    made.add_argument("--gpu-mib", type=int, default=0, help="size of a GPU, 0 for any")
    made.add_argument("--host-mib", type=int, default=0, help="host memory that a sleep takes")
    made.add_argument("--enable-sleep-mode", action="store_true", help="as vLLM's, for manifests")
    return made


def serve(given: argparse.Namespace, memory: Memory) -> None:
    """Load, and serve until the process is killed."""
    Handler.engine, Handler.served = Engine(given, memory), given.served
    FOREVER.wait(given.load)
    server: socketserver.BaseServer
    if given.address.isdigit():
        server = TcpServer(("127.0.0.1", int(given.address)), Handler)
    else:
        server = UnixServer(given.address, Handler)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    server.serve_forever()


def main() -> None:
    """Run an engine on stand-in GPUs."""
    given = parser().parse_args()
    serve(given, StandInMemory(given.held, given.gpu_mib, given.host_mib))


if __name__ == "__main__":
    main()
