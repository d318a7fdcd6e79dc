"""The stand-in for an engine that sleeps, on a port: what tests of a whole server see of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from runtime_image.gpus.nvml import Nvml
from tests.support.gang_engine import uuid
from tests.support.nvml.board import Board, Gpu, locks
from tests.support.nvml.fixtures import board
from tests.support.sleepy_engine import command, held_mib
from tests.support.sleepy_engine.memory import CONFLICTS

__all__ = ["board"]

CHAT = {"model": "m", "messages": [{"role": "user", "content": "a b"}], "logprobs": True}
COMPLETION = {"model": "m", "prompt": "a b", "logprobs": 1, "max_tokens": 4}
Ask = Callable[[str, dict[str, Any]], Any]


@contextmanager
def engine(held: Path, *options: str) -> Iterator[Ask]:
    """Run an engine; yield what sends it a POST, and returns the answer or another status."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    held.mkdir(exist_ok=True)
    words = command(str(port), "--held", str(held), *options)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": f"0,{uuid(1)}"}
    process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE)

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
        assert held_mib(held) == {uuid(0): 512, uuid(1): 512}
        assert ask("/wake_up", {}) == {}
        assert held_mib(held) == {uuid(0): 8192, uuid(1): 8192}
        after = ask("/v1/chat/completions", CHAT), ask("/v1/completions", COMPLETION)

    chats = [one[0]["choices"][0]["logprobs"]["content"] for one in (before, after)]
    texts = [one[1]["choices"][0]["logprobs"]["token_logprobs"] for one in (before, after)]
    first_wrong = {"": None, "garbage": 0, "garbage-later": 2}[fault]
    for was, now in (chats, texts):
        differ = [place for place, (a, b) in enumerate(zip(was, now, strict=True)) if a != b]
        assert (differ[0] if differ else None) == first_wrong


def test_the_stand_in_of_nvml_lists_what_it_holds(tmp_path: Path, board: Board) -> None:
    """On each of its GPUs, under its pid, for as long as it lives."""
    held = tmp_path / "held"
    board.holders = held
    board.add(*(Gpu(uuid(card)) for card in range(3)))
    nvml = Nvml()
    nvml.open()

    def listed() -> list[float | None]:
        sizes = [gpu.processes or () for gpu in nvml.read().gpus]
        assert len({process.pid for some in sizes for process in some}) <= 1
        return [some[0].memory_mib if some else None for some in sizes]

    try:
        with engine(held) as ask:
            assert listed() == [8192, 8192, None]
            assert ask("/sleep?level=1", {}) == {}
            assert listed() == [512, 512, None]
            assert nvml.read().gpus[0].used_mib == 512
        assert listed() == [None] * 3
        assert len(held_mib(held)) == 2
    finally:
        nvml.close()


def test_an_engine_that_finds_too_little_memory_says_so(tmp_path: Path) -> None:
    """It does not wake; beside one that has ended it does."""
    held = tmp_path / "held"
    size = ("--gpu-mib", "10000")
    with engine(held, *size) as first:
        assert first("/sleep", {}) == {}
        with engine(held, *size) as second:
            assert first("/wake_up", {}) == 500
            told = (held / CONFLICTS).read_text().splitlines()
            assert [line.partition(" MiB beside")[0] for line in told] == [f"{uuid(0)}: 8192"]
            assert len(locks(held)) == 4
            assert second("/is_sleeping", {}) == 404
        assert first("/wake_up", {}) == {}
        assert len((held / CONFLICTS).read_text().splitlines()) == 1


def test_a_fault_may_begin_later(tmp_path: Path) -> None:
    """And end again."""
    fault = tmp_path / "fault"
    with engine(tmp_path / "held", "--fault-file", str(fault)) as ask:
        assert ask("/sleep", {}) == {}
        fault.write_text("wake-fails")
        assert ask("/wake_up", {}) == 500
        fault.unlink()
        assert ask("/wake_up", {}) == {}


def test_an_unknown_call_is_not_found(tmp_path: Path) -> None:
    """So that a test with a misspelt call fails."""
    with engine(tmp_path / "held") as ask:
        assert ask("/slep", {}) == 404
