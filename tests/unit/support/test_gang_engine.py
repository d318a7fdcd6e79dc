"""Tests of the stand-in engine on several GPUs: it sees a GPU that is taken."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

from tests.support.gang_engine import SOURCE, Cards, uuid
from tests.support.own_engine import await_condition

TAKEN = 3
DIED = 4


@contextmanager
def engine(cards: Cards, name: str, visible: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run an engine with these visible GPUs; yield it and its port. Its processes are killed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-E", "-S", str(SOURCE), "--port", str(port), "--name", name]
    process = subprocess.Popen(
        [*command, "--folder", str(cards.folder)],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": visible},
        start_new_session=True,
    )
    try:
        yield process, port
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def started(cards: Cards, name: str) -> list[int]:
    """Return the GPUs of a function's engine once it has them all."""
    await_condition(lambda: name in dict(cards.starts()), "the engine has its GPUs")
    return dict(cards.starts())[name]


def test_an_engine_holds_each_of_its_gpus(tmp_path: Path) -> None:
    """Indexes and UUIDs of the board name the same GPUs; each has a process of its own."""
    cards = Cards(tmp_path, 4)
    with engine(cards, "pair", f"{uuid(1)},{uuid(3)}"), engine(cards, "other", "0,2"):
        assert started(cards, "pair") == [1, 3]
        assert started(cards, "other") == [0, 2]
        held = cards.holders()
        cards.show_memory()

        assert sorted(held) == ["0", "1", "2", "3"]
        assert len(set(held.values())) == 4
        assert cards.board.used_mib(uuid(3)) > 0
        assert cards.conflicts() == []


def test_a_gpu_that_is_taken_is_reported(tmp_path: Path) -> None:
    """The second engine on a GPU ends and says who has it."""
    cards = Cards(tmp_path, 2)
    with engine(cards, "first", "0"):
        started(cards, "first")
        with engine(cards, "second", "1,0") as (second, _):
            assert second.wait(20) == TAKEN

        assert cards.conflicts() == ["GPU 0: second while first has it"]
        assert "second" not in dict(cards.starts())


def test_the_processes_on_gpus_outlive_the_first_one(tmp_path: Path) -> None:
    """Like workers that hang: the server must end them before the GPU is free."""
    cards = Cards(tmp_path, 2)
    with engine(cards, "pair", "0,1") as (first, _):
        started(cards, "pair")
        first.kill()
        first.wait()

        assert sorted(cards.holders()) == ["0", "1"]


def test_an_engine_ends_with_the_first_of_its_processes(tmp_path: Path) -> None:
    """One of its GPUs has no process any more: it can compute nothing."""
    cards = Cards(tmp_path, 2)
    with engine(cards, "pair", "0,1") as (first, _):
        started(cards, "pair")
        os.kill(cards.holders()["1"], signal.SIGKILL)

        assert first.wait(20) == DIED


def test_an_engine_answers_with_its_gpus(tmp_path: Path) -> None:
    """An answer has the call's body and the GPUs in the engine's order."""
    cards = Cards(tmp_path, 2)
    with engine(cards, "pair", "0,1") as (_, port):
        started(cards, "pair")

        def answer() -> dict[str, object]:
            with urlopen(f"http://127.0.0.1:{port}/run?ms=1", b"abc") as response:
                return dict(json.load(response))

        def is_ready() -> bool:
            try:
                return bool(answer())
            except OSError:
                return False

        await_condition(is_ready, "the engine answers")

        assert answer() == {"name": "pair", "cards": ["0", "1"], "body": "abc"}
