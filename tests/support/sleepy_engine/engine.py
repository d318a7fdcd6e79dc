"""A stand-in for vLLM with sleep mode, and with the faults that engines have had in it.

`python engine.py ADDRESS` listens on a port or on the path of a Unix socket. It has vLLM's /sleep,
/wake_up, /is_sleeping and /health, and completions and chats with log probabilities below /v1,
whose answers are those of `../chat/answers.py`. What it holds of its GPU is in the file of --held,
as a number of MiB, so that a test can tell it to the stand-in of NVML. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import socketserver
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "chat"))

import answers

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
    "hung": "completions and chats are never answered",
}
"""What may go wrong, by --fault."""
FULL_MIB, RESIDUE_MIB = 8192, 512
"""MiB that it holds awake and asleep."""
FOREVER = threading.Event()


class Engine:
    """The engine behind the server."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.fault: str = given.fault
        self._slow_s: float = given.slow
        self._held: Path | None = Path(given.held) if given.held else None
        self.is_asleep = False
        self._was_asleep = self._was_woken = self._is_gone = False
        """Whether it has slept, whether /wake_up was called since, whether its weights are gone."""
        self._cached: set[str] = set()
        """Prompts in the cache of prefixes."""
        self._stale: set[str] = set()
        self._hold(FULL_MIB)

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
        self._hold(FULL_MIB)
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
        document = (answers.chat if is_chat else answers.completion)(body, text).document
        # vLLM does not use its cache where log probabilities of the prompt are asked for.
        uses_cache = not (body.get("echo") or body.get("prompt_logprobs"))
        if self._is_wrong(text, uses_cache=uses_cache):
            spoil(document, 2 if self.fault == "garbage-later" else 0)
        if uses_cache:
            self._cached.add(text)
        return document

    def _is_wrong(self, text: str, *, uses_cache: bool) -> bool:
        is_garbage = self._was_asleep and self.fault in ("garbage", "garbage-later")
        return self._is_gone or is_garbage or (uses_cache and text in self._stale)

    def _break(self, call: str) -> None:
        self._was_woken = call == "wake"
        if self.fault == f"{call}-dies":
            os._exit(1)
        if self.fault == f"{call}-hangs":
            FOREVER.wait()

    def _fall_asleep(self, level: int) -> None:
        if self.fault == "sleep-fails":
            return
        self.is_asleep = self._was_asleep = True
        self._is_gone = self._is_gone or level != 1
        if self.fault == "stale-prefix":
            self._stale |= self._cached
        self._cached.clear()
        left = {"frees-nothing": FULL_MIB, "frees-half": FULL_MIB // 2}
        self._hold(left.get(self.fault, RESIDUE_MIB))

    def _hold(self, mib: int) -> None:
        if self._held is not None:
            self._held.write_text(str(mib))


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


def main() -> None:
    """Serve until the process is killed."""
    parser = argparse.ArgumentParser(prog="engine.py")
    parser.add_argument("address", help="a port, or the path of a Unix socket")
    parser.add_argument("--fault", choices=["", *FAULTS], default="")
    parser.add_argument("--slow", type=float, default=0.0, help="seconds of a sleep, and of a wake")
    parser.add_argument("--held", default="", help="file that says how much memory it holds")
    parser.add_argument("--enable-sleep-mode", action="store_true", help="as vLLM's, for manifests")
    given = parser.parse_args()
    Handler.engine = Engine(given)
    server: socketserver.BaseServer
    if given.address.isdigit():
        server = TcpServer(("127.0.0.1", int(given.address)), Handler)
    else:
        server = UnixServer(given.address, Handler)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
