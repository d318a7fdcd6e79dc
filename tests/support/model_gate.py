"""A server with the stand-in for a server of models as functions, for the clients of /v1."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.footprint import until
from tests.support import chat_server
from tests.support.process_server import ServerProcess, server_process

UNTIL_S = 20.0
SERVED = "org/Small-1:4b"
"""The name of `chat`'s model at its server."""
ALIAS = "org/chat:small"
LATE_S = 2.5
"""Seconds that `late` takes to start."""


@dataclass(frozen=True)
class ModelGate:
    """A server with these functions.

    `chat` has another name at its server, and the alias ALIAS. `plain` has none, and finishes
    answers whose clients have left. `late` starts in LATE_S, and its streams get a comment after
    1 s. `key` may call all of them, `other_key` only `plain`.
    """

    server: ServerProcess
    key: str
    other_key: str
    counts: Path

    @property
    def url(self) -> str:
        """Return the base URL of Anthropic's clients."""
        return self.server.url

    @property
    def base(self) -> str:
        """Return the base URL of OpenAI's clients."""
        return f"{self.server.url}/v1"

    async def go_cold(self, name: str) -> None:
        """Stop a function's replica and wait for its end. One that has just been called stays awake
        for a moment, so the request is repeated."""

        async def is_cold() -> bool:
            await asyncio.to_thread(ask, self.server, "POST", f"functions/{name}/sleep")
            return await asyncio.to_thread(self.is_cold, name)

        assert await until(is_cold, UNTIL_S)

    def is_cold(self, name: str) -> bool:
        """Return whether a function is asleep."""
        return bool(ask(self.server, "GET", f"functions/{name}")["state"] == "cold")

    def served(self, path: str = "") -> list[str]:
        """Return how the calls of an endpoint ended at the servers, in their order."""
        calls = chat_server.counted(self.counts)
        return [one["end"] for one in calls if path in ("", one["path"])]

    async def ended(self, before: int, end: str) -> bool:
        """Wait for the end of the call after `before` others; return whether it is `end`."""

        async def is_over() -> bool:
            return len(self.served()) > before

        assert await until(is_over, UNTIL_S)
        return self.served()[before] == end


def ask(server: ServerProcess, method: str, path: str, body: Any = None) -> Any:
    """Send a request to the admin API; return the answer's document. A process of fnctl for each
    would take longer than all else."""
    fields = {**server.headers, "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    url = f"{server.url}/admin/v1/{path}"
    asked = urllib.request.Request(url, data, fields, method=method)
    with urllib.request.urlopen(asked, timeout=UNTIL_S) as answer:
        return json.load(answer)


@contextmanager
def model_gate(folder: Path, workers: int, *, has_late: bool = True) -> Iterator[ModelGate]:
    """Run a server with the functions; it must log no error."""
    options = ("--workers", str(workers), "--cpu-slots", "3")
    counts = folder / "counts"
    counted = ("--counts", str(counts))
    bundles = [
        chat_server.bundle(
            *(folder, "chat", "--model", SERVED, *counted), api=f'served_model = "{SERVED}"'
        ),
        chat_server.bundle(folder, "plain", *counted, api='on_disconnect = "drain"'),
    ]
    if has_late:
        late = ("--start", str(LATE_S), *counted)
        bundles.append(chat_server.bundle(folder, "late", *late, api="comment_after_s = 1"))
    with server_process(folder / "data", *options, environment={"FN_STANDBYS": "0"}) as server:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda path: server.fnctl_json("deploy", str(path), "--trust"), bundles))
        ask(server, "POST", "aliases", {"function": "chat", "alias": ALIAS})
        keys = [
            ask(server, "POST", "keys", {"scopes": [scope]})["secret"]
            for scope in ("invoke", "invoke:plain")
        ]
        yield ModelGate(server, keys[0], keys[1], counts)
        complaints = list(server.complaints)
    assert complaints == []


@contextmanager
def model_gates(folder: Path, *, has_late: bool = True) -> Iterator[dict[int, ModelGate]]:
    """Run a server with one gateway worker and one with two; return them by that number."""
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        made = {}
        for workers in (1, 2):
            place = folder / f"{workers}"
            place.mkdir()
            made[workers] = model_gate(place, workers, has_late=has_late)
        entered = list(pool.map(stack.enter_context, made.values()))
        yield dict(zip(made, entered, strict=True))


def renamed(got: Any, before: str, after: str) -> Any:
    """Return a client's answer with another name of the model, to compare it."""
    return json.loads(json.dumps(got).replace(json.dumps(before), json.dumps(after)))


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    @property
    def seconds(self) -> float:
        """Return the seconds so far."""
        return time.monotonic() - self._began_s
