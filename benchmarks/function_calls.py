"""CPU of a warm call of a Python function, beside uvicorn with httptools and a raw ASGI program.

`python -m benchmarks.function_calls [--rounds 9] [--calls 4000]`: one client, one connection each,
the same JSON in and out; the rounds of all servers in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
HANDLERS = {
    "async def": "async def predict(inputs, ctx):\n    return {'text': 'Hello, ' + inputs['name']}",
    "async def, named": "async def predict(name: str):\n    return {'text': 'Hello, ' + name}",
    "def": "def predict(inputs, ctx):\n    return {'text': 'Hello, ' + inputs['name']}",
}
ASGI = """
import msgspec
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body")
    name = msgspec.json.decode(body)["inputs"]["name"]
    answer = msgspec.json.encode({"outputs": {"text": "Hello, " + name}})
    fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    await send({"type": "http.response.body", "body": answer})
"""
BODY = b'{"inputs":{"name":"Ada"}}'
REQUEST = (
    b"POST / HTTP/1.1\r\nHost: a\r\nUser-Agent: bench\r\nAccept: */*\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)


class Subject:
    """One server, with one connection to it."""

    def __init__(self, command: list[str], folder: Path, path: Path) -> None:
        self.process = subprocess.Popen([sys.executable, *command], cwd=folder)
        self._end = socket.socket(socket.AF_UNIX)
        while True:
            try:
                self._end.connect(str(path))
                return
            except OSError:
                time.sleep(0.02)

    def us(self, calls: int) -> float:
        """Return the microseconds of CPU of one call."""
        before = self._cpu_s()
        for _ in range(calls):
            self._end.sendall(REQUEST)
            answer = b""
            while not answer.endswith(b"}}"):
                part = self._end.recv(65536)
                if not part:
                    raise ConnectionError(f"the server closed: {answer!r}")
                answer += part
        return (self._cpu_s() - before) / calls * 1e6

    def close(self) -> None:
        """End it."""
        self._end.close()
        self.process.kill()
        self.process.wait()

    def _cpu_s(self) -> float:
        return time.clock_gettime(((~self.process.pid) << 3) | 2)



def main() -> None:
    """Print the median of each server, and its ratio to the reference."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.function_calls")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=4000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        subjects = started(Path(name))
        try:
            for one in subjects.values():
                one.us(500)
            rounds = [
                {what: one.us(given.calls) for what, one in subjects.items()}
                for _ in range(given.rounds)
            ]
        finally:
            for one in subjects.values():
                one.close()
    for what in subjects:
        ratio = statistics.median(each[what] / each["uvicorn"] for each in rounds)
        print(f"{what:20} {statistics.median(each[what] for each in rounds):6.1f} us {ratio:6.2f}")


def started(folder: Path) -> dict[str, Subject]:
    """Return all servers by name."""
    subjects = {}
    for at, (what, text) in enumerate(HANDLERS.items()):
        (folder / f"h{at}.py").write_text(text)
        settings = {"listen": f"{folder}/{at}.sock", "handler": f"h{at}.py"}
        (folder / f"{at}.json").write_text(json.dumps(settings))
        command = ["-I", "-u", str(ROOT / "python_runner"), f"{at}.json"]
        subjects[what] = Subject(command, folder, folder / f"{at}.sock")
    (folder / "raw.py").write_text(ASGI)
    options = "--http httptools --loop asyncio --no-access-log --log-level error"
    command = ["-m", "uvicorn", "raw:app", "--uds", "u.sock", *options.split()]
    command += ["--timeout-keep-alive", "3600"]
    subjects["uvicorn"] = Subject(command, folder, folder / "u.sock")
    return subjects


if __name__ == "__main__":
    main()
