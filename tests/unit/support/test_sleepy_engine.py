"""The stand-in for an engine that sleeps, on a port: what tests of a whole server see of it."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.support.sleepy_engine import command

CHAT = {"model": "m", "messages": [{"role": "user", "content": "a b"}], "logprobs": True}
COMPLETION = {"model": "m", "prompt": "a b", "logprobs": 1, "max_tokens": 4}
Ask = Callable[[str, dict[str, Any]], Any]


@contextmanager
def engine(held: Path, *options: str) -> Iterator[Ask]:
    """Run an engine; yield what sends it a POST, and returns the answer or another status."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    words = command(str(port), "--held", str(held), *options)
    process = subprocess.Popen(words, stdout=subprocess.PIPE)

    def ask(path: str, body: dict[str, Any]) -> Any:
        request = Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode())
        try:
            with urlopen(request) as answer:
                return json.load(answer)
        except HTTPError as error:
            return error.code

    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield ask
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("fault", ["", "garbage", "garbage-later"])
def test_it_comes_back_as_its_fault_says(tmp_path: Path, fault: str) -> None:
    """From the first token on, from the third, or as it was; it answers nobody while it sleeps."""
    held = tmp_path / "held"
    with engine(held, "--fault", fault) as ask:
        before = ask("/v1/chat/completions", CHAT), ask("/v1/completions", COMPLETION)
        assert ask("/sleep?level=1", {}) == {}
        assert ask("/v1/completions", COMPLETION) == 503
        assert held.read_text() == "512"
        assert ask("/wake_up", {}) == {}
        assert held.read_text() == "8192"
        after = ask("/v1/chat/completions", CHAT), ask("/v1/completions", COMPLETION)

    chats = [one[0]["choices"][0]["logprobs"]["content"] for one in (before, after)]
    texts = [one[1]["choices"][0]["logprobs"]["token_logprobs"] for one in (before, after)]
    first_wrong = {"": None, "garbage": 0, "garbage-later": 2}[fault]
    for was, now in (chats, texts):
        differ = [place for place, (a, b) in enumerate(zip(was, now, strict=True)) if a != b]
        assert (differ[0] if differ else None) == first_wrong


def test_an_unknown_call_is_not_found(tmp_path: Path) -> None:
    """So that a test with a misspelt call fails."""
    with engine(tmp_path / "held") as ask:
        assert ask("/slep", {}) == 404
