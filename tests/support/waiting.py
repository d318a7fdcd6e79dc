"""A chat function that starts slowly, and clients that wait for it through proxies."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import aiohttp

from benchmarks.references import chat_upstream
from tests.support.process_server import ServerProcess

NAME = "chat"
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
TOKENS = 3
GRACE_S = 60.0
MANIFEST = """schema = 1
name = "{name}"

[server]
command = [
  "{python}", "chat_upstream.py", "${{PORT}}", "--start", "{start_s}", "--slow", "{slow}",
]

[openai]
comment_after_s = {comment_after_s}

[limits]
wait_s = {wait_s}
"""


def deploy(server: ServerProcess, folder: Path, start_s: float, comment_after_s: float) -> None:
    """Deploy a function whose server takes `start_s` to listen, from the second start on: the first
    one is a part of the deployment. Then the function is cold."""
    path, slow = folder / NAME, folder / "slow"
    path.mkdir(parents=True)
    source = Path(chat_upstream.__file__)
    (path / source.name).write_text(source.read_text())
    manifest = MANIFEST.format(
        name=NAME,
        python=sys.executable,
        start_s=start_s,
        slow=slow,
        comment_after_s=comment_after_s,
        wait_s=start_s + GRACE_S,
    )
    (path / "function.toml").write_text(manifest)
    server.fnctl_json("deploy", str(path), "--trust")
    slow.touch()


@dataclass(frozen=True)
class Heard:
    """What a client got. `arrived_s`: seconds from the request to each arrival, its end included.

    `is_whole`: the answer ended as its framing says.
    """

    status: int
    body: bytes
    arrived_s: tuple[float, ...]
    is_whole: bool

    @property
    def silence_s(self) -> float:
        """The longest time without a byte."""
        return max(b - a for a, b in zip((0.0, *self.arrived_s), self.arrived_s, strict=False))

    @property
    def events(self) -> list[bytes]:
        """The data of the events."""
        lines = self.body.split(b"\n")
        return [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: ")]

    @property
    def tokens(self) -> int:
        """Number of the tokens that came."""
        return sum(b'"content":"@' in event for event in self.events)

    @property
    def comments(self) -> int:
        """Number of the comments that came."""
        return self.body.count(b": waiting\n\n")


async def ask(
    url: str,
    headers: Mapping[str, str],
    *,
    is_stream: bool,
    path: str = CHAT,
    pause_s: float = 0.0,
    seconds: float = 300.0,
) -> Heard:
    """Ask the function, and read the answer to its end. `pause_s`: seconds between two tokens."""
    asked = {
        "messages": [{"role": "user", "content": "hello"}],
        "model": NAME,
        "max_tokens": TOKENS,
        "seed": round(pause_s * 1e3),
        "stream": is_stream,
    }
    began, pieces, arrived_s = monotonic(), [], []
    timeout = aiohttp.ClientTimeout(total=seconds)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.post(url + path, data=json.dumps(asked), headers=headers) as answer,
    ):
        is_whole = True
        try:
            async for piece in answer.content.iter_any():
                pieces.append(piece)
                arrived_s.append(monotonic() - began)
        except aiohttp.ClientPayloadError:
            is_whole = False
    arrived_s.append(monotonic() - began)
    return Heard(answer.status, b"".join(pieces), tuple(arrived_s), is_whole)


@dataclass(frozen=True)
class Scene:
    """The answers of one cold start, by who asked."""

    stream: Heard
    whole: Heard
    buffered: Heard
    messages: Heard
    paused: Heard
    paused_buffered: Heard


async def cold_start(haproxy: str, nginx: str, headers: Mapping[str, str], pause_s: float) -> Scene:
    """Ask a cold function through both proxies at once; then a warm one for slow streams."""
    stream, whole, buffered, messages = await asyncio.gather(
        ask(haproxy, headers, is_stream=True),
        ask(haproxy, headers, is_stream=False),
        ask(nginx, headers, is_stream=True),
        ask(haproxy, headers, is_stream=True, path=MESSAGES),
    )
    paused = await asyncio.gather(
        ask(haproxy, headers, is_stream=True, pause_s=pause_s),
        ask(nginx, headers, is_stream=True, pause_s=pause_s),
    )
    return Scene(stream, whole, buffered, messages, *paused)
